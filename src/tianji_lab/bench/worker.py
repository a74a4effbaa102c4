"""A worker process of a benchmark: an actor, an echo, or a reader of parameters.

``workers`` starts it as ``python -m tianji_lab.bench.worker NAME``, with the root's address and key as JSON
on its standard input; or it is a rank of an MPI launcher. A worker does the steps that the leading process
asks for, one after another, and stays for all trials of a benchmark.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import setproctitle

from tianji_cli.errors import describe
from tianji_cli.launch.children import end_with_parent
from tianji_cli.plan.plan import this_host
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.wire.address import (
    LOOPBACK,
    JobKey,
    RootAddress,
    address_towards,
    engine_options,
    is_loopback,
    parse_address,
)
from tianji_cli.wire.control import ControlClient
from tianji_cli.wire.messages import Answer, Arrive, Ask, Dismiss
from tianji_lab.bench import comm
from tianji_lab.bench.contents import DamagedMessageError
from tianji_lab.bench.exchange import Bandwidth, Latency, Weights
from tianji_lab.bench.experiment import (
    STEP,
    Close,
    Connect,
    Enough,
    Leading,
    Open,
    Outcome,
    Run,
    Sent,
    Step,
    Trial,
)
from tianji_lab.bench.raw import loop
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions

EXPERIMENTS: Final[Mapping[str, Any]] = {
    "comm": comm,
    "latency": Latency(),
    "bandwidth": Bandwidth(),
    "weights": Weights(),
}


class Endpoint:
    """One process's end of a trial, for any number of runs.

    Attributes:
        address: for the other processes.

    Raises:
        TransportError: the engine is not available, or does not open.
    """

    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None:
        self._trial, self._rank = trial, rank
        self._experiment: Any = loop if trial.raw else EXPERIMENTS[trial.experiment]
        self._end: Any
        if trial.raw:
            self._end = loop.open_end(trial, rank, options)
        else:
            wiring = self._experiment.wiring(trial)
            self._end = open_endpoint(*trial.engines, trial.hosts, wiring, rank, options=options)
        self.address: str = self._end.address

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Connect to the other processes, whose addresses are by rank."""
        if self._trial.raw:
            (peer,) = addresses.values()
            self._end.connect(peer)
        else:
            self._end.connect(addresses)

    def lead(self, run: Run, session: Leading) -> Outcome:
        """Do the work of rank 0."""
        outcome: Outcome = self._experiment.lead(self._end, self._trial, run, session)
        return outcome

    def follow(self, run: Run, worker: Worker) -> Sent:
        """Do the work of any other rank."""
        sent: Sent = self._experiment.follow(self._end, self._trial, run, self._rank, worker)
        return sent

    def close(self) -> None:
        """Free everything."""
        self._end.close()


LOOK_S: Final = 10.0


class Dismissed(Exception):  # noqa: N818 - no error: the leading process has said so
    """The benchmark is over in the middle of a run."""


class Worker(AbstractContextManager["Worker"]):
    """Does the steps that the leading process asks for, and tells a run when to end.

    Attributes:
        descriptors: one of them is readable when the leading process may have sent something.
    """

    def __init__(self, control: ControlClient, root: RootAddress, name: str) -> None:
        self.descriptors: Sequence[int] = (control.descriptor,)
        self._control = control
        self._key = root.key
        self._name = name
        host, _ = parse_address(root.address)
        self._interface = LOOPBACK if is_loopback(host) else address_towards(host)
        self._asked: list[tuple[int, Step]] = []
        self._endpoint: Endpoint | None = None
        self._run = self._ended_run = -1
        self._dismissed = False

    def serve(self) -> bool:
        """Take part until the benchmark is over; returns False if the leading process was lost."""
        here = this_host()
        self._control.send(Arrive.of_this_process(self._name, here.name, here.cores, self._interface))
        while not self._dismissed:
            self._control.wait(LOOK_S)
            severed = self._control.severed  # Read before the last messages are received.
            self._receive()
            while self._asked:
                self._answer(*self._asked.pop(0))
            if severed and not self._dismissed:
                return False
        return True

    def enough(self) -> bool:
        """Whether the leading process has ended the run.

        Raises:
            Dismissed: the whole benchmark is over, or the leading process is gone.
        """
        self._receive()
        if self._dismissed or self._control.severed:
            raise Dismissed
        return self._ended_run >= self._run

    def _receive(self) -> None:
        for message in self._control.receive():
            if isinstance(message, Dismiss):
                self._dismissed = True
            elif isinstance(message, Ask):
                step = STEP.validate_python(message.step)
                if isinstance(step, Enough):
                    self._ended_run = step.run
                else:
                    self._asked.append((message.number, step))

    def _answer(self, number: int, step: Step) -> None:
        try:
            answer = Answer(node=self._name, number=number, result=self._do(step))
        except Dismissed:
            return
        except DamagedMessageError as damage:
            answer = Answer(node=self._name, number=number, error=str(damage))
        except Exception as error:  # noqa: BLE001 - the leading process ends the benchmark with it
            answer = Answer(node=self._name, number=number, error=describe(error))
        self._control.send(answer)

    def _do(self, step: Step) -> dict[str, Any]:
        match step:
            case Open(trial=trial, rank=rank):
                self._close()
                self._run = self._ended_run = -1
                self._endpoint = Endpoint(trial, rank, engine_options(self._interface, self._key))
                return {"address": self._endpoint.address}
            case Connect(addresses=addresses):
                assert self._endpoint is not None
                self._endpoint.connect(addresses)
            case Run(number=number):
                assert self._endpoint is not None
                self._run = number
                return self._endpoint.follow(step, self).model_dump()
            case Close():
                self._close()
            case _:
                return {"now_ns": time.monotonic_ns()}
        return {}

    def _close(self) -> None:
        if self._endpoint is not None:
            self._endpoint.close()
            self._endpoint = None

    def __exit__(self, *_exception: object) -> None:
        self._close()


def take_part(root: RootAddress, name: str) -> bool:
    """Be a worker until the benchmark is over; returns False if the leading process was lost."""
    setproctitle.setproctitle(f"tianji: bench {name}")
    with ControlClient(root, watched=True) as control, Worker(control, root, name) as worker:
        return worker.serve()


def main() -> None:
    """Be the worker that the command line names."""
    end_with_parent(signal.SIGKILL)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # The leading process acts on them.
    facts = json.loads(sys.stdin.read())
    sys.exit(0 if take_part(RootAddress(facts["address"], JobKey(**facts["key"])), sys.argv[1]) else 1)


if __name__ == "__main__":
    main()

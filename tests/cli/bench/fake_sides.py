"""Both sides of an experiment over a real engine and real processes, with pipes for the control channel.

Also engines that damage what they carry, on purpose.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from types import ModuleType

from tianji_cli.bench import bandwidth, latency, weights
from tianji_cli.bench.contents import CLOCK, WORD, DamagedMessageError
from tianji_cli.bench.experiment import Outcome, TrialFailed, rest
from tianji_cli.bench.trial import LEAD, Run, Sent, Trial
from tianji_transports import registry
from tianji_transports.core import Full, Loan, Transport
from tianji_transports.shm import ShmTransport
from tianji_transports.wiring import Wiring

ENGINES = ("shm", "zmq")
EXPERIMENTS: Mapping[str, ModuleType] = {"latency": latency, "bandwidth": bandwidth, "weights": weights}
PROCESSES = multiprocessing.get_context("forkserver")
ENOUGH = "enough"
DAMAGED = 15
"""Push, or version, that the engines below spoil: after what warms up."""


# -- engines that spoil something ----------------------------------------------------------------------


class Flips(ShmTransport):
    """Alters one bit in the middle of one message, or of one version."""

    carried = 0

    def push(self, loan: Loan) -> None:
        self.carried += 1
        if self.carried == DAMAGED:
            self._alter(loan.memory)
        super().push(loan)

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        self.carried += 1
        if self.carried == DAMAGED:
            payload = memoryview(bytearray(payload))
            self._alter(payload)
        super().publish(slot, payload, version)

    def _alter(self, memory: memoryview) -> None:
        memory[memory.nbytes // 2] ^= 1


class FlipsClock(Flips):
    """Alters the word where other messages carry a clock."""

    def _alter(self, memory: memoryview) -> None:
        memory[CLOCK * WORD] ^= 1


class FlipsLast(Flips):
    """Alters the last byte."""

    def _alter(self, memory: memoryview) -> None:
        memory[-1] ^= 1


class FlipsBetween(Flips):
    """Alters a byte that only a thorough run looks at."""

    def _alter(self, memory: memoryview) -> None:
        memory[memory.nbytes // 2 + WORD] ^= 1


class Loses(ShmTransport):
    """Drops one message, or one version."""

    carried = 0

    def push(self, loan: Loan) -> None:
        self.carried += 1
        if self.carried == DAMAGED:
            loan.abandon()
        else:
            super().push(loan)

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        self.carried += 1
        if self.carried != DAMAGED:
            super().publish(slot, payload, version)


class Shortens(ShmTransport):
    """Sends the first half of one message."""

    def loan(self, dest: int, channel: str, nbytes: int) -> Loan | Full:
        damaged = self.counters.pushes == DAMAGED - 1
        return super().loan(dest, channel, nbytes // 2 if damaged else nbytes)


class Misnumbers(ShmTransport):
    """Says that one version is a later one."""

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        super().publish(slot, payload, version + (version % (1 << 32) == DAMAGED))


def spoiling(engine: type[Transport]) -> str:
    """Name an engine of this module as the registry does."""
    return f"{engine.__module__}:{engine.__name__}"


# -- a partner -----------------------------------------------------------------------------------------


class PipeTold:
    """What a partner hears of the leading process."""

    def __init__(self, control: Connection) -> None:
        self.descriptors: Sequence[int] = [control.fileno()]
        self._control = control
        self._enough = self._dismissed = False

    def enough(self) -> bool:
        if self._control.poll():
            said = self._control.recv()
            assert said in (ENOUGH, None)
            self._enough = True
            self._dismissed = said is None
        return self._enough

    def next_run(self, endpoint: Transport) -> Run | None:
        """Wait for the next run, at the endpoint: what was pushed last may need it to leave."""
        self._enough = False
        while not self._dismissed:
            if not self._control.poll():
                endpoint.wait(5.0, self.descriptors)
                continue
            said = self._control.recv()
            if said is None or isinstance(said, Run):
                return said
        return None


def take_part(control: Connection, engine: str, trial: Trial, rank: int) -> None:
    """Be a partner: follow run after run until told to go."""
    experiment = EXPERIMENTS[trial.experiment]
    wiring: Wiring = experiment.wiring(trial)
    pushes = [channel for channel in wiring.channels if rank in channel.senders]
    told = PipeTold(control)
    with registry.create(engine, wiring, rank) as endpoint:
        control.send(endpoint.address)
        endpoint.connect(control.recv())
        control.send("connected")
        while (run := told.next_run(endpoint)) is not None:
            try:
                sent = experiment.follow(endpoint, trial, run, rank, told)
                left = [endpoint.unconfirmed(channel.receiver, channel.name) for channel in pushes]
                control.send(f"leaves {left} unclaimed" if any(left) else sent)
            except (DamagedMessageError, TrialFailed) as error:
                control.send(str(error))


# -- the leading side ----------------------------------------------------------------------------------


class PipeWatch:
    """The leading side's view of its partners."""

    def __init__(self, controls: Mapping[int, Connection]) -> None:
        self.descriptors: Sequence[int] = [control.fileno() for control in controls.values()]
        self.offsets_ns: Mapping[int, int] = dict.fromkeys(controls, 0)
        self._controls = controls
        self._sent: dict[int, Sent] = {}

    def start(self, run: Run) -> None:
        self._sent = {}
        for control in self._controls.values():
            with contextlib.suppress(ConnectionError):  # ``look`` says that it is dead.
                control.send(run)

    def look(self) -> None:
        for rank, control in self._controls.items():
            if control.poll():
                try:
                    said = control.recv()
                except (EOFError, ConnectionError):
                    raise TrialFailed(f"rank {rank} died") from None
                if not isinstance(said, Sent):
                    raise TrialFailed(f"rank {rank}: {said}")
                self._sent[rank] = said

    def enough(self) -> None:
        for control in self._controls.values():
            control.send(ENOUGH)

    def sent(self) -> Mapping[int, Sent] | None:
        self.look()
        return self._sent if len(self._sent) == len(self._controls) else None


@dataclass
class Bed:
    """An open trial.

    Attributes:
        trial: what it is.
        endpoint: of rank 0.
        watch: over the partners.
        partners: their processes.
        runs: made so far.
    """

    trial: Trial
    endpoint: Transport
    watch: PipeWatch
    partners: Sequence[multiprocessing.process.BaseProcess]
    runs: int = 0

    def run(self, messages: int, *, thorough: bool = False) -> Outcome:
        """Make a run, as rank 0."""
        self.runs += 1
        run = Run(number=self.runs, messages=messages, thorough=thorough)
        outcome: Outcome = EXPERIMENTS[self.trial.experiment].lead(self.endpoint, self.trial, run, self.watch)
        return outcome

    def call_off(self) -> Mapping[int, Sent]:
        """End the run that failed; what the partners say of it."""
        self.watch.enough()
        while (sent := self.watch.sent()) is None:
            rest(self.endpoint, self.watch.descriptors)
        return sent

    def assert_all_claimed(self) -> None:
        """Check that no message was left behind on this side, and none of its own is unclaimed."""
        report = self.endpoint.close(5.0)
        assert (report.unconfirmed, report.unclaimed) == ({}, {})


def trial_of(
    experiment: str, partners: int = 1, nbytes: int = 4096, window: int = 4, store: str = "copy"
) -> Trial:
    """A trial on this host."""
    return Trial.model_validate(
        {
            "experiment": experiment,
            "job": uuid.uuid4().hex[:12],
            "local": "",
            "remote": "",
            "hosts": dict.fromkeys(range(partners + 1), "here"),
            "nbytes": nbytes,
            "window": window,
            "store": store,
        }
    )


@contextmanager
def opened(trial: Trial, engine: str, partner_engine: str = "") -> Iterator[Bed]:
    """Open both sides of a trial.

    Args:
        trial: what it is.
        engine: of the leading process.
        partner_engine: of its partners, if another one.
    """
    controls: dict[int, Connection] = {}
    partners = []
    try:
        for rank in trial.partners:
            controls[rank], theirs = Pipe()
            process = PROCESSES.Process(
                target=take_part, args=(theirs, partner_engine or engine, trial, rank)
            )
            process.start()
            theirs.close()
            partners.append(process)
        wiring = EXPERIMENTS[trial.experiment].wiring(trial)
        with registry.create(engine, wiring, LEAD) as endpoint:
            addresses = {rank: control.recv() for rank, control in controls.items()}
            endpoint.connect(addresses)
            addresses[LEAD] = endpoint.address
            for rank, control in controls.items():
                control.send({other: address for other, address in addresses.items() if other != rank})
            for control in controls.values():
                assert control.recv() == "connected"
            yield Bed(trial, endpoint, PipeWatch(controls), partners)
    finally:
        _end(controls, partners)


def _end(controls: Mapping[int, Connection], partners: Sequence[multiprocessing.process.BaseProcess]) -> None:
    for control in controls.values():
        with contextlib.suppress(ConnectionError):  # The test has killed that partner.
            control.send(None)
    for process in partners:
        process.join(10.0)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()
    for control in controls.values():
        control.close()

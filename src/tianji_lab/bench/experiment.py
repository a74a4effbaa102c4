"""Interface of the benchmark's experiments: the messages and the protocols of their two sides.

An experiment is a module or an object with three functions::

    wiring(trial) -> Wiring                                   # the channels and slots of the experiment
    lead(endpoint, trial, run, session) -> Outcome            # at rank 0, which measures
    follow(endpoint, trial, run, rank, worker) -> Sent        # at every other rank

Both sides run once for each run, with endpoints that stay open between runs, and leave no message unclaimed.
A side that waits passes the descriptors of ``session`` or ``worker`` to ``Transport.wait``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter

from tianji_cli.errors import RunFailed
from tianji_cli.quantities import several
from tianji_cli.wire.messages import Message
from tianji_lab.bench.record import KB, ExperimentName, Store, Work
from tianji_transports.core import Transport

LEAD: Final = 0
"""Rank of the process that measures: it receives, asks for echoes, or publishes."""


class Case(Message):
    """One point of a figure, for one engine, or for two of them inside and between hosts: ``shm+zmq``."""

    experiment: ExperimentName
    backend: str
    nbytes: int
    actors: int
    messages: int
    window: int
    sample_time_s: float = 0.0
    work: Work = "sleep"
    store: Store = "copy"

    @property
    def engines(self) -> tuple[str, str]:
        """The engine inside a host, and the one between hosts."""
        local, _, remote = self.backend.partition("+")
        return local, remote or local

    @property
    def alone(self) -> Case:
        """The same case with one actor, which measures the terms of Equation 1."""
        return self.model_copy(update={"actors": 1})

    def __str__(self) -> str:
        """Name the case for a line of progress, or for an error."""
        time = f", sample time {self.sample_time_s:g} s" if self.sample_time_s else ""
        return f"{self.backend}, {self.nbytes / KB:g} KB, {several(self.actors, 'actor')}{time}"


class Trial(Case):
    """A case with endpoints that are opened together, for one or more runs.

    Attributes:
        raw: use a plain loop over the engine's library, in place of the engine.
        hosts: host of each rank; rank 0 leads.
    """

    raw: bool = False
    job: str
    hosts: dict[int, str]

    @property
    def workers(self) -> tuple[int, ...]:
        """All ranks except the leading one."""
        return tuple(rank for rank in sorted(self.hosts) if rank != LEAD)


class Run(Message):
    """Do the trial's work once.

    Attributes:
        number: of the run; part of every stamp.
        thorough: check every byte of every message, and time nothing.
    """

    step: Literal["run"] = "run"
    number: int
    messages: int
    thorough: bool


class Open(Message):
    """Open the endpoint of a rank and answer ``{"address": ...}``."""

    step: Literal["open"] = "open"
    trial: Trial
    rank: int


class Connect(Message):
    """Learn the addresses of the other ranks."""

    step: Literal["connect"] = "connect"
    addresses: dict[int, str]


class Enough(Message):
    """End a run; the answer to ``Run`` follows.

    Attributes:
        run: number of the run. A worker may receive this before it has begun the run.
    """

    step: Literal["enough"] = "enough"
    run: int


class Close(Message):
    """Close the endpoint."""

    step: Literal["close"] = "close"


class ReadClock(Message):
    """Answer ``{"now_ns": ...}`` at once."""

    step: Literal["read_clock"] = "read_clock"


Step = Open | Connect | Run | Enough | Close | ReadClock
STEP: Final[TypeAdapter[Step]] = TypeAdapter(Annotated[Step, Field(discriminator="step")])


class Sent(Message):
    """A worker's report of a run.

    Attributes:
        make_s: mean time to make a message (T_sp in Equation 1).
        send_s: mean time to push a message, without waits for credit (T_sd).
        refused: loans refused for lack of credit.
    """

    messages: int
    make_s: float = 0.0
    send_s: float = 0.0
    cpu_s: float
    refused: int = 0


PATIENCE_S: Final = 60.0
"""Maximum seconds without any event before a run is given up."""
WAIT_S: Final = 0.5
"""Longest sleep of either side, in seconds."""


class TrialFailed(RunFailed):
    """A run has no result: a message was missing, reordered or damaged, or a process died."""


@dataclass(frozen=True)
class Outcome:
    """Measurements of one run.

    Attributes:
        seconds: until the last message that counts.
        latencies_ns: of the messages that count; empty if the experiment has none.
        receive_s: mean time to receive and store a message; 0 if the experiment does not measure it.
    """

    seconds: float
    messages: int
    latencies_ns: NDArray[np.int64]
    receive_s: float
    cpu_s: float
    sent: Mapping[int, Sent]


class Leading(Protocol):
    """Interface of the leading process to the workers of a run; ``workers.Session`` implements it.

    Attributes:
        descriptors: one of them is readable when a worker may have sent something.
        offsets_ns: of each rank's clock, relative to this process's clock.
    """

    descriptors: Sequence[int]
    offsets_ns: Mapping[int, int]

    def start(self, run: Run) -> None:
        """Start the run in every worker."""

    def look(self) -> None:
        """Receive the workers' messages; never waits."""

    def enough(self) -> None:
        """End the run in every worker."""

    def sent(self) -> Mapping[int, Sent] | None:
        """The workers' reports of the run, once all have ended it."""


class Following(Protocol):
    """Interface of a worker's part of a run to its process; ``worker.Worker`` implements it.

    Attributes:
        descriptors: one of them is readable when the leading process may have sent something.
    """

    descriptors: Sequence[int]

    def enough(self) -> bool:
        """Whether the leading process has ended the run."""


class Deadline:
    """Time limit of a wait; each event renews it."""

    def __init__(self, what: str, patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._patience_s = patience_s
        self._until_s = time.monotonic() + patience_s

    def check(self) -> None:
        """Look at the clock.

        Raises:
            TrialFailed: nothing has come for too long.
        """
        if time.monotonic() > self._until_s:
            raise TrialFailed(f"nothing came for {self._patience_s:g} s; waited for {self._what}")

    def renew(self) -> None:
        """Begin the time limit anew after an event."""
        self._until_s = time.monotonic() + self._patience_s


def rest(endpoint: Transport, descriptors: Sequence[int], deadline: Deadline | None = None) -> None:
    """Sleep until the endpoint or one of the descriptors has news, for ``WAIT_S`` at most.

    Raises:
        TrialFailed: the deadline has passed.
    """
    endpoint.wait(WAIT_S, descriptors)
    if deadline is not None:
        deadline.check()

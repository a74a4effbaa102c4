"""The two sides of an experiment: what they send each other, and what each may rely on.

An experiment is a module or an object with three functions::

    wiring(trial) -> Wiring                                   # which channels and slots it needs
    lead(endpoint, trial, run, session) -> Outcome            # at rank 0, which measures
    follow(endpoint, trial, run, rank, worker) -> Sent        # at every other rank

Both sides are called once for each run, with endpoints that stay open between runs, and leave nothing
unclaimed behind. A side that waits passes the descriptors of ``session`` or ``worker`` to ``Transport.wait``.
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
from tianji_cli.wire.messages import Message
from tianji_lab.bench.record import ExperimentName, Store, Work
from tianji_transports.core import Transport

LEAD: Final = 0
"""Rank of the process that measures: it receives, asks for echoes, or publishes."""


class Trial(Message):
    """Endpoints of one kind, opened together: one or more runs are made with them.

    Attributes:
        raw: by a plain loop over the engine's library, in place of the engine.
        hosts: host of each rank; rank 0 leads.
    """

    experiment: ExperimentName
    raw: bool = False
    job: str
    local: str
    remote: str
    hosts: dict[int, str]
    nbytes: int
    window: int
    sample_time_s: float = 0.0
    work: Work = "sleep"
    store: Store = "copy"

    @property
    def workers(self) -> tuple[int, ...]:
        """Every rank but the one that leads."""
        return tuple(rank for rank in sorted(self.hosts) if rank != LEAD)


class Run(Message):
    """Do the trial's work once.

    Attributes:
        number: of the run; part of every stamp.
        thorough: every byte of every message is checked, and nothing is timed.
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
    """Learn where the others are."""

    step: Literal["connect"] = "connect"
    addresses: dict[int, str]


class Enough(Message):
    """End a run; its answer follows.

    Attributes:
        run: its number. A worker may hear that a run shall end before it has begun it.
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
    """What a worker says of a run.

    Attributes:
        make_s: mean time to make one (T_sp in Equation 1).
        send_s: mean time to push one, without waits for credit (T_sd).
        refused: loans refused for want of credit.
    """

    messages: int
    make_s: float = 0.0
    send_s: float = 0.0
    cpu_s: float
    refused: int = 0


PATIENCE_S: Final = 60.0
"""How long nothing may happen before a run is given up."""
WAIT_S: Final = 0.5
"""Longest sleep of either side."""


class TrialFailed(RunFailed):
    """A run has no result: a message was missing, reordered or damaged, or a process died. It says which."""


@dataclass(frozen=True)
class Outcome:
    """What one run measured.

    Attributes:
        seconds: until the last message that counts.
        latencies_ns: of those messages; empty if the experiment has none.
        receive_s: mean time to receive and store one; 0 if the experiment has none.
    """

    seconds: float
    messages: int
    latencies_ns: NDArray[np.int64]
    receive_s: float
    cpu_s: float
    sent: Mapping[int, Sent]


class Leading(Protocol):
    """What the leading process of a run needs of its workers: ``workers.Session``.

    Attributes:
        descriptors: one of them is readable when a worker may have said something.
        offsets_ns: how far each rank's clock is ahead of this one's.
    """

    descriptors: Sequence[int]
    offsets_ns: Mapping[int, int]

    def start(self, run: Run) -> None:
        """Have every worker begin."""

    def look(self) -> None:
        """Receive what the workers have sent; never waits."""

    def enough(self) -> None:
        """Have every worker end the run."""

    def sent(self) -> Mapping[int, Sent] | None:
        """The workers' reports of the run, once all have ended it."""


class Following(Protocol):
    """What a worker's part of a run needs of its process: ``worker.Worker``.

    Attributes:
        descriptors: one of them is readable when the leading process may have said something.
    """

    descriptors: Sequence[int]

    def enough(self) -> bool:
        """Whether the run shall end."""


class Deadline:
    """Gives up when nothing has happened for too long."""

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
        """Note that something has come."""
        self._until_s = time.monotonic() + self._patience_s


def rest(endpoint: Transport, descriptors: Sequence[int], deadline: Deadline | None = None) -> None:
    """Sleep until the endpoint or one of the descriptors has news, for ``WAIT_S`` at most.

    Raises:
        TrialFailed: the deadline has passed.
    """
    endpoint.wait(WAIT_S, descriptors)
    if deadline is not None:
        deadline.check()

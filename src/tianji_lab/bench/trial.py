"""What the two sides of a measurement say to each other: the trial, and the steps a partner is asked to do.

Plain data, sent as JSON over the control channel.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from tianji_cli.wire.messages import Message
from tianji_lab.bench.record import Experiment, Store, Work

LEAD: Final = 0
"""Rank of the process that measures: it receives, asks for echoes, or publishes."""


class Trial(Message):
    """Endpoints of one kind, opened together: one or more runs are made with them.

    Attributes:
        experiment: what is measured.
        raw: by a plain loop over the engine's library, in place of the engine.
        job: names the transport's job.
        local: engine of the edges inside a host.
        remote: engine of the edges between hosts.
        hosts: host of each rank; rank 0 leads.
        nbytes: size of a message.
        window: messages that a sender may have unclaimed.
        sample_time_s: what an actor takes for a sample.
        work: how it passes that time.
        store: whether the receiver copies messages into its own memory.
    """

    experiment: Experiment
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
    def partners(self) -> tuple[int, ...]:
        """Every rank but the one that leads."""
        return tuple(rank for rank in sorted(self.hosts) if rank != LEAD)


class Run(Message):
    """Do the trial's work once.

    Attributes:
        number: of the run; part of every stamp.
        messages: that count.
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
        run: its number. A partner may hear that a run shall end before it has begun it.
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
    """What a partner says of a run.

    Attributes:
        messages: that it pushed, or received.
        make_s: mean time to make one (T_sp in Equation 1).
        send_s: mean time to push one, without waits for credit (T_sd).
        cpu_s: CPU seconds of its process.
        refused: loans refused for want of credit.
    """

    messages: int
    make_s: float = 0.0
    send_s: float = 0.0
    cpu_s: float
    refused: int = 0

"""From what the roles of a running job did to what holds it back: the capacities of the model, observed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from tianji_cli.telemetry.bottleneck import (
    OWN_CORES,
    Bottleneck,
    beside_busy_cores,
    beside_idle_cores,
    bottleneck,
    in_step,
    on_shared_cores,
)

Overlap = Literal["free", "in step", "none"]
"""Who may work while others do: all of them; actors only when the learner waits for them, and the other way
round (``mode = "sync"``); nobody, where all roles of a group are one process (``inproc``)."""

MOSTLY: Final = 0.5
"""A side that is busy for a smaller share of the time waits most of it."""

IDLE: Final = 0.5
"""Cores that are idle for less time than this of one are at work."""

BOUND_BY_WAITING: Final = Bottleneck(
    "communication-bound",
    "actors and learner both wait most of the time for what is on its way between them; "
    "a larger distribution.actor.window, or another transport, may help",
)


@dataclass(frozen=True)
class Work:
    """What all roles of one kind did, so far or in some time.

    Attributes:
        count: samples that they produced or received, or uses that they made.
        busy_s: seconds that they worked, all of them together.
        running_s: seconds that they were there, all of them together.
        members: how many they are.
    """

    count: float = 0.0
    busy_s: float = 0.0
    running_s: float = 0.0
    members: int = 0

    def __add__(self, other: Work) -> Work:
        """What these and those did."""
        return Work(
            self.count + other.count,
            self.busy_s + other.busy_s,
            self.running_s + other.running_s,
            self.members + other.members,
        )

    def since(self, earlier: Work) -> Work:
        """What the same roles did after an earlier moment."""
        return Work(
            self.count - earlier.count,
            self.busy_s - earlier.busy_s,
            self.running_s - earlier.running_s,
            self.members,
        )

    @property
    def capacity(self) -> float:
        """How much they would do each second if they never waited.

        >>> Work(count=300.0, busy_s=1.5, running_s=10.0, members=2).capacity
        400.0
        """
        return self.members * self.count / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """Share of the time that they worked, 0 to 1."""
        return self.busy_s / self.running_s if self.running_s > 0 else 0.0


@dataclass(frozen=True)
class Observation:
    """What a job did, so far or in some time.

    Attributes:
        actors: with the samples that they produced.
        buffers: with the samples that they received.
        learners: with the uses that they made; a buffer that takes turns with one makes it as much busier.
    """

    actors: Work = Work()
    buffers: Work = Work()
    learners: Work = Work()

    def __add__(self, other: Observation) -> Observation:
        """What these and those did."""
        return Observation(
            self.actors + other.actors, self.buffers + other.buffers, self.learners + other.learners
        )

    def since(self, earlier: Observation) -> Observation:
        """What the same job did after an earlier moment."""
        return Observation(
            self.actors.since(earlier.actors),
            self.buffers.since(earlier.buffers),
            self.learners.since(earlier.learners),
        )


@dataclass(frozen=True)
class HostCores:
    """Cores of the host on which all of a job runs.

    Attributes:
        there: how many.
        shared: roles share them.
        idle: that were at work with nothing, on average.
        would_use_them: settings with which actors would be at work on idle cores.
    """

    there: int
    shared: bool
    idle: float
    would_use_them: str


def observed_bottleneck(
    observation: Observation, rho: float, overlap: Overlap, cores: HostCores | None = None
) -> Bottleneck | None:
    """Name what holds a running job back.

    Args:
        observation: what it did.
        rho: uses of each sample.
        overlap: who may work while others do.
        cores: of its host; None where there are several, or nothing is known of them.

    Returns:
        None if one of the sides has not worked yet.
    """
    actors, buffers, learners = observation.actors, observation.buffers, observation.learners
    production, consumption = actors.capacity * rho, learners.capacity
    reception = buffers.capacity * rho
    if not (production > 0 and reception > 0 and consumption > 0):
        return None
    if overlap == "none":
        return on_shared_cores(OWN_CORES, actors.busy_s, 0.0, learners.busy_s)
    if overlap == "in step":
        return in_step(production, consumption)
    if cores is not None and cores.shared and cores.idle < IDLE:
        return beside_busy_cores(cores.there, actors.busy_s, learners.busy_s)
    found = bottleneck(production, reception, consumption)
    if found.kind != "communication-bound" and max(actors.busy, learners.busy) < MOSTLY:
        return BOUND_BY_WAITING
    if found.kind == "sample-bound" and cores is not None and cores.idle >= IDLE:
        found = beside_idle_cores(cores.idle, cores.there, cores.would_use_them)
    return found

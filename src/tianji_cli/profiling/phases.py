"""What is measured one after another: which probes run which roles at the same time, and on which cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tianji_cli.profiling.crew import MOST_PROBES

SHARES: Final = (2, 4)
"""L: learners among whom a batch is divided, besides one."""
LEARNER: Final = 0
"""Number of the probe that is the learner, wherever there is one."""


@dataclass(frozen=True)
class Phase:
    """Roles that run at the same time.

    Attributes:
        num_envs: of each actor; of those whose fragments the learner is fed, too.
        actors: that run side by side.
        learner_cores: of the learner; 0 if there is none.
        share: L, the batch is divided among so many learners.
    """

    num_envs: int
    actors: int = 0
    learner_cores: int = 0
    share: int = 1

    def __str__(self) -> str:
        """Say it in a line of progress."""
        actors = f"{_several(self.actors, 'actor')} of {_several(self.num_envs, 'environment')}"
        if not self.learner_cores:
            return actors
        share = f" with 1/{self.share} of the batch" if self.share > 1 else ""
        learner = f"learner on {_several(self.learner_cores, 'core')}{share}"
        if self.actors:
            return f"{learner} beside {actors}"
        return f"{learner}, fed by actors of {_several(self.num_envs, 'environment')}"


@dataclass(frozen=True)
class Place:
    """Where a role runs.

    Attributes:
        role: actor, or learner with its buffer.
        cores: logical CPUs that it may use.
        threads: compute threads.
    """

    role: Literal["actor", "learner"]
    cores: tuple[int, ...]
    threads: int


@dataclass(frozen=True)
class Room:
    """The cores to measure on; roles are placed as ``cluster.plan`` places them.

    Attributes:
        cores: logical CPUs.
        actor_cores: of each actor.
        pinned: every process has cores of its own.
    """

    cores: tuple[int, ...]
    actor_cores: int = 1
    pinned: bool = True

    @property
    def probes(self) -> int:
        """How many processes all phases need."""
        return max(self.actors_beside(0), 1 + self.actors_beside(1))

    def actors_beside(self, learner_cores: int) -> int:
        """How many actors there is room for beside a learner; 0 cores are no learner."""
        free = len(self.cores) - learner_cores
        if free < 1:
            return 0
        return min(max(free // self.actor_cores, 1), MOST_PROBES - (learner_cores > 0))

    def is_crowded(self, phase: Phase) -> bool:
        """Say whether several roles run, and no more would have had room."""
        roles = phase.actors + (phase.learner_cores > 0)
        return roles > 1 and phase.actors == self.actors_beside(phase.learner_cores)

    def places(self, phase: Phase) -> dict[int, Place]:
        """Give each role of a phase a probe and cores: the learner the first, actors those behind it.

        Without a learner, actors have the last ones.
        """
        given: dict[int, Place] = {}
        probe, core = self.probes - phase.actors, len(self.cores) - phase.actors * self.actor_cores
        if phase.learner_cores:
            given[LEARNER] = self._place("learner", 0, phase.learner_cores)
            probe, core = LEARNER + 1, phase.learner_cores
        for number in range(phase.actors):
            first = max(core + number * self.actor_cores, 0)
            given[probe + number] = self._place("actor", first, self.actor_cores)
        return given

    def core_of(self, number: int) -> tuple[int, ...]:
        """Cores for the ``number``-th of several processes that want one each."""
        return (self.cores[number],) if self.pinned else self.cores

    def _place(self, role: Literal["actor", "learner"], first: int, number: int) -> Place:
        return Place(role, self.cores[first : first + number] if self.pinned else self.cores, number)


def all_phases(room: Room, num_envs: int, options: Sequence[int], shares: Sequence[int]) -> list[Phase]:
    """List what is measured in each round; whatever runs beside something has run alone before.

    Args:
        room: the cores.
        num_envs: environments of an actor, as configured.
        options: other numbers of them.
        shares: numbers of learners among whom a batch is divided, besides one.
    """
    cores = len(room.cores)
    phases: list[Phase] = []
    for option in sorted({*options, num_envs}):
        phases += _alone_and_beside(room, option, learner_cores=1)
    phases += [Phase(num_envs, actors=actors) for actors in powers_of_two(room.actors_beside(0))]
    for learner_cores in powers_of_two(cores):
        phases += _alone_and_beside(room, num_envs, learner_cores)
    if cores > 1:
        for share in shares:
            phases += _alone_and_beside(room, num_envs, 1, share)[1:]
    return list(dict.fromkeys(phases))


def powers_of_two(most: int) -> list[int]:
    """List 1, 2, 4, ... and the last number itself.

    >>> powers_of_two(6), powers_of_two(1), powers_of_two(0)
    ([1, 2, 4, 6], [1], [])
    """
    powers = [1 << exponent for exponent in range(most.bit_length())]
    return sorted({*powers, most}) if most else []


def _alone_and_beside(room: Room, num_envs: int, learner_cores: int, share: int = 1) -> list[Phase]:
    """List an actor alone, the learner alone, and the learner beside all actors that have room."""
    phases = [Phase(num_envs, actors=1), Phase(num_envs, 0, learner_cores, share)]
    if actors := room.actors_beside(learner_cores):
        phases.append(Phase(num_envs, actors, learner_cores, share))
    return phases


def _several(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")

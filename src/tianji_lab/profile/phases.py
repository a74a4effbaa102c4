"""What is measured one after another: which probes run which roles at the same time, and on which cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from tianji_cli.quantities import several
from tianji_lab.model.split import powers_of_two
from tianji_lab.profile.probe.crew import MOST_PROBES

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
        unpinned: all of them share all cores, which are too few to have one each.
    """

    num_envs: int
    actors: int = 0
    learner_cores: int = 0
    share: int = 1
    unpinned: bool = False

    def __str__(self) -> str:
        """Say it in a line of progress."""
        actors = f"{several(self.actors, 'actor')} of {several(self.num_envs, 'environment')}"
        if not self.learner_cores:
            return actors
        share = f" with 1/{self.share} of the batch" if self.share > 1 else ""
        learner = f"learner on {several(self.learner_cores, 'core')}{share}"
        if self.unpinned:
            return f"learner and {actors} on the same cores"
        if self.actors:
            return f"{learner} beside {actors}"
        return f"{learner}, fed by actors of {several(self.num_envs, 'environment')}"


@dataclass(frozen=True)
class Part:
    """What a probe builds, and runs in several phases.

    Attributes:
        role: actor, or learner with its buffer.
        num_envs: of each actor.
        share: L, the learner's batch is divided among so many.
    """

    role: Literal["actor", "learner"]
    num_envs: int
    share: int = 1

    @property
    def key(self) -> str:
        """Its name in a probe."""
        return f"{self.role}-{self.num_envs}-{self.share}"


@dataclass(frozen=True)
class Place:
    """Where a part runs.

    Attributes:
        part: what runs.
        cores: logical CPUs that it may use.
        threads: compute threads.
    """

    part: Part
    cores: tuple[int, ...]
    threads: int


@dataclass(frozen=True)
class Room:
    """The cores to measure on; roles are placed as ``cluster.plan`` places them.

    Attributes:
        cores: logical CPUs, no more than probes can be put to work on.
        actor_cores: of each actor.
    """

    cores: tuple[int, ...]
    actor_cores: int = 1

    @classmethod
    def of(cls, cores: Sequence[int], actor_cores: int) -> Room:
        """Take as many of the machine's cores as there can be probes for: with them all it is crowded."""
        return cls(tuple(cores[: (MOST_PROBES - 1) * actor_cores]), actor_cores)

    @property
    def probes(self) -> int:
        """How many processes all phases need: a learner, and an actor for each core."""
        return 1 + self.actors_beside(0)

    def actors_beside(self, learner_cores: int) -> int:
        """How many actors there is room for beside a learner; 0 cores are no learner."""
        free = len(self.cores) - learner_cores
        if free < 1:
            return 0
        return max(free // self.actor_cores, 1)

    def is_crowded(self, phase: Phase) -> bool:
        """Say whether several roles run, and no more would have had room."""
        if phase.unpinned:
            return True
        roles = phase.actors + (phase.learner_cores > 0)
        return roles > 1 and phase.actors == self.actors_beside(phase.learner_cores)

    def places(self, phase: Phase) -> dict[int, Place]:
        """Give each role of a phase a probe and cores: the learner the first, actors those behind it.

        Without a learner, actors have the last ones. Unpinned roles have all of them.
        """
        if phase.unpinned:
            parts = [Part("learner", phase.num_envs), *(phase.actors * [Part("actor", phase.num_envs)])]
            return {number: Place(part, self.cores, 1) for number, part in enumerate(parts)}
        given: dict[int, Place] = {}
        probe, core = self.probes - phase.actors, len(self.cores) - phase.actors * self.actor_cores
        if phase.learner_cores:
            learner = Part("learner", phase.num_envs, phase.share)
            given[LEARNER] = self._place(learner, 0, phase.learner_cores)
            probe, core = LEARNER + 1, phase.learner_cores
        for number in range(phase.actors):
            first = max(core + number * self.actor_cores, 0)
            given[probe + number] = self._place(Part("actor", phase.num_envs), first, self.actor_cores)
        return given

    def _place(self, part: Part, first: int, number: int) -> Place:
        return Place(part, self.cores[first : first + number], number)


def all_phases(room: Room, num_envs: int, options: Sequence[int], shares: Sequence[int]) -> list[Phase]:
    """List what is measured in each round, most needed first: time may be over before the end.

    What is configured comes first, then the smallest changes to it: a second core, a second actor, and other
    numbers of environments, nearest ones first. Whatever runs beside something has run alone before.

    Args:
        room: the cores.
        num_envs: environments of an actor, as configured.
        options: other numbers of them.
        shares: numbers of learners among whom a batch is divided, besides one.
    """
    unpinned = Phase(num_envs, actors=room.actors_beside(0), learner_cores=1, unpinned=True)
    phases = [Phase(num_envs, actors=1), *_learner(room, num_envs), unpinned]
    steps = _up_to(len(room.cores))
    changes = [_changed(room, num_envs, number) for number in steps if number > 1]
    nearest = sorted(options, key=lambda option: max(option / num_envs, num_envs / option))
    sizes = [[Phase(option, actors=1), *_learner(room, option)] for option in nearest]
    for group in (*changes[:1], *sizes, *changes[1:]):
        phases += group
    if len(room.cores) > 1:
        for share in shares:
            phases += _learner(room, num_envs, share=share)
    return list(dict.fromkeys(phases))


def _changed(room: Room, num_envs: int, number: int) -> list[Phase]:
    """List so many actors side by side, and a learner with so many cores."""
    return [Phase(num_envs, actors=min(number, room.actors_beside(0))), *_learner(room, num_envs, number)]


def _up_to(most: int) -> list[int]:
    """List powers of two, and the last number itself."""
    return sorted({*powers_of_two(most), most} - {0})


def _learner(room: Room, num_envs: int, cores: int = 1, share: int = 1) -> list[Phase]:
    """List a learner alone, and the same beside all actors that have room."""
    phases = [Phase(num_envs, 0, cores, share)]
    if actors := room.actors_beside(cores):
        phases.append(Phase(num_envs, actors, cores, share))
    return phases

"""A split of cores between learners and actors: what `tianji profile` chooses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """Who gets how many cores (M_L + M_A = M in Equation 4).

    Attributes:
        learners: L, of a group.
        learner_cores: cores of each.
        actors: A, of a group.
        num_envs: N, environments of each actor.
        groups: G, learner sets with their own buffers and actors.
        actor_cores: cores of each actor.
        buffer_cores: cores of each group's buffer; 0 where it takes turns with a learner.
        pinned: each process is tied to cores of its own, as far as there are enough; else the scheduler deals
            all cores out among all of them, and what one leaves idle another has.
    """

    learners: int
    learner_cores: int
    actors: int
    num_envs: int
    groups: int = 1
    actor_cores: int = 1
    buffer_cores: int = 0
    pinned: bool = True

    @property
    def cores_of_learners(self) -> int:
        """M_L: cores of all learners, with those of buffers that have processes of their own.

        >>> Split(learners=2, learner_cores=4, actors=8, num_envs=1).cores_of_learners
        8
        """
        return self.groups * (self.learners * self.learner_cores + self.buffer_cores)

    @property
    def cores_of_actors(self) -> int:
        """M_A: cores of all actors."""
        return self.groups * self.actors * self.actor_cores

    @property
    def cores(self) -> int:
        """M: all of them, as if no role shared any."""
        return self.cores_of_learners + self.cores_of_actors

    @property
    def name(self) -> str:
        """As the paper writes it, with the number of groups before it if there are several.

        >>> Split(2, 4, 8, 64).name, Split(1, 1, 3, 64, groups=4).name
        ('L2A8', '4 x L1A3')
        """
        of_group = f"L{self.learners}A{self.actors}"
        return of_group if self.groups == 1 else f"{self.groups} x {of_group}"


def powers_of_two(most: int) -> list[int]:
    """List the numbers of cores, actors or learners that are looked at where not every one is.

    >>> powers_of_two(6), powers_of_two(1), powers_of_two(0)
    ([1, 2, 4], [1], [])
    """
    return [1 << exponent for exponent in range(most.bit_length())]

"""Who has which cores, and who has to take turns on them."""

from __future__ import annotations

from dataclasses import dataclass

from tianji_cli.throughput.rates import PerRole
from tianji_cli.throughput.split import Split
from tianji_cli.throughput.workload import Workload

NOBODY = PerRole(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Seats:
    """Cores of a split's roles, over all groups.

    Attributes:
        there: cores in all.
        cores: that each role keeps at work while it works.
        of_one: of them those of one actor, one buffer, one learner.
        pace: share of the cores they want that the actors have.
        turns: of ``cores`` those of roles that take turns with other roles.
        shared: cores on which they do.
    """

    there: float
    cores: PerRole
    of_one: PerRole
    pace: float = 1.0
    turns: PerRole = NOBODY
    shared: float = 0.0

    def crowd(self, busy: PerRole) -> PerRole:
        """Say which share of the other cores is at work, as one actor, one buffer and one learner find it.

        Args:
            busy: share of the time that each role works.
        """
        at_work = sum(share * cores for share, cores in zip(busy, self.cores, strict=True))
        crowd = PerRole(
            *(
                min((at_work - share * own) / (self.there - own), 1.0) if self.there > own else 0.0
                for share, own in zip(busy, self.of_one, strict=True)
            )
        )
        # A buffer without cores of its own is where its learner is.
        return crowd if self.cores.buffers else crowd._replace(buffers=crowd.learners)

    def needs(self, rates: PerRole) -> PerRole:
        """Core seconds that each of the roles which take turns needs for a sample use; 0 for the others.

        Args:
            rates: what each role could do with its cores to itself, in uses a second.
        """
        return PerRole(*(cores / rate for cores, rate in zip(self.turns, rates, strict=True)))


def seats_of(split: Split, workload: Workload, cores: int | None) -> Seats:
    """Seat the roles of a split as the plan of a job does: learners first, then buffers, then actors.

    Args:
        split: the split.
        workload: says which roles have processes of their own.
        cores: that there are; None for as many as the split wants.
    """
    groups = split.groups
    if workload.one_process:  # A thread has all roles of a group, whatever cores they are given.
        wanted = PerRole(groups * split.actors, 0.0, groups)
        return Seats(groups, wanted, PerRole(1.0, 0.0, 1.0), turns=wanted, shared=groups)
    of_one = PerRole(
        split.actor_cores, 0.0 if workload.beside_learner else split.buffer_cores, split.learner_cores
    )
    wanted = PerRole(
        split.cores_of_actors, groups * of_one.buffers, groups * split.learners * split.learner_cores
    )
    there = sum(wanted) if cores is None else min(sum(wanted), cores)
    beside_learners = there - wanted.learners
    if beside_learners <= 0:
        return Seats(there, wanted, of_one, turns=wanted, shared=there)
    of_actors = beside_learners - wanted.buffers
    if of_actors <= 0:
        return Seats(there, wanted, of_one, turns=wanted._replace(learners=0.0), shared=beside_learners)
    return Seats(there, wanted._replace(actors=of_actors), of_one, pace=of_actors / wanted.actors)

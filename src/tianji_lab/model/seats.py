"""Which roles have which cores, and which of them share cores."""

from __future__ import annotations

from dataclasses import dataclass

from tianji_lab.model.rates import PerRole
from tianji_lab.model.split import Split
from tianji_lab.model.workload import Workload

NOBODY = PerRole(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Seats:
    """Cores of a split's roles, over all groups.

    Attributes:
        there: cores in all.
        cores: that each role keeps at work while it works.
        of_one: of them those of one actor, one buffer, one learner.
        pace: share of the cores they want that the actors have, where they share them with no other role.
        turns: of ``cores`` those of roles that share them with other roles.
        shared: cores that these have together.
        at_once: actors wait for the learner at the same time, and go on at the same time. Else one of them
            goes on when another begins to wait, and shared cores are never idle as long as there is work.
    """

    there: float
    cores: PerRole
    of_one: PerRole
    pace: float = 1.0
    turns: PerRole = NOBODY
    shared: float = 0.0
    at_once: bool = False

    def crowd(self, busy: PerRole) -> PerRole:
        """Say which share of the other cores is at work, as one actor, one buffer and one learner find it.

        Args:
            busy: share of the time that each role works.
        """
        at_work = min(sum(share * cores for share, cores in zip(busy, self.cores, strict=True)), self.there)
        crowd = PerRole(
            *(
                min(max(at_work - share * own, 0.0) / (self.there - own), 1.0) if self.there > own else 0.0
                for share, own in zip(busy, self.of_one, strict=True)
            )
        )
        # A buffer without cores of its own is where its learner is.
        return crowd if self.cores.buffers else crowd._replace(buffers=crowd.learners)

    def speed(self, cores: float) -> float:
        """Say how fast roles go that share cores, as a share of how fast they go on cores of their own.

        Args:
            cores: that those of them which are at work would keep at work.
        """
        return min(self.shared / cores, 1.0) if cores else 1.0

    def together_s(self, needs_s: PerRole) -> float:
        """Reckon how long roles that share cores take for a piece of work of each.

        What is at work has the same share of the cores. Where all of it begins at once, the roles that need
        least end first, and what is left then may be too little for all cores.

        >>> cores, of_one, needs_s = PerRole(2, 0, 1), PerRole(1, 0, 1), PerRole(2.0, 0.0, 3.0)
        >>> Seats(2, cores, of_one, turns=cores, shared=2).together_s(needs_s)  # (2 x 2 + 3) / 2
        3.5
        >>> Seats(2, cores, of_one, turns=cores, shared=2, at_once=True).together_s(needs_s)  # 3, then 1
        4.0

        Args:
            needs_s: seconds of each role with all of its cores to itself.
        """
        if not self.at_once:
            core_s = sum(need_s * cores for need_s, cores in zip(needs_s, self.turns, strict=True))
            return core_s / self.shared if self.shared else 0.0
        took_s = done_s = 0.0
        at_work = sum(self.turns)
        for need_s, cores in sorted(zip(needs_s, self.turns, strict=True)):
            if cores:
                took_s += (need_s - done_s) / self.speed(at_work)
                done_s, at_work = need_s, at_work - cores
        return took_s


def seats_of(split: Split, workload: Workload, cores: int | None) -> Seats:
    """Seat the roles of a split as the plan of a job does: learners first, then buffers, then actors.

    Without pins the scheduler deals cores out, and all roles share them if they want more than there are.

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
    of_actors = beside_learners - wanted.buffers
    if of_actors >= wanted.actors:
        return Seats(there, wanted, of_one)
    is_released_whole = workload.rollout_steps is not None
    at_once = is_released_whole and split.actors <= workload.fragments_per_rollout(split.num_envs)
    if not split.pinned or beside_learners <= 0:
        return Seats(there, wanted, of_one, turns=wanted, shared=there, at_once=at_once)
    if of_actors <= 0:
        return Seats(there, wanted, of_one, turns=wanted._replace(learners=0.0), shared=beside_learners)
    return Seats(there, wanted._replace(actors=of_actors), of_one, pace=of_actors / wanted.actors)

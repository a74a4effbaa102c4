"""What actors, buffers and learners could each do, which of them share cores, and how they slow one another.

The busier the others' cores, the dearer the work on one's own. A role that waits leaves cores idle, so
throughput and contention depend on each other. With a throughput ``T``, seconds ``t + d c`` that a role's
work for a sample use takes under contention ``c``, and ``M`` cores of which one of the role has ``m``, the
role is at work for a share ``u = T (t + d c)`` of the time and finds ``c = (B - m u) / (M - m)``, at most 1,
where ``B`` is the sum of all roles' ``u`` times their cores. For a given ``T`` all of this is linear but for
that most. What comes of it is the largest ``T`` with which no role's ``u`` is more than 1, nor the time that
roles which share cores take together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from tianji_lab.model.costs import Costs, Split, Workload


class PerRole(NamedTuple):
    """A quantity of the actors, of the buffers and of the learners."""

    actors: float
    buffers: float
    learners: float


@dataclass(frozen=True)
class Seconds:
    """How long each piece of work takes, where the other cores are as busy as they are.

    Attributes:
        fragment: an actor, to make a fragment and push it.
        transfer: the link of the learner's host, to carry it; 0 where there is none.
        receive: the buffer, to receive and store it.
        serve: the buffer, to draw a batch and hand it over.
        take: the learner, to receive a batch from a buffer in another process.
        publish: the learner, for each version.
        hand_in: a group, for each averaging of parameters over groups.
        average: the root, for each of these of each group.
    """

    fragment: float
    transfer: float
    receive: float
    serve: float
    take: float
    update: float
    gradients: float
    publish: float
    hand_in: float
    average: float

    @classmethod
    def of(cls, costs: Costs, contention: PerRole) -> Seconds:
        """Read them from the costs of a split."""
        buffer, learner, exchange = costs.buffer, costs.learner, costs.exchange
        link = exchange.link_bytes_per_s
        return cls(
            fragment=costs.actor.sample.at(contention.actors) + costs.actor.send_s,
            transfer=0.0 if link is None else exchange.crossing * exchange.fragment_bytes / link,
            receive=buffer.receive_s + buffer.store.at(contention.buffers),
            serve=buffer.draw.at(contention.buffers) + buffer.hand_over_s,
            take=learner.take_s,
            update=learner.update.at(contention.learners),
            gradients=exchange.gradients_s,
            publish=learner.publish.at(contention.learners),
            hand_in=exchange.group_s,
            average=exchange.root_s,
        )


def rates_at(split: Split, workload: Workload, costs: Costs, contention: PerRole) -> PerRole:
    """Reckon production x rho, reception x rho and consumption, in sample uses a second over all groups.

    These are T_RA of the actors (the first case of Equation 1 turned round, N_s / T_c), the env steps a
    second that the buffers can receive (its second case), and T_RL of the learners, which are in all_reduce:
    the one that takes turns with the buffer decides for all. A buffer with a process of its own deals out
    batches meanwhile, as many as its fragments are worth.

    Args:
        contention: share of the other cores that is at work, 0 to 1, as each role finds it.
    """
    if workload.beside_learner:
        contention = contention._replace(buffers=contention.learners)
    seconds, samples = Seconds.of(costs, contention), costs.actor.samples
    fragments = fragments_per_update(workload, costs)
    receive_s = seconds.receive
    update_s = (
        seconds.update
        + seconds.publish / workload.updates_per_version
        + seconds.gradients
        + seconds.hand_in / costs.exchange.sync_interval
    )
    if workload.beside_learner:
        update_s += seconds.serve
        update_s += fragments * receive_s
    else:
        receive_s += seconds.serve / fragments
        update_s += seconds.take
    return PerRole(
        actors=split.groups * _per_second(split.actors * samples, seconds.fragment) * workload.rho,
        buffers=split.groups * _per_second(samples, receive_s) * workload.rho,
        learners=split.groups * _per_second(workload.uses_per_update, update_s),
    )


def fragments_per_update(workload: Workload, costs: Costs) -> float:
    """Fragments of which an update makes use: its uses / rho are the samples it takes (section 3.3)."""
    return workload.uses_per_update / workload.rho / costs.actor.samples


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else math.inf


NO_CONTENTION = PerRole(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class CoreAllocation:
    """Cores of a split's roles, over all groups.

    Attributes:
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
    turns: PerRole = NO_CONTENTION
    shared: float = 0.0
    at_once: bool = False

    def contention(self, busy: PerRole) -> PerRole:
        """Share of the other cores that is at work, as one actor, one buffer and one learner find it."""
        at_work = min(sum(share * cores for share, cores in zip(busy, self.cores, strict=True)), self.there)
        contention = PerRole(
            *(
                min(max(at_work - share * own, 0.0) / (self.there - own), 1.0) if self.there > own else 0.0
                for share, own in zip(busy, self.of_one, strict=True)
            )
        )
        # A buffer without cores of its own is where its learner is.
        return contention if self.cores.buffers else contention._replace(buffers=contention.learners)

    def speed(self, cores: float) -> float:
        """Describe how fast roles go that share cores, as a share of how fast they go on cores of their own.

        Args:
            cores: that those of them which are at work would keep at work.
        """
        return min(self.shared / cores, 1.0) if cores else 1.0

    def together_s(self, needs_s: PerRole) -> float:
        """Reckon how long roles that share cores take for a piece of work of each.

        What is at work has the same share of the cores. Where all of it begins at once, the roles that need
        least end first, and what is left then may be too little for all cores.

        >>> cores, of_one, needs_s = PerRole(2, 0, 1), PerRole(1, 0, 1), PerRole(2.0, 0.0, 3.0)
        >>> CoreAllocation(2, cores, of_one, turns=cores, shared=2).together_s(needs_s)  # (4 + 3) / 2
        3.5
        >>> CoreAllocation(2, cores, of_one, turns=cores, shared=2, at_once=True).together_s(needs_s)  # 3 + 1
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


def allocate_cores(split: Split, workload: Workload, cores: int | None) -> CoreAllocation:
    """Give the roles of a split cores as the plan of a job does: learners first, then buffers, then actors.

    Without pins the scheduler deals cores out, and all roles share them if they want more than there are.

    Args:
        cores: that there are; None for as many as the split wants.
    """
    groups = split.groups
    if workload.one_process:  # A thread has all roles of a group, whatever cores they are given.
        wanted = PerRole(groups * split.actors, 0.0, groups)
        return CoreAllocation(groups, wanted, PerRole(1.0, 0.0, 1.0), turns=wanted, shared=groups)
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
        return CoreAllocation(there, wanted, of_one)
    is_released_whole = workload.rollout_steps is not None
    at_once = is_released_whole and split.actors <= workload.fragments_per_rollout(split.num_envs)
    if not split.pinned or beside_learners <= 0:
        return CoreAllocation(there, wanted, of_one, turns=wanted, shared=there, at_once=at_once)
    if of_actors <= 0:
        return CoreAllocation(
            there, wanted, of_one, turns=wanted._replace(learners=0.0), shared=beside_learners
        )
    return CoreAllocation(there, wanted._replace(actors=of_actors), of_one, pace=of_actors / wanted.actors)


_CLOSE: Final = 1e-12
_ROUNDS: Final = 60


@dataclass(frozen=True)
class Contention:
    """Work of roles that slow one another down.

    Attributes:
        alone_s: t, seconds of a sample use with no other role at work.
        more_s: d, seconds more with all others at work; not negative.
    """

    allocation: CoreAllocation
    alone_s: PerRole
    more_s: PerRole

    def settled(self, most: float) -> PerRole:
        """Find the contention that each role ends up with.

        Args:
            most: what other limits leave of the throughput, in uses a second; may be infinite.
        """
        # The time of a buffer beside its learner is in the learner's.
        own_s = self.alone_s if self.allocation.cores.buffers else self.alone_s._replace(buffers=0.0)
        throughput = min(most, 1 / self._busiest(own_s))
        busy = self._busy(throughput)
        if self._busiest(busy) <= 1:
            return self.allocation.contention(busy)
        low, high, slope = 0.0, throughput, 0.0
        could = throughput / self._busiest(busy)
        for _ in range(_ROUNDS):
            # What roles could do at this throughput's contention: less, the higher it is. So the two have the
            # one that settles between them, and a line through the last two pairs says where. All in
            # logarithms: contention may make work dearer by orders of magnitude.
            if abs(could - throughput) <= _CLOSE * throughput:
                break
            low, high = max(low, min(throughput, could)), min(high, max(throughput, could))
            guess = throughput * (could / throughput) ** (1 / (1 - slope))
            before, could_before = throughput, could
            throughput = guess if low < guess < high else math.sqrt(low * high)
            busy = self._busy(throughput)
            could = throughput / self._busiest(busy)
            if change := math.log(throughput / before):
                slope = min(math.log(could / could_before) / change, 0.0)
        return self.allocation.contention(busy)

    def _busiest(self, busy: PerRole) -> float:
        """The largest share: of a role, or of those together that share cores."""
        return max(*busy, self.allocation.together_s(busy))

    def _busy(self, throughput: float) -> PerRole:
        """The share of time that each role would need for a throughput."""
        allocation = self.allocation
        in_none, per_core, in_full = [], [], []
        for t, d, cores, own in zip(
            self.alone_s, self.more_s, allocation.cores, allocation.of_one, strict=True
        ):
            dearer = d / (allocation.there - own) if allocation.there > own else 0.0
            # u = T (t + dearer (B - own u)), solved for u but for B; a role without cores has none of it.
            scale = throughput / (1 + throughput * dearer * own) if cores else 0.0
            in_none.append(scale * t)
            per_core.append(scale * dearer)
            in_full.append(throughput * (t + d) if cores else 0.0)
        # Roles that share cores leave others more than those beside their own while they wait, but contention
        # is at most full. Each round finds one role more whose contention is not, until there is none.
        at_work = sum(cores * full for cores, full in zip(allocation.cores, in_full, strict=True))
        for _ in allocation.cores:
            numerator, denominator = 0.0, 1.0
            for cores, none, more, full in zip(allocation.cores, in_none, per_core, in_full, strict=True):
                is_full = none + more * at_work >= full
                numerator += cores * (full if is_full else none)
                denominator -= 0.0 if is_full else cores * more
            at_work = numerator / denominator
        return PerRole(
            *(
                min(none + more * at_work, full)
                for none, more, full in zip(in_none, per_core, in_full, strict=True)
            )
        )

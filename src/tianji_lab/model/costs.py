"""A split of cores, what an algorithm asks of the machine, and what the split's parts cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Split:
    """Who gets how many cores (M_L + M_A = M in Equation 4).

    Attributes:
        learners: L, of a group.
        actors: A, of a group.
        num_envs: N, environments of each actor.
        groups: G, learner sets with their own buffers and actors.
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


@dataclass(frozen=True)
class Workload:
    """The constants of a job.

    Attributes:
        rho: uses of each sample (section 3.3); consumption / rho = production when both are balanced.
        uses_per_update: sample uses of one gradient update, over all learners of a group.
        updates_per_version: updates between two published policies: those of a rollout, or ``publish_every``.
        send_size: T, steps of each environment in a fragment.
        rollout_steps: env steps of a rollout; None where the learner draws from a replay.
        in_step: actors wait for each new version (``mode = "sync"``).
        colocated: the buffer takes turns with a learner and uses its cores.
        one_process: all roles of a group take turns on one core (``inproc``).
        window: fragments that an actor may have sent before one is claimed.
        tolerance: env steps that production may be ahead of, or behind, consumption; None for any number.
    """

    rho: float
    uses_per_update: float
    updates_per_version: float
    send_size: int
    rollout_steps: int | None
    in_step: bool = False
    colocated: bool = True
    one_process: bool = False
    window: int = 2
    tolerance: float | None = None

    def fragments_per_rollout(self, num_envs: int) -> int:
        """Fragments of actors with so many environments that make a rollout; only where there are rollouts.

        >>> Workload(4.0, 512.0, 32.0, send_size=64, rollout_steps=4096).fragments_per_rollout(16)
        4
        """
        assert self.rollout_steps is not None, "a replay has no rollouts"
        return max(1, round(self.rollout_steps / (self.send_size * num_envs)))

    @property
    def beside_learner(self) -> bool:
        """Whether the buffer takes turns with a learner, in one process."""
        return self.colocated or self.one_process


@dataclass(frozen=True)
class Cost:
    """Seconds of a piece of work, all other cores idle or at work: they share caches and memory."""

    alone_s: float
    contended_s: float

    @classmethod
    def fixed(cls, seconds: float) -> Cost:
        """The same whatever the other cores do."""
        return cls(seconds, seconds)

    def at(self, contention: float) -> float:
        """Seconds while the other cores are at work for this share of the time, 0 to 1.

        >>> Cost(1.0, 2.0).at(0.25)
        1.25
        """
        return self.alone_s + contention * (self.contended_s - self.alone_s)

    def times(self, factor: float) -> Cost:
        """With work that takes so many times as long under any contention.

        >>> Cost(1.0, 2.0).times(1.5)
        Cost(alone_s=1.5, contended_s=3.0)
        """
        return Cost(self.alone_s * factor, self.contended_s * factor)

    def plus(self, seconds: float) -> Cost:
        """With more work, whose time no contention changes.

        >>> Cost(1.0, 2.0).plus(0.5)
        Cost(alone_s=1.5, contended_s=2.5)
        """
        return Cost(self.alone_s + seconds, self.contended_s + seconds)


@dataclass(frozen=True)
class ActorCosts:
    """Of one actor, for each fragment.

    Attributes:
        samples: env steps of experience in a fragment, on average (auto-reset steps are none).
        sample: T_sp, to fill it: inference, environments, bookkeeping.
        send_s: T_sd, to push it.
    """

    samples: float
    sample: Cost
    send_s: float


@dataclass(frozen=True)
class BufferCosts:
    """Of one buffer.

    Attributes:
        receive_s: the transport's part of T_rv, for each fragment.
        store: its own part: to check and store a fragment.
        draw: to put a batch (or minibatch) together, for each update.
        hand_over_s: to send the batch, or the parts of it, to learners in other processes, for each update.
    """

    receive_s: float
    store: Cost
    draw: Cost
    hand_over_s: float = 0.0


@dataclass(frozen=True)
class LearnerCosts:
    """Of one learner, with its cores and its share of the batch.

    Attributes:
        publish: to publish the policy, its way into the transport included, and what else is done once for
            each version.
        take_s: to receive a batch, or the share of one, from a buffer in a process of its own.
    """

    update: Cost
    publish: Cost
    take_s: float = 0.0


@dataclass(frozen=True)
class ExchangeCosts:
    """Of several learners, several groups, several hosts.

    Attributes:
        gradients_s: to average gradients over the learners of a group, for each update.
        sync_interval: updates of a group between two averagings of parameters over groups.
        group_s: what one such averaging costs each group.
        root_s: what it costs the root, for each group.
        waits: a group makes no update until the root has averaged; else that is done in the background, and
            less often if the root cannot keep up.
        crossing: share of a group's fragments that go from host to host.
        link_bytes_per_s: what the link of a learner's host carries; None if no fragment needs it.
    """

    gradients_s: float = 0.0
    sync_interval: int = 100
    group_s: float = 0.0
    root_s: float = 0.0
    waits: bool = True
    fragment_bytes: int = 0
    crossing: float = 0.0
    link_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Costs:
    """All of one split.

    Attributes:
        extrapolated: what of it was not measured but reckoned, in words; empty if all of it was.
    """

    actor: ActorCosts
    buffer: BufferCosts
    learner: LearnerCosts
    exchange: ExchangeCosts = ExchangeCosts()
    extrapolated: tuple[str, ...] = ()


class CostTable(Protocol):
    """Knows what every split costs."""

    def at(self, split: Split) -> Costs:
        """Costs of one split."""

"""What the parts of one split cost, in seconds: measured, or extrapolated from what was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tianji_lab.model.split import Split


@dataclass(frozen=True)
class Cost:
    """Seconds of a piece of work: cores that work side by side share caches and memory.

    Attributes:
        alone_s: with all other cores idle.
        crowded_s: with all other cores at work.
    """

    alone_s: float
    crowded_s: float

    @classmethod
    def fixed(cls, seconds: float) -> Cost:
        """The same whatever the other cores do."""
        return cls(seconds, seconds)

    def at(self, crowd: float) -> float:
        """Seconds while the other cores are at work for this share of the time, 0 to 1.

        >>> Cost(1.0, 2.0).at(0.25)
        1.25
        """
        return self.alone_s + crowd * (self.crowded_s - self.alone_s)

    def times(self, factor: float) -> Cost:
        """With work that takes so many times as long in any crowd.

        >>> Cost(1.0, 2.0).times(1.5)
        Cost(alone_s=1.5, crowded_s=3.0)
        """
        return Cost(self.alone_s * factor, self.crowded_s * factor)

    def plus(self, seconds: float) -> Cost:
        """With more work, whose time no crowd changes.

        >>> Cost(1.0, 2.0).plus(0.5)
        Cost(alone_s=1.5, crowded_s=2.5)
        """
        return Cost(self.alone_s + seconds, self.crowded_s + seconds)


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
        update: one gradient update.
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
        fragment_bytes: size of a fragment.
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
        actor: of each actor.
        buffer: of each buffer.
        learner: of each learner.
        exchange: between learners, groups and hosts.
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

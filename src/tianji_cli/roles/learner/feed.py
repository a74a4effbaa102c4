"""Where a learner gets its batches: what differs between learning from rollouts and from a replay."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tianji_cli.wire.arrival import Arrival


class Feed(ABC):
    """Hands a learner what it updates on, and tells it of everything that was received."""

    @abstractmethod
    def arrivals(self) -> Sequence[Arrival]:
        """Say what came since the last call, in the order it is to be counted."""

    def deal(self, env_steps: int, *, synchronise: bool) -> bool:  # noqa: ARG002 - for those with followers
        """Deal the next updates out to the followers, and to this learner.

        Args:
            env_steps: seen so far, for what is scheduled over training.
            synchronise: the followers' parameters have to be replaced first.

        Returns:
            False if there is nothing to deal yet, or no room for it.
        """
        return True

    @property
    def unfinished(self) -> bool:
        """Whether something that was dealt to the followers is not used up here."""
        return False

    @property
    def is_claimed(self) -> bool:
        """Whether the followers need nothing more of the transport to learn from what they were dealt."""
        return True

    @abstractmethod
    def batch(self) -> Any | None:
        """Hand out the next batch for the embryo, valid until the next call; None if it is not there yet."""

    def used(self) -> None:  # noqa: B027 - rollouts want to know nothing
        """Take note that the embryo has made its update on the last batch."""

    @property
    @abstractmethod
    def round_is_done(self) -> bool:
        """Whether it is time to publish the policy."""

    @abstractmethod
    def advance(self, version: int) -> None:
        """Take note that this version was published: a new round begins."""

    @abstractmethod
    def wind_down(self) -> None:
        """No more batches are wanted; arrivals are, to the end."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """What the root is told: ``rho`` (uses of each sample in serial training), and what was measured."""

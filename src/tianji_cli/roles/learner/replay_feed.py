"""Feeds a learner with batches from a replay, which is beside it or in a process of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import Batch, SequenceBatch
from tianji_algos.core import ReplayEmbryo
from tianji_cli.roles.learner.feed import Feed
from tianji_cli.roles.learner.parallel.dealing import Deal
from tianji_cli.wire.arrival import Arrival
from tianji_cli.wire.batches import BatchView
from tianji_cli.wire.distribution import Distribution


class BatchSource(ABC):
    """Where batches are drawn."""

    @abstractmethod
    def arrivals(self) -> Sequence[Arrival]:
        """Say what came since the last call."""

    def deal(self, deal: Deal) -> bool:  # noqa: ARG002 - for those who have somebody to deal to
        """Draw a batch and deal a share of it to each learner; False while it cannot be done."""
        return True

    @property
    def is_claimed(self) -> bool:
        """Whether everybody has the share that was dealt."""
        return True

    @abstractmethod
    def draw(self) -> BatchView | None:
        """Hand out a batch, valid until the next call; None while there is none, or production is behind."""

    @abstractmethod
    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Take the priorities of the last batch."""

    @abstractmethod
    def wind_down(self) -> None:
        """No more batches are wanted."""

    def report(self) -> dict[str, Any]:
        """What the root is told of it."""
        return {}


class ReplayFeed(Feed):
    """Hands out batches and measures how old their samples are.

    Args:
        source: where they are drawn.
        rho: uses of each sample in serial training.
        publish_every: updates between two published policies.
        prioritised: learns from them, and changes their priorities; None: they have none.
        age_bin: width of the bins that ages are counted in, in env steps.
    """

    def __init__(
        self,
        source: BatchSource,
        *,
        rho: float,
        publish_every: int,
        prioritised: ReplayEmbryo | None,
        age_bin: int,
    ) -> None:
        self._source = source
        self._rho = rho
        self._publish_every = publish_every
        self._prioritised = prioritised
        self._lags = Distribution()
        self._ages = Distribution(age_bin)
        self._version = 0
        self._updates_in_round = 0

    def arrivals(self) -> Sequence[Arrival]:
        """Say what came since the last call."""
        return self._source.arrivals()

    def deal(self, env_steps: int, *, synchronise: bool) -> bool:
        """Deal out one batch."""
        publishes = self._updates_in_round + 1 >= self._publish_every
        return self._source.deal(Deal(env_steps, self._version, 1, synchronise, publishes))

    @property
    def is_claimed(self) -> bool:
        """The followers have their shares."""
        return self._source.is_claimed

    def batch(self) -> Batch | SequenceBatch | None:
        """Hand out the next batch, unless the policy wants to be published first or production is behind."""
        if self.round_is_done:
            return None
        arrays = self._source.draw()
        if arrays is None:
            return None
        lags = self._version - arrays.version
        # A replay that was saved after the learner's last checkpoint holds samples of versions yet to come.
        self._lags.record_all(np.maximum(lags, 0, out=lags))
        self._ages.record_all(arrays.age)
        return arrays.batch

    def used(self) -> None:
        """Pass on the new priorities."""
        self._updates_in_round += 1
        if self._prioritised is not None:
            self._source.give_priorities(self._prioritised.priorities)

    @property
    def round_is_done(self) -> bool:
        """As many updates were made as there are to be between two versions."""
        return self._updates_in_round >= self._publish_every

    def advance(self, version: int) -> None:
        """Begin to count updates anew."""
        self._updates_in_round = 0
        self._version = version

    def wind_down(self) -> None:
        """No more batches are wanted."""
        self._source.wind_down()

    def report(self) -> dict[str, Any]:
        """Replay ratio as it is to be, and how old samples are when they are used."""
        lag, age = self._lags.summary(), self._ages.summary()
        return {
            "rho": self._rho,
            "lag": None if lag is None else asdict(lag),
            "age": None if age is None else asdict(age),
            **self._source.report(),
        }

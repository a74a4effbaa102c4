"""What rollouts have in common that a policy is trained on, and their minibatches: PPO's and IMPALA's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.core import ALONE, Fields, Peers
from tianji_algos.rollout_observations import Observations


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyMinibatch:
    """Samples for one gradient update: steps that are experience.

    Attributes:
        observation: what the network takes: an array, or a tensor where it computes; for one that remembers
            ``Sequences``, with steps that are no samples.
        action: as it was recorded, ``[samples, ...]``.
        log_prob: of the action under the policy that acted, ``[samples]``.
        total: samples of the minibatch over all learners, one at least: its own, if there is only one.
    """

    observation: Any
    action: npt.NDArray[Any]
    log_prob: npt.NDArray[np.float32]
    total: int

    @property
    def samples(self) -> int:
        """How many are this learner's."""
        return len(self.log_prob)


class PolicyRollout(ABC):
    """The fragments of one round of updates, in memory that is kept.

    Args:
        observations: where the rollout's are held.
    """

    def __init__(self, observations: Observations) -> None:
        self._observations = observations
        self._peers: Peers = ALONE

    def join(self, peers: Peers) -> None:
        """Hold this learner's share of every rollout from now on."""
        self._peers = peers

    @abstractmethod
    def gather(self, fragments: Sequence[Fields]) -> None:
        """Copy in what is needed of fragments."""

    @abstractmethod
    def minibatches(self, rng: np.random.Generator) -> Iterator[PolicyMinibatch]:
        """Go through all samples once, in random order, in minibatches of about equal size.

        Every learner yields as many: it has a share of each minibatch, which may be empty.
        """

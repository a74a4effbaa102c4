"""Batches of a replay for off-policy update rules: a public contract, and no import of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Batch:
    """n-step transitions for one gradient update, ``[B, ...]`` each, in memory that the next batch reuses.

    An update bootstraps as ``reward + discount * value(next_observation)``.

    Attributes:
        observation: where each transition begins.
        fields: the agent's fields of its first step, by name; ``action`` is one of them.
        reward: discounted sum of the rewards of its steps.
        next_observation: where it leads to, at most n steps later.
        discount: factor of the value of ``next_observation``: ``gamma`` to the number of steps, or 0 if the
            episode terminated.
        weight: importance weight, 1 where samples are drawn uniformly.
    """

    observation: npt.NDArray[Any]
    fields: Mapping[str, npt.NDArray[Any]]
    reward: npt.NDArray[np.float32]
    next_observation: npt.NDArray[Any]
    discount: npt.NDArray[np.float32]
    weight: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class SequenceBatch:
    """Episodes for one gradient update, ``[B, ...]`` each, in memory that the next batch reuses.

    A sequence has up to L steps. It begins with an episode, or in the middle of one: after a full sequence,
    or after steps that are missing because a fragment was lost or because the replay was restored without
    the unfinished sequences. Rows after its last observation repeat that observation.

    Attributes:
        observation: ``[B, L + 1, ...]``; row ``length`` is the one that the last step led to.
        fields: the agent's fields of each step by name, ``[B, L, ...]``; ``action`` is one of them.
        reward: ``[B, L]``.
        length: steps of each sequence, ``[B]`` int32, from 1 to L.
        terminated: the last step terminated the episode, ``[B]`` bool; elsewhere the observation that it led
            to still has a value.
    """

    observation: npt.NDArray[Any]
    fields: Mapping[str, npt.NDArray[Any]]
    reward: npt.NDArray[np.float32]
    length: npt.NDArray[np.int32]
    terminated: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class UnrollBatch:
    """Steps of B environments in a row for one gradient update, in memory that the next batch reuses.

    An unroll goes on across the ends of episodes. The step after an end is no experience: it only leads to
    the first observation of the next episode, where the network's state is zero.

    Attributes:
        observation: ``[B, R + 1, ...]``; row R is the one that the last step led to. R is
            ``burn_in + unroll_steps``.
        fields: the agent's fields of each step by name, ``[B, R, ...]``; ``action`` is one of them. A field
            that is recorded once a fragment, as the network's state is, has its value before row 0,
            ``[B, ...]``.
        reward: ``[B, R]``.
        terminated: the step terminated the episode, ``[B, R]`` bool.
        mask: the step is experience, ``[B, R]`` bool.
        weight: importance weight ``[B]``, 1 where unrolls are drawn uniformly.
    """

    observation: npt.NDArray[Any]
    fields: Mapping[str, npt.NDArray[Any]]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    mask: npt.NDArray[np.bool_]
    weight: npt.NDArray[np.float32]

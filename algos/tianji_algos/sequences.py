"""Steps in the order they were made: what a network that remembers is trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Sequences:
    """Steps of B environments one after another.

    Attributes:
        observation: ``[T, B, ...]``, as the network sees it: an array, or a tensor on the network's device.
        first: ``[T, B]`` bool: the observation is the first of an episode, and nothing is remembered there.
        state: ``[B, state_size]`` float32, what was remembered before the first step.
    """

    observation: Any
    first: npt.NDArray[np.bool_]
    state: npt.NDArray[np.float32]


def first_observations(mask: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Say which observations begin an episode.

    The step that only resets an environment is no experience, and leads to the first observation.

    Args:
        mask: ``[T, N]`` of a fragment.

    Returns:
        ``[T + 1, N]``; in the first row False, since the state before a fragment knows of earlier ends.
    """
    first = np.zeros((len(mask) + 1, *mask.shape[1:]), np.bool_)
    np.logical_not(mask, out=first[1:])
    return first

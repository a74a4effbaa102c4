"""Continuous actions between bounds: policies choose numbers from -1 to 1, environments get them scaled."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.errors import UnsupportedSpaceError

Floats = npt.NDArray[np.float32]


class ActionBounds:
    """Middle and half of the distance between the bounds of continuous actions.

    Args:
        space: of the actions; numbers that are not there, as a team's may be, are bounded by 0 and 0.

    Attributes:
        shape: of an action.
        size: numbers in it.
        middle: of ``shape``.
        half: of ``shape``.

    Raises:
        UnsupportedSpaceError: the space is no Box, or it is not bounded.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise UnsupportedSpaceError(
                f"this policy chooses real numbers, so it acts in Box spaces of floats, not in {space}; "
                "an agent for this space, such as 'ppo' or 'dqn', would be right"
            )
        if not space.is_bounded():
            raise UnsupportedSpaceError(
                f"these continuous actions go from bound to bound, and {space} has none; "
                "a Box with finite low and high would be right"
            )
        low, high = _inside(space.low, np.inf), _inside(space.high, -np.inf)
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self._low, self._high = low, high
        self.middle: Floats = np.float32(0.5) * (low + high)
        self.half: Floats = np.float32(0.5) * (high - low)

    def scale(self, actions: Floats, out: Floats) -> Floats:
        """Bring numbers from -1 to 1, ``[N, *shape]``, between the bounds."""
        np.multiply(actions, self.half, out=out)
        out += self.middle
        np.maximum(out, self._low, out=out)  # Rounding may have gone beyond.
        return np.minimum(out, self._high, out=out)


def _inside(bound: npt.NDArray[Any], way: float) -> Floats:
    """Round bounds to single precision, none of them beyond what they were.

    Args:
        way: towards the inside: plus infinity for lower bounds, minus for upper ones.
    """
    rounded = bound.astype(np.float32)
    is_beyond = rounded < bound if way > 0 else rounded > bound
    return np.where(is_beyond, np.nextafter(rounded, np.float32(way)), rounded)

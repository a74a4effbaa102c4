"""Bounds of continuous actions: policies choose numbers about -1 to 1, environments get them scaled."""

from __future__ import annotations

import math
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.errors import UnsupportedSpaceError

Array = npt.NDArray[Any]

UNBOUNDED: Final = 1e18
"""A bound at least this far from 0 counts as none: it is the limit of its type."""


class ActionBounds:
    """Scales numbers from -1 to 1 to the bounds of continuous actions, in the space's own type.

    A number with one bound has it at -1 or 1, and is open on the other side; a number without bounds stays
    as it is.

    Args:
        space: action space; numbers that an agent of a team does not have are bounded by 0 and 0.
        scaled: False only clips numbers to the bounds.
        may_be_open: numbers need not have two bounds.

    Attributes:
        shape: shape of an action.
        size: numbers in an action.
        low: lower bounds, of ``shape``.
        high: upper bounds, of ``shape``.
        middle: the action that 0 stands for, of ``shape``.
        half: distance from ``middle`` to the action that 1 stands for, of ``shape``.

    Raises:
        UnsupportedSpaceError: the space is no Box of floats, or it is open and may not be.
    """

    def __init__(self, space: gym.Space[Any], *, scaled: bool = True, may_be_open: bool = False) -> None:
        if not isinstance(space, gym.spaces.Box) or not np.issubdtype(space.dtype, np.floating):
            raise UnsupportedSpaceError(
                f"this policy chooses real numbers, so it acts in Box spaces of floats, not in {space}; "
                "an agent for this space, such as 'ppo' or 'dqn', would be right"
            )
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        has_low, has_high = low > -UNBOUNDED, high < UNBOUNDED
        if not may_be_open and not (has_low & has_high).all():
            raise UnsupportedSpaceError(
                f"these continuous actions go from bound to bound, and {space} has none; "
                "a Box with finite low and high would be right"
            )
        self.shape = space.shape
        self.size = math.prod(space.shape)
        self.low, self.high = space.low, space.high
        first = np.where(has_low, low, np.where(has_high, high - 2, -1)) if scaled else -np.ones_like(low)
        last = np.where(has_high, high, first + 2) if scaled else -first
        self.middle: Array = (first / 2 + last / 2).astype(space.dtype)
        self.half: Array = (last / 2 - first / 2).astype(space.dtype)
        self._moves = bool((self.half != 1).any() or self.middle.any())
        self._scaled = np.empty((0, *space.shape), space.dtype)

    def scale(self, actions: Array) -> Array:
        """Return ``actions [N, ...]`` in the environment's form ``[N, *shape]``; reused by the next call."""
        if len(self._scaled) != len(actions):
            self._scaled = np.empty((len(actions), *self.shape), self.low.dtype)
        scaled, actions = self._scaled, actions.reshape(self._scaled.shape)
        if self._moves:
            actions = np.multiply(actions, self.half, out=scaled)
            actions += self.middle
        np.maximum(actions, self.low, out=scaled)
        return np.minimum(scaled, self.high, out=scaled)

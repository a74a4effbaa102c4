"""Fields of a fragment: a public contract, which the root and recorders read without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt

ACTION_MASK: Final = "action_mask"
"""Part of an observation that marks the available actions; networks do not see it."""


def sizes_of_choices(action: gym.Space[Any]) -> tuple[int, ...]:
    """Count the actions of each choice that an action mask covers; empty for actions of real numbers."""
    if isinstance(action, gym.spaces.Discrete):
        return (int(action.n),)
    if isinstance(action, gym.spaces.MultiDiscrete):
        return tuple(action.nvec.ravel().tolist())
    return ()


def leaves_choices(mask: npt.NDArray[Any], action: gym.Space[Any]) -> npt.NDArray[np.bool_]:
    """Whether action masks ``[..., actions]`` allow an action of every choice: ``[...]``."""
    starts = np.cumsum((0, *sizes_of_choices(action)[:-1]))
    allowed: npt.NDArray[np.bool_] = np.logical_or.reduceat(mask != 0, starts, axis=-1)
    every: npt.NDArray[np.bool_] = np.logical_and.reduce(allowed, axis=-1)
    return every


@dataclass(frozen=True)
class FieldSpec:
    """One array of a fragment, ``[rows, N, *shape]``: a row for each of T steps, unless said otherwise.

    Attributes:
        name: the field's name, unique in a fragment.
        dtype: a fixed-size dtype without byte order or object parts.
        shape: shape per step and environment.
        bootstrap: carry one row more than there are steps: the value after the last step.
        history: rows before that of the first step, so that row ``history + t`` belongs to step t: earlier
            frames, where a policy sees a stack of them.
        once: one row for the whole fragment: the value before its first step.
    """

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...] = ()
    bootstrap: bool = False
    history: int = 0
    once: bool = False

    def rows(self, steps: int) -> int:
        """Count the rows in a fragment of so many steps."""
        return 1 if self.once else self.history + steps + self.bootstrap

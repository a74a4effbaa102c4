"""Hartmann's function of six numbers as an environment: an episode is one step, its reward minus the value.

The best return is 3.322 (Dixon and Szegö, 1978). ``[sweep.parameters]`` searches for the best point, which is
an option of the environment.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def minus_hartmann6(x: Any) -> float:
    """Return minus the function, which the sweep maximises, at a point of the cube from 0 to 1: float [6]."""
    return float(ALPHA @ np.exp(-(A * (np.asarray(x) - P) ** 2).sum(axis=1)))


class Hartmann6(gymnasium.Env):
    """Environment whose reward is minus the function's value at a fixed point, for every action."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, point: list[float]) -> None:
        self._reward = minus_hartmann6(point)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Any, dict]:  # noqa: ARG002
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:  # noqa: ARG002
        return np.zeros(1, np.float32), self._reward, True, False, {}


def make(
    a: float = 0.5, b: float = 0.5, c: float = 0.5, d: float = 0.5, e: float = 0.5, f: float = 0.5
) -> Hartmann6:
    """Make the environment of a config whose type is ``hartmann:make``."""
    return Hartmann6([a, b, c, d, e, f])

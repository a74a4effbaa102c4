"""Rolling a vector of environments out into memory, for the claims about what it writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.core import VectorEnvironment

# Most of the time of SMAX's tests is the compiler's, which optimises what runs for a moment.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@dataclass
class Rollout:
    """``[T, N, ...]``; ``observation`` has one row more."""

    observation: npt.NDArray[Any]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]


def _roll(
    vector: VectorEnvironment,
    steps: int,
    seed: int = 5,
    act: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] | None = None,
) -> Rollout:
    n = vector.num_envs
    space = vector.observation_space
    assert space.shape is not None
    observation = np.full((steps + 1, n, *space.shape), 77, space.dtype)
    reward = np.full((steps, n), 77, np.float32)
    terminated, truncated = np.ones((2, steps, n), np.bool_)
    vector.action_space.seed(seed)
    vector.reset(seed, observation[0])
    for t in range(steps):
        if act is None:
            actions = np.stack([np.asarray(vector.action_space.sample()) for _ in range(n)])
        else:
            actions = act(observation[t])
        vector.step(actions, observation[t + 1], reward[t], terminated[t], truncated[t])
    return Rollout(observation, reward, terminated, truncated)


@pytest.fixture
def roll() -> Callable[..., Rollout]:
    """Step with actions drawn from ``seed``, or ``act(observation)``, into memory full of rubbish."""
    return _roll

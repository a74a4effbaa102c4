from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
import torch

from tianji_algos.core import Spaces

MakeFragment = Callable[..., dict[str, npt.NDArray[Any]]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def cartpole_spaces() -> Spaces:
    return Spaces(gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))


@pytest.fixture
def pendulum_spaces() -> Spaces:
    return Spaces(gym.spaces.Box(-8.0, 8.0, (3,), np.float32), gym.spaces.Box(-2.0, 2.0, (1,), np.float32))


@pytest.fixture
def make_fragment() -> MakeFragment:
    """Random fragments whose episodes end and reset as an environment's do in next-step autoreset."""

    def make(rng: np.random.Generator, steps: int, envs: int, spaces: Spaces) -> dict[str, npt.NDArray[Any]]:
        terminated = np.zeros((steps, envs), np.uint8)
        truncated = np.zeros((steps, envs), np.uint8)
        mask = np.ones((steps, envs), np.uint8)
        for n in range(envs):
            mask[0, n] = rng.random() < 0.8
            for t in range(steps):
                if t > 0 and (terminated[t - 1, n] or truncated[t - 1, n]):
                    mask[t, n] = 0
                elif mask[t, n] and rng.random() < 0.3:
                    (terminated if rng.random() < 0.5 else truncated)[t, n] = 1
        spaces.action.seed(int(rng.integers(1 << 30)))
        actions = np.array([[spaces.action.sample() for _ in range(envs)] for _ in range(steps)])
        shape = spaces.observation.shape or ()
        return {
            "observation": rng.standard_normal((steps + 1, envs, *shape)).astype(np.float32),
            "reward": rng.standard_normal((steps, envs)).astype(np.float32) * mask,
            "terminated": terminated,
            "truncated": truncated,
            "mask": mask,
            "action": actions,
            "log_prob": rng.normal(-0.7, 0.1, (steps, envs)).astype(np.float32),
            "value": rng.standard_normal((steps + 1, envs)).astype(np.float32),
        }

    return make

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from tianji_algos.core import Spaces


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def cartpole_spaces() -> Spaces:
    return Spaces(gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))


@pytest.fixture
def pendulum_spaces() -> Spaces:
    return Spaces(gym.spaces.Box(-8.0, 8.0, (3,), np.float32), gym.spaces.Box(-2.0, 2.0, (1,), np.float32))


@pytest.fixture(params=["cartpole_spaces", "pendulum_spaces"])
def spaces(request: pytest.FixtureRequest) -> Spaces:
    """Spaces of an environment with two actions, and of one whose action is a number."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Spaces)
    return found

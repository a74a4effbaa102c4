"""An environment of whatever spaces a test asks for, by their name."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np

from tianji_envs.core import BaseEnv
from tianji_envs.team import TeamSpace

OBSERVATIONS: Final[Mapping[str, gym.Space[Any]]] = {
    "numbers": gym.spaces.Box(-1.0, 1.0, (4,), np.float32),
    "board": gym.spaces.Box(0, 1, (10, 10, 4), np.bool_),
    "map": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "choice": gym.spaces.Discrete(16),
    "choices": gym.spaces.MultiDiscrete([3, 4]),
    "small picture": gym.spaces.Box(0, 255, (16, 16, 3), np.uint8),
    "picture": gym.spaces.Box(0, 255, (84, 84), np.uint8),
    "large picture": gym.spaces.Box(0, 255, (210, 160, 3), np.uint8),
}
ACTIONS: Final[Mapping[str, gym.Space[Any]]] = {
    "one of": gym.spaces.Discrete(3),
    "several of": gym.spaces.MultiDiscrete([2, 3]),
    "numbers": gym.spaces.Box(-2.0, 2.0, (2,), np.float32),
}
NOBODYS: Final[Mapping[str, gym.Space[Any]]] = {
    "whole numbers": gym.spaces.Box(0, 5, (2,), np.int32),
    "flags": gym.spaces.MultiBinary(3),
}
"""Actions that no agent chooses."""


class Shown(BaseEnv):
    """Shows zeros, and pays nothing."""

    def __init__(self, observation: str = "numbers", action: str = "one of") -> None:
        self.observation_space = OBSERVATIONS[observation]
        self.action_space = {**ACTIONS, **NOBODYS}[action]

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002 - the contract's
        return self._zeros()

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002 - the contract's
        return self._zeros(), 0.0, False, False

    def _zeros(self) -> Any:
        space = self.observation_space
        return np.zeros(space.shape or (), space.dtype)


class Slow(Shown):
    """Takes its time for a step."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Wait two milliseconds."""
        Slow.steps += 1
        time.sleep(2e-3)
        return super().step(action)


class Strict(Shown):
    """Takes no action that was drawn at random."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Refuse it."""
        raise ValueError(f"{action} is against the rules")


class Other(Shown):
    """The same under another name."""


class Team(Shown):
    """Two agents."""

    agents = ("a", "b")

    def __init__(self) -> None:
        self.observation_space = TeamSpace(2, 3, 4)
        self.action_space = gym.spaces.MultiDiscrete([4, 4])


def make() -> Shown:
    """Make it by a function."""
    return Shown()


class Told(gym.Env[Any, Any]):
    """Says so many things of its two actions in its info; nothing for 0."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)
    built = 0

    def __init__(self, flags: int = 0) -> None:
        Told.built += 1
        self.info: Any = {"action_mask": np.ones(flags, np.int8)} if flags else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002 - the contract's
        return np.zeros(3, np.float32), self.info

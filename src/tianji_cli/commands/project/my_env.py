"""An environment to change: a ship on a line that has to come to rest at its dock."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

Observation = npt.NDArray[np.float32]


class Docking(gymnasium.Env[Any, Any]):
    """Each step pushes the ship to the left (0), not at all (1) or to the right (2).

    Args:
        max_steps: of an episode, which is then cut off; comes from ``environment.options`` in config.toml.
    """

    def __init__(self, max_steps: int = 100) -> None:
        self.observation_space = spaces.Box(-4.0, 4.0, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self._max_steps = max_steps
        self._steps = 0
        self._place = self._speed = 0.0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin at a random place, at rest. ``self.np_random`` draws the place, so that seeds repeat."""
        super().reset(seed=seed, options=options)
        self._place = float(self.np_random.uniform(-2.0, 2.0))
        self._speed, self._steps = 0.0, 0
        return self._observe(), {}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Push the ship; returns observation, reward, whether it has docked, whether time is up, and info."""
        self._speed = 0.95 * self._speed + 0.05 * (int(action) - 1)
        self._place = float(np.clip(self._place + self._speed, -4.0, 4.0))
        self._steps += 1
        docked = abs(self._place) < 0.1 and abs(self._speed) < 0.1
        reward = 10.0 if docked else -0.1 * abs(self._place)
        return self._observe(), reward, docked, self._steps >= self._max_steps, {}

    def _observe(self) -> Observation:
        return np.array([self._place, self._speed], np.float32)

"""An environment that reports its episodes, for peers that make environments out of the benchmark's reach."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium


class Listener(Protocol):
    """Receives the reports of an environment; ``EpisodeLog`` writes them to a file."""

    def started(self) -> None:
        """Handle the start: the first step follows."""

    def ended(self, total: float, steps: int) -> None:
        """Handle the end of an episode."""


class Watched(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Reports its episodes to a listener, with unscaled returns; returns scaled rewards.

    Attributes:
        env_steps: steps so far.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], listener: Listener, reward_scale: float = 1.0) -> None:
        super().__init__(env)
        self.env_steps = 0
        self._listener = listener
        self._scale = reward_scale
        self._total, self._steps = 0.0, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step once, and report a first step or an episode's end."""
        if not self.env_steps:
            self._listener.started()
        seen, reward, terminated, truncated, info = super().step(action)
        self.env_steps += 1
        self._total += float(reward)
        self._steps += 1
        if terminated or truncated:
            total, steps = self._total, self._steps
            self._total, self._steps = 0.0, 0
            self._listener.ended(total, steps)
        return seen, self._scale * float(reward), terminated, truncated, info

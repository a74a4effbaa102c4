"""An environment that tells of its episodes, for peers that make environments where nobody sees them."""

from __future__ import annotations

from typing import Any, Protocol

import gymnasium


class Listener(Protocol):
    """What is told; ``EpisodeLog`` writes it down."""

    def started(self) -> None:
        """Stepping is about to begin."""

    def ended(self, total: float, steps: int) -> None:
        """An episode just ended."""


class Watched(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Tells a listener of its episodes, with returns as the environment gave them; hands on scaled rewards.

    Attributes:
        env_steps: it has made.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], listener: Listener, reward_scale: float = 1.0) -> None:
        super().__init__(env)
        self.env_steps = 0
        self._listener = listener
        self._scale = reward_scale
        self._total, self._steps = 0.0, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step once."""
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

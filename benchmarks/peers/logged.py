"""An environment whose episodes are written down, for peers whose workers are processes of their own."""

from __future__ import annotations

from typing import Any

import gymnasium
from record import EpisodeLog


class Logged(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Logs the episodes of one environment, and hands on its rewards scaled."""

    def __init__(self, env: gymnasium.Env[Any, Any], directory: str, reward_scale: float = 1.0) -> None:
        super().__init__(env)
        self._directory = directory
        self._scale = reward_scale
        self._log: EpisodeLog | None = None
        self._total, self._steps = 0.0, 0

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; the log has the return as the environment gave it."""
        if self._log is None:  # Some are built and never stepped.
            self._log = EpisodeLog(self._directory)
            self._log.started()
        seen, reward, terminated, truncated, info = super().step(action)
        self._total += float(reward)
        self._steps += 1
        if terminated or truncated:
            self._log.ended(self._total, self._steps)
            self._total, self._steps = 0.0, 0
        return seen, self._scale * float(reward), terminated, truncated, info

"""Example of your own role, which evaluates policies during training, for greedy.toml beside this file."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import Field

from tianji_algos.settings import Settings
from tianji_cli.roles.episodes import EpisodePlayer
from tianji_cli.roles.user_role import RoleContext, UserRole


class GreedySettings(Settings):
    """Settings of the config's ``[roles.greedy]`` beside those of every role."""

    episodes: int = Field(8, ge=1)


class Greedy(UserRole):
    """Plays ``episodes`` greedy episodes with the newest policy, then again with a newer one."""

    settings_type = GreedySettings

    def __init__(self, context: RoleContext) -> None:
        super().__init__(context)
        self._episodes = self.settings.episodes
        self._agent = self.make_agent(self._episodes)
        self._environment = self.make_environment(self._episodes, evaluation=True)
        self._playing: EpisodePlayer | None = None
        self._version = -1
        self._result: dict[str, Any] = {"version": None, "mean": None}

    def turn(self) -> bool:
        """Step every environment once; returns False if there is no newer policy to play."""
        playing = self._playing or self._begin()
        if playing is None:
            return False
        playing.turn()
        over = playing.finished is not None
        if over:
            self._result = {"version": self._version, "mean": float(np.mean(playing.returns))}
        self._playing = None if over else playing
        return True

    def report(self) -> dict[str, Any]:
        """Mean return and version of the last evaluated policy."""
        return super().report() | self._result

    def close(self) -> None:
        """Close the environments."""
        self._environment.close()

    def _begin(self) -> EpisodePlayer | None:
        policy = self.policy(newer_than=self._version)
        if policy is None:
            return None
        self._version = policy.version
        self._agent.adopt(policy.parameters)
        return EpisodePlayer(self._agent, self._environment, self._episodes, self.context.seed)

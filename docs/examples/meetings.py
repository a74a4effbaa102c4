"""Steps N games of meeting.py at once: a VectorEnvironment whose observations are a team's records."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import MultiDiscrete

from tianji_envs.core import Array, EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError, UnknownEnvironmentError
from tianji_envs.team import TeamSpace

LAST = 9
LIMIT = 20


class Meetings(VectorEnvironment):
    """N pairs of walkers; a pair that meets has won."""

    def __init__(self, num_envs: int, limit: int) -> None:
        self.num_envs = num_envs
        self.agents = ("left", "right")
        self.observation_space = TeamSpace(agents=2, observation=2, actions=3)
        self.action_space = MultiDiscrete([3, 3])
        self.won = np.zeros(num_envs, np.bool_)
        self._limit = limit
        self._places = np.zeros((num_envs, 2), np.int64)
        self._steps = np.zeros(num_envs, np.int64)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed: int, observation: Array) -> None:  # noqa: ARG002 - nothing is left to chance
        """Begin an episode in every environment."""
        self._ended[...] = False
        self._begin(np.ones(self.num_envs, np.bool_))
        self._show(observation)

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act in every environment; one whose episode has ended begins a new one."""
        fresh = self._ended.copy()  # These environments begin a new episode, and ignore the actions.
        self._places[...] = np.clip(self._places + actions - 1, 0, LAST)
        self._steps += 1
        self._begin(fresh)
        met = self._places[:, 0] == self._places[:, 1]
        self._show(observation)
        observation["reward"] = met[:, None]
        reward[...] = 2.0 * met
        self.won[...] = terminated[...] = met
        truncated[...] = (self._steps >= self._limit) & ~met
        self._ended[...] = met | truncated

    def _begin(self, where: Array) -> None:
        self._places[where] = (0, LAST)
        self._steps[where] = 0

    def _show(self, observation: Array) -> None:
        observation["observation"][:, 0] = self._places / LAST
        observation["observation"][:, 1] = self._places[:, ::-1] / LAST
        observation["reward"] = 0
        observation["available"] = True
        observation["alive"] = True

    def render(self) -> Any:
        """Refuse: this environment draws no picture."""
        raise BrokenEnvironmentError("meetings draw nothing")

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


class MeetingsFactory(EnvironmentFactory):
    """Builds the environment of a config with ``type = "meetings:MeetingsFactory"``."""

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Refuse any id: this type has only one environment."""
        if id:
            raise UnknownEnvironmentError(f"there is no {id!r}: this type has one environment, and no id")

    def make(
        self,
        id: str,  # noqa: A002, ARG002
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Any = None,  # noqa: ARG002
        render: bool = False,  # noqa: ARG002
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the game's own
        threads: int = 1,  # noqa: ARG002
    ) -> Meetings:
        """Build N pairs."""
        return Meetings(num_envs, max_episode_steps or LIMIT)

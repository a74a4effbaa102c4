"""N battles of SMAC as a ``VectorEnvironment``, stepped one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs import team
from tianji_envs.core import Array, VectorEnvironment, derive_seed
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.teams.smac_battles import Battle

NOOP: Final = 0
"""What the dead do, and they alone."""


class SMACVectorEnvironment(VectorEnvironment):
    """N battles.

    Args:
        create: builds one.
        num_envs: N.
    """

    won: npt.NDArray[np.bool_]

    def __init__(self, create: Callable[[], Battle], num_envs: int) -> None:
        self._battles = [create() for _ in range(num_envs)]
        sizes = self._battles[0].sizes
        self.num_envs = num_envs
        self.agents = tuple(f"ally_{i}" for i in range(sizes.agents))
        self.observation_space = team.TeamSpace(*sizes)
        self.action_space = gymnasium.spaces.MultiDiscrete([sizes.actions] * sizes.agents)
        self.won = np.zeros(num_envs, np.bool_)
        self._alive = np.zeros((num_envs, sizes.agents), np.bool_)
        self._ended = [False] * num_envs

    def reset(self, seed: int, observation: Array) -> None:
        """Begin a battle in every environment."""
        for i, battle in enumerate(self._battles):
            battle.begin(derive_seed(seed, i))
            self._ended[i] = False
            self._show(i, observation, 0.0)

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        """Act in, or begin anew, one battle after the other."""
        chosen = np.where(self._alive, actions, NOOP).tolist()
        for i, battle in enumerate(self._battles):
            if self._ended[i]:
                battle.begin(None)
                gained = 0.0
                terminated[i] = truncated[i] = self.won[i] = self._ended[i] = False
            else:
                gained, terminated[i], truncated[i], self.won[i] = battle.step(chosen[i])
                self._ended[i] = bool(terminated[i] or truncated[i])
            reward[i] = gained
            self._show(i, observation, gained)

    def _show(self, i: int, observation: Array, reward: float) -> None:
        battle = self._battles[i]
        available = np.asarray(battle.available(), np.bool_)
        self._alive[i] = ~available[:, NOOP]
        observation[team.OBSERVATION][i] = battle.observations()
        observation[team.STATE][i] = battle.state()
        observation[team.REWARD][i] = reward
        observation[team.AVAILABLE][i] = available
        observation[team.ALIVE][i] = self._alive[i]

    def render(self) -> npt.NDArray[np.uint8]:
        """Refuse.

        Raises:
            BrokenEnvironmentError: always.
        """
        raise BrokenEnvironmentError("battles of SMAC cannot be drawn; smac's own save_replay() films them")

    def close(self) -> None:
        """End every game."""
        battles, self._battles = self._battles, []
        for battle in battles:
            battle.close()

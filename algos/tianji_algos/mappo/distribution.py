"""The actions of a team: each agent chooses its own, independently of the others."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.core import Spaces
from tianji_algos.distributions import Actions, Categorical, Distribution, Gaussian
from tianji_algos.team import Team

Floats = npt.NDArray[np.float32]


class TeamDistribution(Distribution):
    """The distribution of one agent's actions, for each of M agents.

    A policy's output has M rows for each of N environments, ``[N * M, outputs]``. Actions that an agent has
    not, or may not choose, are the network's business: it makes them impossible, or constant.

    Args:
        spaces: of one environment.

    Raises:
        UnsupportedSpaceError: the environment shows no team.
    """

    def __init__(self, spaces: Spaces) -> None:
        team = Team.of(spaces)
        most = team.most_actions
        recorded = team.action_field()
        self._space = spaces.action
        if team.discrete:
            self._agent: Distribution = Categorical((most,), (0,), scalar=True, dtype=recorded.dtype)
        else:
            self._agent = Gaussian(gym.spaces.Box(-np.inf, np.inf, (most,), np.float32))
        self.agents = (team.agents,)
        self.outputs = self._agent.outputs
        self.action_shape = recorded.shape
        self.action_dtype = recorded.dtype
        self._log_prob = np.empty(0, np.float32)
        self._given = np.empty(0, self._space.dtype)

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw ``action [N, M, ...]`` and write its ``log_prob [N, M]``; ``action`` is contiguous."""
        if len(self._log_prob) != len(policy):
            self._log_prob = np.empty(len(policy), np.float32)
        self._agent.sample(policy, rng, self._of_agents(action), self._log_prob)
        log_prob[...] = self._log_prob.reshape(log_prob.shape)

    def mode(self, policy: Floats) -> Actions:
        """Give the likeliest actions ``[N, M, ...]``."""
        return self._agent.mode(policy).reshape(-1, *self.action_shape)

    def for_environment(self, action: Actions) -> Actions:
        """Give actions as the space's type, within each agent's own bounds; reused by the next call."""
        if self._given.shape != action.shape:
            self._given = np.empty(action.shape, self._space.dtype)
        if isinstance(self._space, gym.spaces.Box):
            np.clip(action, self._space.low, self._space.high, out=self._given)
        else:
            np.copyto(self._given, action)
        return self._given

    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Give log-probabilities and entropies of agents' actions, ``[rows]``, whichever agents' they are."""
        return self._agent.evaluate(policy, action)

    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Derive by the policy of the last ``evaluate``, ``[rows, outputs]``."""
        return self._agent.gradient(d_log_prob, d_entropy)

    def _of_agents(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View actions ``[N, M, ...]`` as ``[N * M, ...]``."""
        return action.reshape(-1, *self._agent.action_shape)

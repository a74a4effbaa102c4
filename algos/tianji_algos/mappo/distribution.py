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
        self._clip: gym.spaces.Box | None = None
        if isinstance(spaces.action, gym.spaces.Box):
            self._agent: Distribution = Gaussian(gym.spaces.Box(-np.inf, np.inf, (most,), np.float32))
            self._clip = spaces.action
        else:
            self._agent = Categorical((most,), (0,), scalar=True, dtype=np.dtype(np.int64))
        self.agents = (team.agents,)
        self.outputs = self._agent.outputs
        self.action_shape = (team.agents, *self._agent.action_shape)
        self.action_dtype = self._agent.action_dtype
        self._log_prob = np.empty(0, np.float32)

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
        """Clip to the space's bounds, which each agent has its own of."""
        if self._clip is None:
            return action
        return np.clip(action, self._clip.low, self._clip.high)

    def evaluate(self, policy: Floats, action: Actions) -> tuple[Floats, Floats]:
        """Give log-probabilities and entropies of agents' actions, ``[rows]``, whichever agents' they are."""
        return self._agent.evaluate(policy, action)

    def gradient(self, d_log_prob: Floats, d_entropy: float) -> Floats:
        """Derive by the policy of the last ``evaluate``, ``[rows, outputs]``."""
        return self._agent.gradient(d_log_prob, d_entropy)

    def _of_agents(self, action: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """View actions ``[N, M, ...]`` as ``[N * M, ...]``."""
        return action.reshape(-1, *self._agent.action_shape)

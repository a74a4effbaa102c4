"""MAPPO (Yu et al., 2022): PPO with a team's returns, its samples and its actions.

It reads from top to bottom: the order of samples, the update rule (the returns of a team; the rest is
``ppo/ppo.py``), the distribution of a team's actions, and the agent.

The update departs from the paper's in two things. Values are normalised only where ``normalize_values`` asks
for it, by statistics of all agents together; else ``normalize_rewards`` or ``reward_scale`` brings returns to
a size that networks learn. And a dead agent's value is the mean of those of the living (see ``_returns_of``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import AllReduce, Fields, Spaces
from tianji_algos.distributions import (
    Actions,
    Categorical,
    CategoricalRule,
    Distribution,
    Gaussian,
    GaussianRule,
)
from tianji_algos.mappo.settings import MAPPOAgentSettings, MAPPOSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.on_policy import scales_actions
from tianji_algos.ppo.ppo import Integers, PPOAgent, PPOEmbryo
from tianji_algos.rollout_observations import Indices, ShuffledSamples
from tianji_algos.rules import ActionBounds, ActionRule
from tianji_algos.team import Team, cut_off

Floats = npt.NDArray[np.float32]


class ShuffledTeams(ShuffledSamples):
    """Env steps of a rollout in random order, one by one; samples are the steps of agents that are alive.

    All agents of an env step go through the network together.
    """

    _alive: npt.NDArray[np.bool_]
    """``[env steps, M]``."""
    _sample: Indices
    """Number of the sample of each agent, ``[env steps, M]``; meaningless where an agent is dead."""
    _edges: list[int]
    """Begin of each minibatch of this learner in the order of env steps, and the end of the last."""
    _ordered_alive: npt.NDArray[np.bool_]
    """``_alive`` in the order of this epoch."""

    def hold(self, fragments: Sequence[Fields], learners: AllReduce) -> list[Indices]:
        """Record who is alive.

        Returns:
            Numbers, in ``T * N * M``, of the samples of each fragment.
        """
        self._learners = learners
        samples, alive = [], []
        for fragment, steps in zip(fragments, super().hold(fragments, learners), strict=True):
            lives = fragment["observation"]["alive"][:-1]
            agents = lives.shape[2]
            lives = lives.reshape(-1, agents)[steps]
            alive.append(lives)
            samples.append((steps[:, None] * agents + np.arange(agents))[lives])
        self._alive = np.concatenate(alive)
        self._sample = np.cumsum(self._alive).reshape(self._alive.shape) - 1
        return samples

    def shuffle(self, rng: np.random.Generator, minibatch_size: int) -> tuple[Indices, Integers]:
        """Shuffle env steps; minibatches have equally many of them, give or take one.

        Returns:
            The same as ``ShuffledSamples.shuffle``.
        """
        steps, edges = super().shuffle(rng, minibatch_size)
        alive = self._ordered_alive = self._alive[steps]
        self._edges = edges[self._learners.index].tolist()
        before = np.concatenate(([0], np.cumsum(np.count_nonzero(alive, axis=1))))
        return self._sample[steps][alive], self._learners.compare(before[self._edges])

    def input(self, number: int, samples: slice) -> tuple[Any, Indices | None]:  # noqa: ARG002 - the number will do
        """Return all agents' records of a minibatch, and the indices of the outputs that are samples."""
        steps = slice(*self._edges[number : number + 2])
        observation, _ = super().input(number, steps)
        alive = self._ordered_alive[steps]
        return observation, None if alive.all() else np.flatnonzero(alive)


class MAPPOEmbryo(PPOEmbryo):
    """MAPPO's update rule: trains a team's policies with PPO's loss, each on its agent's own steps.

    Values are of the global state, which policies do not see. A sample is a living agent's step.
    """

    algorithm: ClassVar[str] = "MAPPO"
    contract: ClassVar[type[torch.nn.Module]] = TeamActorCritic
    example: ClassVar[str] = "team_actor_critic"
    sums_in_double: ClassVar[bool] = True
    settings_type: ClassVar[type[MAPPOSettings]] = MAPPOSettings
    settings: MAPPOSettings

    def __init__(self, spaces: Spaces, model: TeamActorCritic, settings: MAPPOSettings, seed: int) -> None:
        super().__init__(spaces, model, settings, seed, TeamDistribution(spaces).of_agent)
        self._order = ShuffledTeams(self._observations)

    def _returns_of(self, fragment: Fields) -> tuple[Floats, Floats, npt.NDArray[Any], npt.NDArray[Any]]:
        """Return reward, value, terminated and mask of each agent, as ``estimate_advantages`` takes them.

        The team's rewards go on after an agent has died, so a dead agent's value is the mean value of the
        living. This is our own choice; Yu et al. (2022) show the value network zeros in place of a dead
        agent's observation. An agent's own rewards end with it. An agent that is cut off has the value of its
        last observation, and no part of the others' later rewards.

        Returns:
            The value is ``[T + 1, N, M]``; all others are ``[T, N, M]``, or ``[T, N, 1]`` where they are the
            same for all agents.
        """
        alive, value = fragment["observation"]["alive"], fragment["value"]  # [T + 1, N, M] both
        cut = cut_off(fragment["observation"])
        is_end = fragment["terminated"][..., None].astype(np.bool_)
        mask = fragment["mask"][..., None].astype(np.bool_)
        if self.settings.rewards == "team":
            if not alive.all():
                living = np.maximum(alive.sum(axis=2, keepdims=True), 1).astype(np.float32)
                value = np.where(alive | cut, value, (value * alive).sum(axis=2, keepdims=True) / living)
            return fragment["reward"][..., None], value, is_end, mask & ~cut[:-1]
        is_end = is_end | ~(alive | cut)[1:]
        return fragment["observation"]["reward"][1:], value, is_end, mask & alive[:-1]


class TeamDistribution(Distribution):
    """The distribution of one agent's actions, for each of M agents.

    A policy's output has M rows for each of N environments, ``[N * M, outputs]``. The network makes actions
    that an agent lacks, or may not choose, impossible, or their distribution constant.

    Args:
        scaled: -1 and 1 stand for the bounds of a Box; else for themselves.

    Attributes:
        of_agent: the distribution of one agent's actions.

    Raises:
        UnsupportedSpaceError: the environment shows no team.
    """

    def __init__(self, spaces: Spaces, *, scaled: bool = True) -> None:
        team = Team.of(spaces)
        most = team.most_actions
        recorded = team.action_field()
        self._space = spaces.action
        self._bounds = None if team.discrete else ActionBounds(spaces.action, scaled=scaled, may_be_open=True)
        if team.discrete:
            self.of_agent: Distribution = Categorical((most,), (0,), (), recorded.dtype)
        else:
            self.of_agent = Gaussian(gym.spaces.Box(-np.inf, np.inf, (most,), np.float32))
        self.agents = (team.agents,)
        self.outputs = self.of_agent.outputs
        self.action_shape = recorded.shape
        self.action_dtype = recorded.dtype
        self._log_prob = np.empty(0, np.float32)
        self._given = np.empty(0, self._space.dtype)

    def sample(self, policy: Floats, rng: np.random.Generator, action: Actions, log_prob: Floats) -> None:
        """Draw ``action [N, M, ...]`` and write its ``log_prob [N, M]``; ``action`` is contiguous."""
        if len(self._log_prob) != len(policy):
            self._log_prob = np.empty(len(policy), np.float32)
        self.of_agent.sample(policy, rng, action.reshape(-1, *action.shape[2:]), self._log_prob)
        log_prob[...] = self._log_prob.reshape(log_prob.shape)

    def mode(self, policy: Floats) -> Actions:
        """Return the likeliest actions ``[N, M, ...]``."""
        return self.of_agent.mode(policy).reshape(-1, *self.action_shape)

    def for_environment(self, action: Actions) -> Actions:
        """Return actions in the space's type, within each agent's own bounds; reused by the next call."""
        if self._bounds is not None:
            return self._bounds.scale(action)
        if self._given.shape != action.shape:
            self._given = np.empty(action.shape, self._space.dtype)
        np.copyto(self._given, action)
        return self._given

    def evaluate(self, policy: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and entropies of actions of any agents, ``[rows]``."""
        return self.of_agent.evaluate(policy, action)

    def rule(self) -> ActionRule:
        """Describe ``mode`` and ``sample`` of all agents in torch."""
        if self._bounds is not None:
            return GaussianRule(self._bounds, self.agents)
        assert isinstance(self.of_agent, Categorical)
        dtype = np.dtype(self._space.dtype)
        return CategoricalRule(self.of_agent.sets, (0,), self.action_shape, dtype, self.agents)


class MAPPOAgent(PPOAgent):
    """Acts by sampling for every agent of a team; records action, log-probability and value of each."""

    algorithm: ClassVar[str] = "MAPPO"
    contract: ClassVar[type[torch.nn.Module]] = TeamActorCritic
    settings_type: ClassVar[type[MAPPOAgentSettings]] = MAPPOAgentSettings  # type: ignore[assignment]
    default_model: ClassVar[str] = "team_actor_critic"
    default_embryo: ClassVar[str] = "mappo"
    plays_in_team: ClassVar[bool] = True

    @classmethod
    def distribution(cls, spaces: Spaces, settings: Any) -> TeamDistribution:
        """Return the distribution of each agent's actions."""
        return TeamDistribution(spaces, scaled=scales_actions(settings))

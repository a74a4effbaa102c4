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
from tianji_algos.distributions import Categorical, Distribution, Gaussian
from tianji_algos.mappo.settings import MAPPOAgentSettings, MAPPOSettings
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.on_policy import scales_actions
from tianji_algos.ppo.ppo import Integers, PPOAgent, PPOEmbryo
from tianji_algos.rollout_observations import Indices, ShuffledSamples
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
        super().__init__(spaces, model, settings, seed, team_distribution(spaces))
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


def team_distribution(spaces: Spaces, *, scaled: bool = True) -> Distribution:
    """Build the distribution of one agent's actions, for each of M agents.

    The network makes actions that an agent lacks, or may not choose, impossible, or their distribution
    constant.

    Args:
        scaled: -1 and 1 stand for the bounds of a Box; else for themselves.

    Raises:
        UnsupportedSpaceError: the environment shows no team.
    """
    team, space = Team.of(spaces), spaces.action
    agents = (team.agents,)
    if isinstance(space, gym.spaces.Box):
        return Gaussian(space, scaled=scaled, agents=agents)
    recorded = team.action_field().dtype
    return Categorical((team.most_actions,), (0,), (), np.dtype(space.dtype), agents, recorded)


class MAPPOAgent(PPOAgent):
    """Acts by sampling for every agent of a team; records action, log-probability and value of each."""

    algorithm: ClassVar[str] = "MAPPO"
    contract: ClassVar[type[torch.nn.Module]] = TeamActorCritic
    settings_type: ClassVar[type[MAPPOAgentSettings]] = MAPPOAgentSettings  # type: ignore[assignment]
    default_model: ClassVar[str] = "team_actor_critic"
    default_embryo: ClassVar[str] = "mappo"
    plays_in_team: ClassVar[bool] = True

    @classmethod
    def distribution(cls, spaces: Spaces, settings: Any) -> Distribution:
        """Return the distribution of each agent's actions."""
        return team_distribution(spaces, scaled=scales_actions(settings))

"""The networks of a team: a policy for each agent, and values that see the whole.

Torch holds the parameters; numpy does the arithmetic on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Spaces
from tianji_algos.device import is_on_host, part_of_records
from tianji_algos.mappo.settings import TeamActorCriticSettings
from tianji_algos.models.actor_critic import ActorCritic, Backprop, LossGradient
from tianji_algos.models.layers import NumpyExecutor, build_layers, gradient_views, value_views
from tianji_algos.models.teams.networks import AgentNetworks, AgentRows, CentralNetwork, append_identity
from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]

IMPOSSIBLE: Final = -1e9
"""Logit of an action that is not available: its probability is 0, and no gradient flows.

It is finite, since an entropy has products of probabilities with their logarithms.
"""


class TeamActorCritic(ActorCritic):
    """A policy and a value for each agent of a team.

    Outputs have M rows for each record, one agent after another: policy ``[N * M, outputs]`` and value
    ``[N * M]``. Logits of actions that are not available are ``IMPOSSIBLE``; numbers that an agent's
    continuous action does not have are drawn from a standard normal distribution.

    Raises:
        UnsupportedSpaceError: the environment shows no team.
    """

    settings_type: ClassVar[type[TeamActorCriticSettings]] = TeamActorCriticSettings

    def __init__(self, spaces: Spaces, settings: TeamActorCriticSettings) -> None:
        super().__init__()
        self.settings = settings
        self.team = team = Team.of(spaces)
        assert spaces.observation.dtype is not None, "Team.of() has seen to it"
        self._dtype = spaces.observation.dtype
        agents, most = team.agents, team.most_actions
        own = team.observation + (agents if settings.share_parameters else 0)
        if settings.agent_specific_value:
            value_inputs, value_outputs = own + team.state, 1
        else:
            value_inputs, value_outputs = team.state, agents if settings.share_parameters else 1
        self.policy = self._networks(own, [settings.policy_gain] * most)
        self.value = self._networks(value_inputs, [1.0] * value_outputs)
        number = len(self.policy)
        self.log_std = (
            None if team.discrete else nn.Parameter(torch.full((number, most), settings.initial_log_std))
        )
        # [M, A]: which numbers an agent's action has.
        self.exists = np.arange(most) < np.array(team.actions)[:, None]

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy and value in torch, on any device, from records as bytes ``[N, record size]``."""
        part = partial(part_of_records, observation, self._dtype)
        own = part("observation")
        state = part("state") if self.team.has_state else own.flatten(1)
        batch, agents = own.shape[:2]
        if self.settings.share_parameters:
            own = append_identity(own, 1)
        states = state[:, None].expand(-1, agents, -1)
        policy = _apply(self.policy, own)
        if self.settings.agent_specific_value:
            value = _apply(self.value, torch.cat((own, states), dim=2))
        elif self.settings.share_parameters:
            value = self.value[0](state)
        else:
            value = _apply(self.value, states)
        if self.log_std is None:
            policy = policy.masked_fill(~part("available"), IMPOSSIBLE)
        else:
            exists = torch.from_numpy(self.exists).to(policy.device, policy.dtype)
            policy = torch.cat((policy * exists, (self.log_std * exists).expand_as(policy)), dim=2)
        return policy.reshape(batch * agents, -1), value.reshape(-1)

    def executor(self, batch_size: int) -> Executor:
        """Act in numpy with a copy of the parameters on a CPU, in torch elsewhere."""
        if not is_on_host(self):
            return super().executor(batch_size)
        return NumpyExecutor(self, partial(_NumpyTeam, self))

    def backprop(self) -> Backprop:
        """Train in numpy."""
        return TeamBackprop(self)

    def _networks(self, inputs: int, output_gains: list[float]) -> nn.ModuleList:
        settings = self.settings
        number = 1 if settings.share_parameters else self.team.agents
        return nn.ModuleList(
            build_layers(inputs, settings.hidden, settings.activation, output_gains) for _ in range(number)
        )


class _NumpyTeam:
    """All networks' forward pass over named arrays."""

    def __init__(self, model: TeamActorCritic, arrays: Mapping[str, Floats]) -> None:
        settings, team, number = model.settings, model.team, len(model.policy)
        shares, activation = settings.share_parameters, settings.activation
        self.policy = AgentNetworks(arrays, "policy", number, activation)
        self._own = AgentRows(team, identity=shares, state=False)
        self.value: AgentNetworks | CentralNetwork = AgentNetworks(arrays, "value", number, activation)
        self._value_input: Callable[[Records], Floats] = partial(_states, team)
        if settings.agent_specific_value:
            self._value_input = AgentRows(team, identity=shares, state=True)
        elif shares:
            self.value = CentralNetwork(arrays, "value", team.agents, activation)
            self._value_input = team.state_of
        self._log_std = arrays.get("log_std")
        self.exists = model.exists.T[:, None]  # [A, 1, M]
        self._unavailable = np.empty((team.most_actions, 0, team.agents), np.bool_)
        self._gaussian = np.empty((2 * team.most_actions, 0), np.float32)

    def __call__(self, seen: Records) -> tuple[Floats, Floats]:
        """Return policy ``[N * M, outputs]`` and value ``[N * M]``, reused by the next call."""
        policy = self.policy.forward(self._own(seen))
        value = self.value.forward(self._value_input(seen))[0]
        if self._log_std is None:
            self._forbid(policy.reshape(len(policy), len(seen), -1), seen["available"])
        else:
            policy = self._with_spread(policy, self._log_std)
        return policy.T, value

    def _forbid(self, logit: Floats, available: npt.NDArray[np.bool_]) -> None:
        """Make what is not ``available [N, M, A]`` impossible in ``logit [A, N, M]``, in place."""
        if self._unavailable.shape[1] != logit.shape[1]:
            self._unavailable = np.empty(logit.shape, np.bool_)
        np.logical_not(available.transpose(2, 0, 1), out=self._unavailable)
        np.copyto(logit, IMPOSSIBLE, where=self._unavailable)

    def _with_spread(self, mean: Floats, log_std: Floats) -> Floats:
        """Put means ``[A, N * M]`` and logarithms of standard deviations ``[1 or M, A]`` together."""
        numbers, rows = mean.shape
        if self._gaussian.shape[1] != rows:
            self._gaussian = np.empty((2 * numbers, rows), np.float32)
        agents = self.exists.shape[2]
        both = self._gaussian.reshape(2, numbers, -1, agents)
        np.multiply(mean.reshape(numbers, -1, agents), self.exists, out=both[0])
        np.multiply(log_std.T[:, None], self.exists, out=both[1])
        return self._gaussian


class TeamBackprop:
    """Differentiates a ``TeamActorCritic`` by hand.

    Args:
        model: its parameters and their ``grad`` are read and written where they are now.
    """

    def __init__(self, model: TeamActorCritic) -> None:
        self._gradients = gradient_views(model)
        self._networks = _NumpyTeam(model, value_views(model))
        self._d_log_std = self._gradients.get("log_std")

    def __call__(self, observation: Records, loss_gradient: LossGradient) -> None:
        """Write the gradient of a loss on records ``[B]``."""
        policy, value = self._networks(observation)
        d_policy, d_value = loss_gradient(policy, value)
        d_output = d_policy.T
        if self._d_log_std is not None:
            d_output = self._of_means(d_output, self._d_log_std)
        self._networks.policy.backward(d_output, self._gradients)
        self._networks.value.backward(d_value[None], self._gradients)

    def _of_means(self, d_policy: Floats, d_log_std: Floats) -> Floats:
        """Write the gradient of the spread; give that of means that exist, ``[A, B * M]``."""
        exists = self._networks.exists
        numbers, agents = len(exists), exists.shape[2]
        both = d_policy.reshape(2, numbers, -1, agents) * exists
        d_spread = both[1].sum(axis=1).T  # [M, A]
        d_log_std[...] = d_spread if len(d_log_std) == agents else d_spread.sum(axis=0)
        d_mean: Floats = both[0].reshape(numbers, -1)
        return d_mean


def _states(team: Team, seen: Records) -> Floats:
    """Return the state for each agent: ``[N, M, S]``, without copies."""
    state = team.state_of(seen)
    states: Floats = np.broadcast_to(state[:, None], (len(seen), team.agents, team.state))
    return states


def _apply(networks: nn.ModuleList, rows: torch.Tensor) -> torch.Tensor:
    """Apply one network to all rows ``[N, M, ...]``, or each to its agent's."""
    if len(networks) == 1:
        output: torch.Tensor = networks[0](rows)
        return output
    return torch.stack([network(rows[:, m]) for m, network in enumerate(networks)], dim=1)

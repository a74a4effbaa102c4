"""Actor-critic networks of a team: a policy for each agent, and values of the global state.

Torch holds the parameters. On a CPU numpy does the arithmetic (``fast_cpu/team.py``), elsewhere torch.
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from tianji_algos.core import Executor, Spaces
from tianji_algos.device import is_on_host, part_of_records
from tianji_algos.models.actor_critic import ActorCritic, Backprop
from tianji_algos.models.layers import build_layers
from tianji_algos.models.settings import TeamActorCriticSettings
from tianji_algos.models.teams.networks import append_identity
from tianji_algos.registry import kernel
from tianji_algos.team import IMPOSSIBLE, Team


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
        """Build an executor with a copy of the parameters: in numpy on a CPU, in torch elsewhere."""
        if not is_on_host(self):
            return super().executor(batch_size)
        built: Executor = kernel("TeamActorCritic.executor")(self)
        return built

    def backprop(self) -> Backprop:
        """Build the backward pass in numpy."""
        built: Backprop = kernel("TeamActorCritic.backprop")(self)
        return built

    def _networks(self, inputs: int, output_gains: list[float]) -> nn.ModuleList:
        settings = self.settings
        number = 1 if settings.share_parameters else self.team.agents
        return nn.ModuleList(
            build_layers(inputs, settings.hidden, settings.activation, output_gains) for _ in range(number)
        )


def _apply(networks: nn.ModuleList, rows: torch.Tensor) -> torch.Tensor:
    """Apply one network to all rows ``[N, M, ...]``, or each to its agent's."""
    if len(networks) == 1:
        output: torch.Tensor = networks[0](rows)
        return output
    return torch.stack([network(rows[:, m]) for m, network in enumerate(networks)], dim=1)

"""A team's policies and values in numpy, and their derivatives.

``models/teams/actor_critic.py`` says what is computed, and why: ``TeamActorCritic.forward``, in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from tianji_algos.fast_cpu.layers import (
    NumpyExecutor,
    dense_network,
    gradient_views,
    select_layers,
    value_views,
)
from tianji_algos.models.actor_critic import LossGradient
from tianji_algos.models.teams.actor_critic import TeamActorCritic
from tianji_algos.models.teams.networks import AgentRows
from tianji_algos.team import IMPOSSIBLE, Records, Team

Floats = npt.NDArray[np.float32]


class NumpyTeam:
    """All networks' forward pass over named arrays."""

    def __init__(self, model: TeamActorCritic, arrays: Mapping[str, Floats]) -> None:
        settings, team, number = model.settings, model.team, len(model.policy)
        shares, activation = settings.share_parameters, settings.activation
        self.policy = AgentNetworks(arrays, "policy", number, activation)
        self._own = AgentRows(team, identity=shares)
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
        """Make actions that are not ``available [N, M, A]`` impossible in ``logit [A, N, M]``, in place."""
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


def team_executor(model: TeamActorCritic) -> NumpyExecutor:
    """Build the executor, with a copy of the parameters."""
    return NumpyExecutor(model, partial(NumpyTeam, model))


class TeamBackprop:
    """Differentiates a ``TeamActorCritic`` by hand.

    Args:
        model: network whose parameters are read, and whose ``grad`` is written, in place.
    """

    def __init__(self, model: TeamActorCritic) -> None:
        self._gradients = gradient_views(model)
        self._networks = NumpyTeam(model, value_views(model))
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
        """Write the gradient of ``log_std``; return that of the existing means, ``[A, B * M]``."""
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


class AgentNetworks:
    """One network for the rows of all agents, or a network for each.

    Derivatives are by hand, as those of single-agent actor-critics; ``BatchedLayers`` computes all networks
    at once and leaves derivatives to torch.
    """

    def __init__(self, arrays: Mapping[str, Floats], prefix: str, number: int, activation: str) -> None:
        self._prefixes = [f"{prefix}.{k}" for k in range(number)]
        self._networks = [dense_network(arrays, name, activation) for name in self._prefixes]
        self._output = np.empty((0, 0, 0), np.float32)

    def forward(self, rows: Floats) -> Floats:
        """Compute ``[outputs, N * M]`` of ``[N, M, inputs]``; reused by the next call."""
        batch, agents = rows.shape[:2]
        if len(self._networks) == 1:
            return self._networks[0].forward(rows.reshape(batch * agents, -1))
        for m, network in enumerate(self._networks):
            output = network.forward(rows[:, m])
            if self._output.shape[1] != batch:
                self._output = np.empty((len(output), batch, agents), np.float32)
            self._output[:, :, m] = output
        return self._output.reshape(len(self._output), batch * agents)

    def backward(self, d_output: Floats, gradients: Mapping[str, Floats]) -> None:
        """Write the gradient of the last ``forward``, given ``d_output [outputs, N * M]``."""
        number = len(self._networks)
        split = d_output.reshape(len(d_output), -1, number)
        for m, (network, prefix) in enumerate(zip(self._networks, self._prefixes, strict=True)):
            network.backward(np.ascontiguousarray(split[:, :, m]), *select_layers(gradients, prefix))


class CentralNetwork:
    """One network over the state, with an output for each agent."""

    def __init__(self, arrays: Mapping[str, Floats], prefix: str, agents: int, activation: str) -> None:
        self._prefix = f"{prefix}.0"
        self._agents = agents
        self._network = dense_network(arrays, self._prefix, activation)

    def forward(self, state: Floats) -> Floats:
        """Compute ``[1, N * M]`` of ``[N, S]``."""
        return self._network.forward(state).T.reshape(1, -1)

    def backward(self, d_output: Floats, gradients: Mapping[str, Floats]) -> None:
        """Write the gradient of the last ``forward``, given ``d_output [1, N * M]``."""
        d_of_agents = np.ascontiguousarray(d_output.reshape(-1, self._agents).T)
        self._network.backward(d_of_agents, *select_layers(gradients, self._prefix))

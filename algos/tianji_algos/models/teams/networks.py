"""The networks of a team in numpy, one for all agents or one for each, and what they see."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.models.layers import dense_network, select_layers
from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]


class AgentRows:
    """Puts together, in numpy, the rows that agents' networks take.

    Args:
        identity: say who the agent is.
        state: give the state, too.
    """

    def __init__(self, team: Team, *, identity: bool, state: bool) -> None:
        self._team = team
        self._is_observation = not identity and not state
        self._state = team.observation + (team.agents if identity else 0) if state else None
        self._identity = np.eye(team.agents, dtype=np.float32) if identity else None
        self._width = team.observation + identity * team.agents + state * team.state
        self._rows = np.empty((0, team.agents, self._width), np.float32)

    def __call__(self, seen: Records) -> Floats:
        """Return ``[N, M, inputs]`` of records ``[N]``; reused by the next call."""
        own: Floats = seen["observation"]
        if self._is_observation:
            return own
        team = self._team
        if len(self._rows) < len(seen):
            self._rows = np.empty((len(seen), team.agents, self._width), np.float32)
            if self._identity is not None:
                self._rows[:, :, team.observation : team.observation + team.agents] = self._identity
        rows = self._rows[: len(seen)]
        rows[:, :, : team.observation] = own
        if self._state is not None:
            rows[:, :, self._state :] = team.state_of(seen)[:, None]
        return rows


def append_identity(rows: torch.Tensor, agents_axis: int) -> torch.Tensor:
    """Append to rows ``[M, B, ...]`` or ``[B, M, ...]`` which agent they are of, one-hot.

    Args:
        agents_axis: 0 or 1, which axis the agents are.
    """
    agents = rows.shape[agents_axis]
    identity = torch.eye(agents, dtype=rows.dtype, device=rows.device).unsqueeze(1 - agents_axis)
    return torch.cat((rows, identity.expand(*rows.shape[:2], agents)), dim=2)


class AgentNetworks:
    """One network for the rows of all agents, or a network for each.

    They are differentiated by hand, as the single-agent actor-critics are; ``BatchedLayers``, which computes
    all networks at once, leaves that to torch.
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
    """One network of the state, with an output for each agent."""

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

"""The networks of a team in numpy, forward and backward: one for all agents, or one for each."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tianji_algos.models.layers import dense_network, select_layers

Floats = npt.NDArray[np.float32]


class AgentNetworks:
    """One network for the rows of all agents, or a network for each.

    They are differentiated by hand, as the single-agent actor-critics are; ``BatchedLayers``, which computes
    all networks at once, leaves that to torch.

    Args:
        arrays: weights and biases by name.
        prefix: of their names.
        number: of networks.
        activation: "tanh" or "relu".
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
    """One network of the state, with an output for each agent.

    Args:
        arrays: weights and biases by name.
        prefix: of their names.
        agents: M.
        activation: "tanh" or "relu".
    """

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

"""Networks of a team that torch differentiates: one for all agents or one for each, computed together.

Networks with derivatives by hand are computed one by one (``fast_cpu/team.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.team import Records, Team

Floats = npt.NDArray[np.float32]


def append_identity(rows: torch.Tensor, agents_axis: int) -> torch.Tensor:
    """Append the agent's identity, one-hot, to rows ``[M, B, ...]`` or ``[B, M, ...]``.

    Args:
        agents_axis: axis of the agents, 0 or 1.
    """
    agents = rows.shape[agents_axis]
    identity = torch.eye(agents, dtype=rows.dtype, device=rows.device).unsqueeze(1 - agents_axis)
    return torch.cat((rows, identity.expand(*rows.shape[:2], agents)), dim=2)


class AgentRows:
    """Builds, in numpy, the input rows of agents' networks: observations, and after these what is asked for.

    Args:
        last_action: append the agent's last action, one-hot.
        identity: append the agent's identity, one-hot.
        state: append the state.

    Attributes:
        width: numbers in a row.
    """

    def __init__(
        self, team: Team, *, last_action: bool = False, identity: bool = False, state: bool = False
    ) -> None:
        self._team = team
        self._numbers = np.arange(team.most_actions if last_action else 0)
        self._identity = np.eye(team.agents, dtype=np.float32) if identity else None
        self._has_state = state
        sizes = (team.observation, len(self._numbers), identity * team.agents, state * team.state)
        *edges, self.width = accumulate(sizes, initial=0)
        self._own, self._done, self._who, self._state = map(slice, edges, (*edges[1:], self.width))
        self._rows = np.empty((0, team.agents, self.width), np.float32)

    def __call__(self, seen: Records, last_action: npt.NDArray[np.int64] | None = None) -> Floats:
        """Return ``[N, M, width]`` of records ``[N]``; reused by the next call.

        Args:
            last_action: ``[N, M]``, -1 where there was none; None only for rows without.
        """
        own: Floats = seen["observation"]
        if last_action is None and self.width == self._team.observation:
            return own
        if len(self._rows) < len(seen):
            self._rows = np.empty((len(seen), *self._rows.shape[1:]), np.float32)
            if self._identity is not None:
                self._rows[:, :, self._who] = self._identity
        rows = self._rows[: len(seen)]
        rows[:, :, self._own] = own
        if last_action is not None:
            np.equal(last_action[:, :, None], self._numbers, out=rows[:, :, self._done])
        if self._has_state:
            rows[:, :, self._state] = self._team.state_of(seen)[:, None]
        return rows


class BatchedLayers(nn.Module):
    """G networks with orthogonal weights and zero biases, an activation after each hidden layer.

    Torch differentiates them, for losses that go through several networks, or through time. ``AgentNetworks``
    and ``DenseNetwork`` are for losses simple enough for derivatives by hand.
    """

    def __init__(
        self,
        networks: int,
        inputs: int,
        hidden: Sequence[int],
        outputs: int,
        activation: str,
        output_gain: float,
    ) -> None:
        super().__init__()
        self.networks, self.inputs = networks, inputs
        widths = list(pairwise((inputs, *hidden, outputs)))
        self.weights = nn.ParameterList(nn.Parameter(torch.empty(networks, *width)) for width in widths)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(networks, 1, width[1])) for width in widths)
        self._activate = torch.tanh if activation == "tanh" else torch.relu
        for weights in self.weights:
            gain = output_gain if weights is self.weights[-1] else math.sqrt(2.0)
            for weight in weights:
                nn.init.orthogonal_(weight, gain)

    def forward(self, rows: torch.Tensor, *, frozen: bool = False) -> torch.Tensor:
        """Compute ``[G, B, outputs]`` of ``rows [G, B, inputs]``.

        Args:
            frozen: gradients reach the input alone, and not the parameters.
        """
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            if frozen:
                weight, bias = weight.detach(), bias.detach()  # noqa: PLW2901 - the same numbers
            if layer > 0:
                rows = self._activate(rows)
            rows = torch.baddbmm(bias, rows, weight)
        return rows


class NumpyBatchedLayers:
    """``BatchedLayers`` for acting, over arrays that it does not own.

    Args:
        arrays: weights and biases by the names that they have in a ``BatchedLayers`` called ``prefix``.
    """

    def __init__(self, arrays: Mapping[str, Floats], prefix: str, activation: str) -> None:
        layers = sum(name.startswith(f"{prefix}.weights.") for name in arrays)
        self._weights = [arrays[f"{prefix}.weights.{layer}"] for layer in range(layers)]
        self._biases = [arrays[f"{prefix}.biases.{layer}"] for layer in range(layers)]
        self._tanh = activation == "tanh"
        self._outputs: list[Floats] = []

    def __call__(self, rows: Floats) -> Floats:
        """Compute ``[G, N, outputs]`` of ``rows [G, N, inputs]``; reused by the next call."""
        if not self._outputs or self._outputs[0].shape[1] != rows.shape[1]:
            shapes = [(len(rows), rows.shape[1], weight.shape[2]) for weight in self._weights]
            self._outputs = [np.empty(shape, np.float32) for shape in shapes]
        last = self._outputs[-1]
        for weight, bias, output in zip(self._weights, self._biases, self._outputs, strict=True):
            np.matmul(rows, weight, out=output)
            np.add(output, bias, out=output)
            if output is not last:
                if self._tanh:
                    np.tanh(output, out=output)
                else:
                    np.maximum(output, np.float32(0.0), out=output)
            rows = output
        return last


class BatchedGRU(nn.Module):
    """G networks of one layer of GRU cells (Cho et al., 2014), with orthogonal weights and zero biases.

    The gates of a cell are in the order reset, update, new. As in torch and cuDNN, and unlike in the paper,
    a cell applies the reset gate after multiplying the state by its weights, and not before.

    Args:
        width: H, width of each network's state, which is its output.
    """

    def __init__(self, networks: int, inputs: int, width: int) -> None:
        super().__init__()
        self._width = width
        self.input_weight = nn.Parameter(torch.empty(networks, inputs, 3 * width))
        self.state_weight = nn.Parameter(torch.empty(networks, width, 3 * width))
        self.bias = nn.Parameter(torch.zeros(networks, 1, 3 * width))
        self.state_bias = nn.Parameter(torch.zeros(networks, 1, width))
        for weights in (self.input_weight, self.state_weight):
            for weight in weights.detach():
                for gate in weight.chunk(3, dim=1):
                    nn.init.orthogonal_(gate)

    def forward(
        self, rows: torch.Tensor, sizes: Sequence[int], state: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Go through sequences from their first step.

        Torch's own GRU takes a third longer for this on a CPU.

        Args:
            rows: ``[G, R, inputs]``: first of all sequences at step 0, then at step 1, and so on.
            sizes: number of sequences that have each step; those that end are the last.
            state: state before the first step, ``[G, sizes[0], H]``; None: zeros.

        Returns:
            The state after each step, ``[G, R, H]``.
        """
        width = self._width
        gates = torch.baddbmm(self.bias, rows, self.input_weight)
        if state is None:
            state = gates.new_zeros(len(gates), sizes[0], width)
        outputs: list[torch.Tensor] = []
        for size, gate in zip(sizes, torch.split(gates, list(sizes), dim=1), strict=True):
            state = state[:, :size]
            remembered = torch.bmm(state, self.state_weight)
            both = torch.sigmoid(gate[..., : 2 * width] + remembered[..., : 2 * width])
            reset, update = both.chunk(2, dim=2)
            new = remembered[..., 2 * width :] + self.state_bias
            new = torch.tanh(torch.addcmul(gate[..., 2 * width :], reset, new))
            state = torch.lerp(new, state, update)
            outputs.append(state)
        return torch.cat(outputs, dim=1)


class NumpyBatchedGRU:
    """``BatchedGRU`` for acting, step by step, over arrays that it does not own.

    Args:
        arrays: parameters by the names that they have in a ``BatchedGRU`` called ``prefix``.
        rows: N, rows of each network.

    Attributes:
        state: current state, ``[G, N, H]``.
    """

    def __init__(self, arrays: Mapping[str, Floats], prefix: str, rows: int) -> None:
        self._input_weight = arrays[f"{prefix}.input_weight"]
        self._state_weight = arrays[f"{prefix}.state_weight"]
        self._bias = arrays[f"{prefix}.bias"]
        self._state_bias = arrays[f"{prefix}.state_bias"]
        networks, width, gates = self._state_weight.shape
        self.state = np.zeros((networks, rows, width), np.float32)
        self._gates = np.empty((networks, rows, gates), np.float32)
        self._remembered = np.empty_like(self._gates)

    def __call__(self, rows: Floats) -> Floats:
        """Move on by one step with ``rows [G, N, inputs]``; returns ``state``."""
        state, gates, remembered = self.state, self._gates, self._remembered
        width = state.shape[2]
        np.matmul(rows, self._input_weight, out=gates)
        gates += self._bias
        np.matmul(state, self._state_weight, out=remembered)
        both, new = gates[..., : 2 * width], gates[..., 2 * width :]
        both += remembered[..., : 2 * width]
        _sigmoid(both)
        candidate = remembered[..., 2 * width :]
        candidate += self._state_bias
        candidate *= both[..., :width]
        new += candidate
        np.tanh(new, out=new)
        state -= new
        state *= both[..., width:]
        state += new
        return state


def _sigmoid(values: Floats) -> None:
    """Apply the logistic function in place; numpy's tanh is much faster than its exp."""
    half = np.float32(0.5)
    values *= half
    np.tanh(values, out=values)
    values *= half
    values += half

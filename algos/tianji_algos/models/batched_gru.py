"""GRUs of the same width side by side, computed together: in torch through time, and in numpy to act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Floats = npt.NDArray[np.float32]


class BatchedGRU(nn.Module):
    """G networks of one layer of GRU cells (Cho et al., 2014), with orthogonal weights and zero biases.

    The gates of a cell are in the order reset, update, new. As in torch and cuDNN, and unlike in the paper,
    the reset gate is applied after what is remembered was multiplied by its weights, and not before.

    Args:
        networks: G.
        inputs: width of what each gets.
        width: H, of what each remembers and gives.
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

    def forward(self, rows: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        """Go through sequences from their first step, before which nothing is remembered.

        Torch's own GRU takes a third longer for this on a CPU.

        Args:
            rows: ``[G, R, inputs]``: first of all sequences at step 0, then at step 1, and so on.
            sizes: how many sequences have that step; those that end are the last.

        Returns:
            What each gives after each step, ``[G, R, H]``.
        """
        width = self._width
        gates = torch.baddbmm(self.bias, rows, self.input_weight)
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
    """The same for acting, step by step, over arrays that belong to somebody else.

    Args:
        arrays: parameters by the names that they have in a ``BatchedGRU`` called ``prefix``.
        prefix: name of that.
        rows: N, of each network.

    Attributes:
        state: what is remembered, ``[G, N, H]``.
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
        """Move on by one step with ``rows [G, N, inputs]``; gives ``state``."""
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

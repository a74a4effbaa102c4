"""A fully connected network in numpy, forward and backward, over parameters that live elsewhere.

Torch's tanh on a CPU takes about ten times as long as numpy's, and at these sizes its autograd costs as
much as the arithmetic. Activations are feature-major, ``[width, N]``: biases and their gradients then run
along memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class DenseNetwork:
    """Weights ``[out, in]`` and biases ``[out]`` per layer, an activation after all but the last.

    The arrays are borrowed: what an optimizer writes into them is what the next pass computes with.

    Args:
        weights: of each layer.
        biases: of each layer.
        activation: "tanh" or "relu".
    """

    def __init__(self, weights: Sequence[Floats], biases: Sequence[Floats], activation: str) -> None:
        self._weights = weights
        self._biases = [bias[:, None] for bias in biases]
        self._tanh = activation == "tanh"
        self._last = len(weights) - 1
        self._rows = -1
        self._input: Floats = np.empty((0, 0), np.float32)
        self._outputs: list[Floats] = []
        self._scratch: list[Floats] = []

    def forward(self, rows: Floats) -> Floats:
        """Compute ``[outputs, N]`` for ``rows [N, inputs]``; the result is reused by the next call."""
        if len(rows) != self._rows:
            self._allocate(len(rows))
        self._input = rows
        flowing = rows.T
        for k, out in enumerate(self._outputs):
            np.matmul(self._weights[k], flowing, out=out)
            np.add(out, self._biases[k], out=out)
            if k < self._last:
                if self._tanh:
                    np.tanh(out, out=out)
                else:
                    np.maximum(out, np.float32(0.0), out=out)
            flowing = out
        return flowing

    def backward(self, d_output: Floats, d_weights: Sequence[Floats], d_biases: Sequence[Floats]) -> None:
        """Write the gradient of the last ``forward``; uses up the activations kept from it.

        Args:
            d_output: derivative of the loss by the output, ``[outputs, N]``.
            d_weights: written, ``[out, in]`` per layer.
            d_biases: written, ``[out]`` per layer.
        """
        for k in range(self._last, -1, -1):
            np.add.reduce(d_output, axis=1, out=d_biases[k])
            if k == 0:
                np.matmul(d_output, self._input, out=d_weights[0])
                return
            hidden, d_hidden = self._outputs[k - 1], self._scratch[k - 1]
            np.matmul(d_output, hidden.T, out=d_weights[k])
            if len(d_output) == 1:  # an outer product, which BLAS is four times slower at
                np.multiply(self._weights[k].T, d_output, out=d_hidden)
            else:
                np.matmul(self._weights[k].T, d_output, out=d_hidden)
            if self._tanh:  # d tanh(x) / dx = 1 - tanh(x)^2
                np.multiply(hidden, hidden, out=hidden)
                np.subtract(np.float32(1.0), hidden, out=hidden)
                d_hidden *= hidden
            else:
                d_hidden *= hidden > 0
            d_output = d_hidden

    def _allocate(self, rows: int) -> None:
        self._rows = rows
        self._outputs = [np.empty((len(weight), rows), np.float32) for weight in self._weights]
        self._scratch = [np.empty_like(output) for output in self._outputs[:-1]]

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
    """Weights ``[out, in]`` and biases ``[out]`` per layer, an activation after each or all but the last.

    The arrays are borrowed: what an optimizer writes into them is what the next pass computes with.

    Args:
        weights: of each layer.
        biases: of each layer.
        activation: "tanh" or "relu".
        activate_output: apply it to the last layer, too.
    """

    def __init__(
        self,
        weights: Sequence[Floats],
        biases: Sequence[Floats],
        activation: str,
        activate_output: bool = False,
    ) -> None:
        self._weights = weights
        self._biases = [bias[:, None] for bias in biases]
        self._tanh = activation == "tanh"
        self._activated = len(weights) - (0 if activate_output else 1)
        self._rows = -1
        # Of a row, numpy's maximum takes a third of the time that it takes of a number; as a product with
        # ones, the sum that is a bias's gradient takes a quarter.
        self._zeros = self._ones = np.empty(0, np.float32)
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
            if k < self._activated:
                if self._tanh:
                    np.tanh(out, out=out)
                else:
                    np.maximum(out, self._zeros, out=out)
            flowing = out
        return flowing

    def backward(
        self,
        d_output: Floats,
        d_weights: Sequence[Floats],
        d_biases: Sequence[Floats],
        d_input: Floats | None = None,
    ) -> None:
        """Write the gradient of the last ``forward``; uses up the activations kept from it.

        Args:
            d_output: derivative of the loss by the output, ``[outputs, N]``; used up if that is activated.
            d_weights: written, ``[out, in]`` per layer.
            d_biases: written, ``[out]`` per layer.
            d_input: written if given: derivative of the loss by the input, ``[inputs, N]``.
        """
        for k in range(len(self._outputs) - 1, -1, -1):
            if k < self._activated:
                self._through_activation(d_output, self._outputs[k])
            np.matmul(d_output, self._ones, out=d_biases[k])
            d_below = self._scratch[k - 1] if k > 0 else d_input
            below = self._outputs[k - 1].T if k > 0 else self._input
            np.matmul(d_output, below, out=d_weights[k])
            if d_below is None:
                return
            if len(d_output) == 1:  # an outer product, which BLAS is four times slower at
                np.multiply(self._weights[k].T, d_output, out=d_below)
            else:
                np.matmul(self._weights[k].T, d_output, out=d_below)
            d_output = d_below

    def _through_activation(self, d_output: Floats, output: Floats) -> None:
        """Turn the derivative by a layer's ``output`` into that by what was activated, in place."""
        if self._tanh:  # d tanh(x) / dx = 1 - tanh(x)^2
            np.multiply(output, output, out=output)
            np.subtract(np.float32(1.0), output, out=output)
            d_output *= output
        else:
            d_output *= output > 0

    def _allocate(self, rows: int) -> None:
        self._rows = rows
        self._zeros, self._ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
        self._outputs = [np.empty((len(weight), rows), np.float32) for weight in self._weights]
        self._scratch = [np.empty_like(output) for output in self._outputs[:-1]]

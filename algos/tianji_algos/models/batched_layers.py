"""Fully connected networks of the same widths, computed together: in torch, and to act in numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Floats = npt.NDArray[np.float32]


class BatchedLayers(nn.Module):
    """G networks with orthogonal weights and zero biases, an activation after each hidden layer.

    Torch differentiates them: they stand in losses that go through several networks, or through time.
    ``AgentNetworks`` and ``DenseNetwork`` are for losses simple enough to be differentiated by hand.

    Args:
        networks: G.
        inputs: width of the input.
        hidden: widths of the hidden layers.
        outputs: width of the output.
        activation: "tanh" or "relu".
        output_gain: scale of the output layer's initial weights.
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
            rows: the input of each network.
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
    """The same for acting, over arrays that belong to somebody else.

    Args:
        arrays: weights and biases by the names that they have in a ``BatchedLayers`` called ``prefix``.
        prefix: name of that.
        activation: "tanh" or "relu".
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

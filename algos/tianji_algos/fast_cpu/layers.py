"""Fully connected layers, and their derivatives, over the same parameters in torch and in numpy.

At these sizes torch's autograd costs as much as the arithmetic, so this code writes each pass out. The faster
library does each step, on the same memory: numpy multiplies matrices and applies tanh (torch's tanh on a CPU
takes about ten times as long), torch adds biases, applies ReLU and differentiates both activations (in a half
to a third of numpy's time). Activations are feature-major, ``[width, N]``: biases and their gradients then
run along memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Model
from tianji_algos.models.layers import flat_views

Floats = npt.NDArray[np.float32]

FEW_ROWS: Final = 128
"""Most rows that numpy adds and clips: a call of torch costs more, and gains with more rows."""
_THROUGH_TANH: Final = torch.ops.aten.tanh_backward.grad_input
_THROUGH_RELU: Final = torch.ops.aten.threshold_backward.grad_input


class DenseNetwork:
    """Weights ``[out, in]`` and biases ``[out]`` per layer, an activation after each or all but the last.

    The network borrows its arrays: the next pass computes with what an optimizer has written into them.
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
        self._bias_tensors = [torch.from_numpy(bias) for bias in self._biases]
        self._tanh = activation == "tanh"
        self._activated = len(weights) - (0 if activate_output else 1)
        self._rows = -1
        self._ones = np.empty(0, np.float32)
        self._input: Floats = np.empty((0, 0), np.float32)
        self._outputs: list[Floats] = []
        self._tensors: list[torch.Tensor] = []
        """The same memory as ``_outputs``."""
        self._scratch: list[Floats] = []

    def forward(self, rows: Floats) -> Floats:
        """Compute ``[outputs, N]`` for ``rows [N, inputs]``; the result is reused by the next call."""
        if len(rows) != self._rows:
            self._allocate(len(rows))
        self._input = rows
        flowing = rows.T
        few = self._rows <= FEW_ROWS
        for k, out in enumerate(self._outputs):
            np.matmul(self._weights[k], flowing, out=out)
            if few:
                np.add(out, self._biases[k], out=out)
            else:
                self._tensors[k].add_(self._bias_tensors[k])
            if k < self._activated:
                if self._tanh:
                    np.tanh(out, out=out)
                elif few:
                    np.maximum(out, 0.0, out=out)
                else:
                    self._tensors[k].relu_()
            flowing = out
        return flowing

    def backward(
        self,
        d_output: Floats,
        d_weights: Sequence[Floats] | None,
        d_biases: Sequence[Floats] | None,
        d_input: Floats | None = None,
        inputs: slice = slice(None),
    ) -> None:
        """Write the gradient of the last ``forward``.

        Args:
            d_output: derivative of the loss by the output, ``[outputs, N]``; overwritten if the output is
                activated.
            d_weights: written, ``[out, in]`` per layer; None to differentiate by the input alone.
            d_biases: written, ``[out]`` per layer; None as ``d_weights``.
            d_input: written if given: derivative of the loss by the input, ``[inputs, N]``.
            inputs: which inputs to differentiate by.
        """
        for k in range(len(self._outputs) - 1, -1, -1):
            if k < self._activated:
                self._through_activation(d_output, self._tensors[k])
            d_below = self._scratch[k - 1] if k > 0 else d_input
            if d_weights is not None and d_biases is not None:
                below = self._outputs[k - 1].T if k > 0 else self._input
                # A sum over rows; numpy's takes four times as long.
                np.matmul(d_output, self._ones, out=d_biases[k])
                np.matmul(d_output, below, out=d_weights[k])
            if d_below is None:
                return
            weights = self._weights[k].T if k > 0 else self._weights[k].T[inputs]
            if len(d_output) == 1:  # an outer product, which BLAS is four times slower at
                np.multiply(weights, d_output, out=d_below)
            else:
                np.matmul(weights, d_output, out=d_below)
            d_output = d_below

    def _through_activation(self, d_output: Floats, output: torch.Tensor) -> None:
        """Turn the derivative by a layer's ``output`` into that by the activation's input, in place."""
        derivative = torch.from_numpy(d_output)
        if self._tanh:
            _THROUGH_TANH(derivative, output, grad_input=derivative)
        else:
            _THROUGH_RELU(derivative, output, 0.0, grad_input=derivative)

    def _allocate(self, rows: int) -> None:
        self._rows = rows
        self._ones = np.ones(rows, np.float32)
        self._outputs = [np.empty((len(weight), rows), np.float32) for weight in self._weights]
        self._tensors = [torch.from_numpy(output) for output in self._outputs]
        self._scratch = [np.empty_like(output) for output in self._outputs[:-1]]


def value_views(model: nn.Module) -> dict[str, Floats]:
    """View a model's parameters where they are, by their names; they are on a CPU."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def gradient_views(model: nn.Module) -> dict[str, Floats]:
    """View the gradients of a model's parameters where they are, by the parameters' names."""
    gradients: dict[str, Floats] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradients[name] = parameter.grad.numpy()
    return gradients


def select_layers(arrays: Mapping[str, Floats], prefix: str) -> tuple[list[Floats], list[Floats]]:
    """Select the weights and the biases of the layers under ``prefix``, in order."""
    weights = [name for name in arrays if name.startswith(f"{prefix}.") and name.endswith(".weight")]
    biases = [name.removesuffix("weight") + "bias" for name in weights]
    return [arrays[name] for name in weights], [arrays[name] for name in biases]


def dense_network(
    arrays: Mapping[str, Floats], prefix: str, activation: str, activate_output: bool = False
) -> DenseNetwork:
    """Build the network of the layers under ``prefix``."""
    return DenseNetwork(*select_layers(arrays, prefix), activation, activate_output)


class NumpyExecutor(Executor):
    """Acts in numpy over views of one flat array, so adopting is one copy.

    Args:
        model: gives the layout of the flat array, and its first values.
    """

    def __init__(
        self,
        model: Model,
        network: Callable[[dict[str, Floats]], Callable[[npt.NDArray[Any]], tuple[Floats, ...]]],
    ) -> None:
        self._flat, views = flat_views(model)
        self._network = network(views)

    def adopt(self, parameters: Floats) -> None:
        """Copy new parameters ``[parameter_count]`` in."""
        np.copyto(self._flat, parameters)

    def __call__(self, observation: npt.NDArray[Any]) -> tuple[Floats, ...]:
        """Return the network's outputs for ``observation [N, ...]``; they are reused by the next call."""
        return self._network(observation)

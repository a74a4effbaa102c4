"""Fully connected layers as torch keeps them, and the same numbers as the arrays that numpy computes with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Model
from tianji_algos.models.dense import DenseNetwork

Floats = npt.NDArray[np.float32]


def build_layers(
    inputs: int, hidden: Sequence[int], activation: str, output_gains: Sequence[float]
) -> nn.Sequential:
    """Build layers with orthogonal weights and zero biases, an activation after each hidden one.

    Args:
        inputs: width of the input.
        hidden: widths of the hidden layers.
        activation: "tanh" or "relu".
        output_gains: scale of each output's initial weights; empty leaves the output layer out.
    """
    layers: list[nn.Module] = []
    for before, after in pairwise((inputs, *hidden)):
        layers += [_linear(before, after, math.sqrt(2.0)), nn.Tanh() if activation == "tanh" else nn.ReLU()]
    if output_gains:
        output = _linear((inputs, *hidden)[-1], len(output_gains), 1.0)
        with torch.no_grad():
            output.weight.mul_(torch.tensor(output_gains)[:, None])
        layers.append(output)
    return nn.Sequential(*layers)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.bias)
    nn.init.orthogonal_(layer.weight, gain)
    return layer


def flat_views(module: nn.Module, prefix: str = "") -> tuple[Floats, dict[str, Floats]]:
    """Allocate parameters anew as one flat array, with the values that they have now.

    Args:
        module: a model, or a part of one.
        prefix: what the names of a part begin with.

    Returns:
        The array ``[P]``, all parameters and then all buffers; and views of it by the parameters' names.
    """
    tensors = (*module.parameters(), *module.buffers())
    flat: Floats = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors]).cpu().numpy()
    views: dict[str, Floats] = {}
    start = 0
    for name, parameter in module.named_parameters(prefix):
        views[name] = flat[start : start + parameter.numel()].reshape(tuple(parameter.shape))
        start += parameter.numel()
    return flat, views


def value_views(model: Model) -> dict[str, Floats]:
    """View a model's parameters where they are, by their names; they are on a CPU."""
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def gradient_views(model: Model) -> dict[str, Floats]:
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
    """Make the network of the layers under ``prefix``."""
    return DenseNetwork(*select_layers(arrays, prefix), activation, activate_output)


class NumpyExecutor(Executor):
    """Acts in numpy over views of one flat array, so adopting is one copy.

    Args:
        model: gives the layout of the flat array, and its first values.
        network: builds the forward pass over named arrays.
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
        """Give the network's outputs for ``observation [N, ...]``; they are reused by the next call."""
        return self._network(observation)

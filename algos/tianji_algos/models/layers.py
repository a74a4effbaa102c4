"""Fully connected layers in torch, and a network's parameters as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

Floats = npt.NDArray[np.float32]


def build_layers(
    inputs: int, hidden: Sequence[int], activation: str, output_gains: Sequence[float]
) -> nn.Sequential:
    """Build layers with orthogonal weights and zero biases, an activation after each hidden one.

    Args:
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
    """Copy a network's parameters and buffers into one new flat array.

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

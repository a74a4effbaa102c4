"""Fully connected layers, over the same parameters in torch and in numpy, and observations as they take them.

Torch's tanh on a CPU takes about ten times as long as numpy's, and at these sizes its autograd costs as
much as the arithmetic. Activations are feature-major, ``[width, N]``: biases and their gradients then run
along memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tianji_algos.core import Executor, Model
from tianji_algos.errors import UnsupportedSpaceError

Floats = npt.NDArray[np.float32]

_MOST_COLOURS: Final = 4
_SMALLEST_SIDE: Final = 16


@dataclass(frozen=True)
class ImageShape:
    """How the bytes of one observation are laid out.

    Attributes:
        planes: frames of a stack, or colours.
        colours_last: ``[H, W, C]``, as cameras give it, not ``[planes, H, W]``.
    """

    planes: int
    height: int
    width: int
    colours_last: bool = False

    def to_planes(self, observation: torch.Tensor) -> torch.Tensor:
        """Return ``observation [N, ...]`` as ``[N, planes, H, W]``."""
        if self.colours_last:
            return observation.permute(0, 3, 1, 2)
        return observation.reshape(-1, self.planes, self.height, self.width)


def image_shape(space: gym.Space[Any]) -> ImageShape | None:
    """Read a space of images of bytes: ``[S, H, W]``, ``[H, W]`` or ``[H, W, C]``; None if it is another."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return None
    if len(space.shape) == 2:
        return ImageShape(1, *space.shape)
    if len(space.shape) != 3:
        return None
    if space.shape[2] <= _MOST_COLOURS < space.shape[0]:
        height, width, colours = space.shape
        return ImageShape(colours, height, width, colours_last=True)
    return ImageShape(*space.shape)


def is_picture(space: gym.Space[Any]) -> bool:
    """Whether an image is so large that it takes convolutions: small ones may be boards or maps."""
    image = image_shape(space)
    return image is not None and min(image.height, image.width) >= _SMALLEST_SIDE


class ObservationEncoder:
    """Flattens Box observations; makes discrete ones one-hot.

    Raises:
        UnsupportedSpaceError: it is neither Box nor Discrete nor MultiDiscrete, or of images.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        if is_picture(space):
            raise UnsupportedSpaceError(
                f"a fully connected network learns next to nothing from images, {space}; a convolutional one "
                "would be right: the model 'cnn_actor_critic' or 'cnn_q', or for 'recurrent_actor_critic' "
                "encoder = 'nature'"
            )
        if isinstance(space, gym.spaces.Box):
            self.features = math.prod(space.shape)
            first: npt.NDArray[np.int64] | None = None
        elif isinstance(space, gym.spaces.Discrete):
            self.features = int(space.n)
            first = np.array([-space.start], np.int64)
        elif isinstance(space, gym.spaces.MultiDiscrete):
            sizes = space.nvec.reshape(-1)
            self.features = int(sizes.sum())
            first = np.cumsum(sizes, dtype=np.int64) - sizes - space.start.reshape(-1)
        else:
            raise UnsupportedSpaceError(
                f"a fully connected network takes Box, Discrete and MultiDiscrete observations, not {space}"
            )
        self._first = first
        self._first_in_torch = None if first is None else torch.from_numpy(first)

    def __call__(self, observation: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Encode ``observation [N, ...]`` as ``[N, features]``; float32 Box observations are not copied."""
        rows = observation.reshape(len(observation), -1)
        if self._first is None:
            return rows.astype(np.float32, copy=False)
        encoded = np.zeros((len(rows), self.features), np.float32)
        np.put_along_axis(encoded, rows + self._first, np.float32(1.0), axis=1)
        return encoded

    def in_torch(self, observation: torch.Tensor) -> torch.Tensor:
        """Encode ``observation [N, ...]`` as ``[N, features]`` where it is."""
        rows = observation.reshape(len(observation), -1)
        if self._first_in_torch is None:
            return rows.to(torch.float32)
        self._first_in_torch = self._first_in_torch.to(rows.device)  # which copies once, or never
        places = rows.to(torch.int64) + self._first_in_torch
        return torch.zeros(len(rows), self.features, device=rows.device).scatter_(1, places, 1.0)


class DenseNetwork:
    """Weights ``[out, in]`` and biases ``[out]`` per layer, an activation after each or all but the last.

    The arrays are borrowed: what an optimizer writes into them is what the next pass computes with.
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
        d_weights: Sequence[Floats] | None,
        d_biases: Sequence[Floats] | None,
        d_input: Floats | None = None,
    ) -> None:
        """Write the gradient of the last ``forward``; uses up the activations kept from it.

        Args:
            d_output: derivative of the loss by the output, ``[outputs, N]``; used up if that is activated.
            d_weights: written, ``[out, in]`` per layer; None if that by the input is all that is wanted.
            d_biases: written, ``[out]`` per layer; None as ``d_weights``.
            d_input: written if given: derivative of the loss by the input, ``[inputs, N]``.
        """
        for k in range(len(self._outputs) - 1, -1, -1):
            if k < self._activated:
                self._through_activation(d_output, self._outputs[k])
            d_below = self._scratch[k - 1] if k > 0 else d_input
            if d_weights is not None and d_biases is not None:
                below = self._outputs[k - 1].T if k > 0 else self._input
                np.matmul(d_output, self._ones, out=d_biases[k])
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
    """Allocate parameters anew as one flat array, with the values that they have now.

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
    """Make the network of the layers under ``prefix``."""
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

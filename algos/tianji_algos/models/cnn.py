"""Convolutional networks for images: encoders, heads, an actor-critic and action values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import gymnasium as gym
import torch
from torch import nn
from torch.nn import functional

from tianji_algos.core import Spaces
from tianji_algos.device import part_of_records
from tianji_algos.distributions import Gaussian, distribution_for
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.models.images import ImageShape, image_shape, is_picture
from tianji_algos.models.layers import build_layers
from tianji_algos.models.observations import RecordEncoder, observation_encoder, shown
from tianji_algos.models.q_network import QNetwork, count_actions
from tianji_algos.models.settings import (
    CNNActorCriticSettings,
    CNNQSettings,
    EncoderSettings,
    RecurrentSettings,
)
from tianji_algos.models.torch_backend import MixedPrecision

_REST_WIDTH: Final = 64
"""Width of the layer over the parts of a record that are no images."""


class ImageEncoder(MixedPrecision):
    """Convolutions over images, then fully connected layers, a ReLU after each.

    The convolutions see pixels from 0 to 1. The factor goes into the first convolution's weights, which are
    fewer than the pixels.

    Raises:
        UnsupportedSpaceError: images are too small for the convolutions.
    """

    def __init__(self, image: ImageShape, settings: EncoderSettings, widths: Sequence[int]) -> None:
        super().__init__(settings.precision)
        self._image = image
        self._pools = settings.encoder == "impala_large"
        build = _residual if self._pools else _plain
        (first, *rest), outputs = build(image, settings)
        assert isinstance(first, nn.Conv2d)
        self.first, self.rest = first, nn.Sequential(*rest)
        self.dense = build_layers(outputs, widths, "relu", ())
        self.features = widths[-1]

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute features ``[N, features]`` in float32 of ``observation [N, ...]``."""
        device = observation.device
        pixels = self._image.to_planes(observation)
        # With channels last, gradients of convolutions take half the time in float32 on a CPU, and pooling
        # takes a quarter. Reordering bytes takes a tenth of the time of reordering floats.
        trains_in_float32 = torch.is_grad_enabled() and self.dtype == torch.float32
        if self._pools or device.type != "cpu" or trains_in_float32:
            pixels = pixels.contiguous(memory_format=torch.channels_last)
        if self._image.low:
            pixels = pixels.to(torch.float32) - self._image.low
        pixels = pixels.to(self.dtype)
        with self.computing(device):
            first = self.first
            weight = first.weight * (1.0 / self._image.span)
            maps = functional.conv2d(pixels, weight, first.bias, first.stride, first.padding)
            features: torch.Tensor = self.dense(self.rest(maps).flatten(1))
        return features.float()

    in_torch = forward


class JoinedEncoder(nn.Module):
    """Records with images: convolutions over each, layers over all else, and one layer that joins them.

    Raises:
        UnsupportedSpaceError: an image is too small for the convolutions.
    """

    def __init__(self, spaces: Spaces, settings: EncoderSettings, widths: Sequence[int]) -> None:
        super().__init__()
        space, layout = spaces.observation, spaces.image_layout
        assert isinstance(space, gym.spaces.Dict)
        assert space.dtype is not None
        self._dtype = space.dtype
        parts = shown(space)
        images = {name: image_shape(part, layout) for name, part in parts.items() if is_picture(part, layout)}
        self._pictures = list(images)
        self.images = nn.ModuleList(
            ImageEncoder(image, settings, settings.widths) for image in images.values() if image is not None
        )
        self._rest = RecordEncoder(space, {n: p for n, p in parts.items() if n not in images}, layout)
        inputs = len(self._pictures) * settings.widths[-1]
        if self._rest.features:
            self.rest = build_layers(self._rest.features, (_REST_WIDTH,), "relu", ())
            inputs += _REST_WIDTH
        self.joined = build_layers(inputs, widths[-1:], "relu", ())
        self.features = widths[-1]

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute features ``[N, features]`` of the bytes of records ``[N, size]``."""
        features = [
            image(part_of_records(observation, self._dtype, name))
            for name, image in zip(self._pictures, self.images, strict=True)
        ]
        if self._rest.features:
            features.append(self.rest(self._rest.in_torch(observation)))
        joined: torch.Tensor = self.joined(torch.cat(features, dim=1))
        return joined

    in_torch = forward


def image_encoder(
    spaces: Spaces, settings: EncoderSettings, widths: Sequence[int]
) -> ImageEncoder | JoinedEncoder:
    """Choose the convolutional network for images, or for records with images.

    Raises:
        UnsupportedSpaceError: there are no images, or they are too small.
    """
    space, layout = spaces.observation, spaces.image_layout
    if isinstance(space, gym.spaces.Dict):
        if any(is_picture(part, layout) for part in shown(space).values()):
            return JoinedEncoder(spaces, settings, widths)
    elif (image := image_shape(space, layout)) is not None:
        return ImageEncoder(image, settings, widths)
    raise UnsupportedSpaceError(
        f"a convolutional network ({settings.encoder!r}) takes images; no part of {space} is one; a fully "
        "connected one would be right: the model 'mlp_actor_critic', 'mlp_q' or 'mlp_gaussian_q', or for a "
        "recurrent one encoder = 'mlp'"
    )


class RowEncoder(MixedPrecision):
    """Fully connected layers over observations that are no images.

    Raises:
        UnsupportedSpaceError: observations that it cannot take.
    """

    def __init__(self, spaces: Spaces, settings: RecurrentSettings) -> None:
        super().__init__(settings.precision)
        self._rows = observation_encoder(spaces.observation, spaces.image_layout)
        self.dense = build_layers(self._rows.features, settings.widths, settings.activation, ())
        self.features = settings.widths[-1]

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute features ``[N, features]`` in float32 of ``observation [N, ...]``."""
        rows = self._rows.in_torch(observation).to(self.dtype)
        with self.computing(observation.device):
            features: torch.Tensor = self.dense(rows)
        return features.float()


class _ResidualBlock(nn.Module):
    """Two convolutions beside a shortcut (Espeholt et al., 2018, Figure 3, right)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _convolution(channels, channels, 3, 1, padding=1)
        # Each block adds this output to its input: a smaller gain lets activations grow less over six blocks.
        self.second = _convolution(channels, channels, 3, 1, padding=1, gain=1.0)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Add the convolutions' output to ``maps [N, channels, H, W]``."""
        added: torch.Tensor = self.second(functional.relu(self.first(functional.relu(maps))))
        return maps + added


def _plain(image: ImageShape, settings: EncoderSettings) -> tuple[list[nn.Module], int]:
    """Build a stack of convolutions; returns its layers and the number of its outputs."""
    layers: list[nn.Module] = []
    planes, height, width = image.planes, image.height, image.width
    for channels, (kernel, stride) in zip(settings.section_channels, settings.windows, strict=True):
        if min(height, width) < kernel:
            raise UnsupportedSpaceError(
                f"images of {image.height} x {image.width} are too small for encoder = {settings.encoder!r}: "
                f"its convolution {len(layers) // 2 + 1} of {kernel} x {kernel} gets {height} x {width}; "
                "larger images, smaller model.kernels and model.strides, or 'impala_large' would be right"
            )
        layers += [_convolution(planes, channels, kernel, stride), nn.ReLU(inplace=True)]
        planes, height, width = channels, (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return layers, planes * height * width


def _residual(image: ImageShape, settings: EncoderSettings) -> tuple[list[nn.Module], int]:
    """Build sections of a convolution, pooling and two blocks; returns layers and number of outputs."""
    layers: list[nn.Module] = []
    planes, height, width = image.planes, image.height, image.width
    for channels in settings.section_channels:
        layers += [_convolution(planes, channels, 3, 1, padding=1), nn.MaxPool2d(3, 2, padding=1)]
        layers += [_ResidualBlock(channels), _ResidualBlock(channels)]
        planes, height, width = channels, (height + 1) // 2, (width + 1) // 2
    return [*layers, nn.ReLU()], planes * height * width


def _convolution(
    planes: int, channels: int, kernel: int, stride: int, padding: int = 0, gain: float = math.sqrt(2.0)
) -> nn.Conv2d:
    layer = nn.Conv2d(planes, channels, kernel, stride, padding)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)  # type: ignore[arg-type]  # it has one
    return layer


class PolicyValueHead(nn.Module):
    """One layer with the outputs of policy and value, in float32, which probabilities need.

    The standard deviation of continuous actions is a parameter of its own and depends on no observation.

    Raises:
        UnsupportedSpaceError: an action space that it cannot serve.
    """

    def __init__(
        self, features: int, space: gym.Space[Any], policy_gain: float, initial_log_std: float
    ) -> None:
        super().__init__()
        distribution = distribution_for(space)
        gaussian = isinstance(distribution, Gaussian)
        outputs = distribution.outputs // 2 if gaussian else distribution.outputs
        self.outputs = build_layers(features, (), "relu", [policy_gain] * outputs + [1.0])
        self.log_std = nn.Parameter(torch.full((outputs,), initial_log_std)) if gaussian else None

    def forward(self, features: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy ``[N, outputs]`` and value ``[N]`` from ``features [N, features]``."""
        outputs = self.outputs(features)
        policy, value = outputs[:, :-1], outputs[:, -1]
        if self.log_std is not None:
            policy = torch.cat((policy, self.log_std.expand_as(policy)), dim=1)
        return policy, value


class CNNActorCritic(ActorCritic):
    """Policy and value of images on one convolutional network (Mnih et al., 2016; Espeholt et al., 2018).

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[CNNActorCriticSettings]] = CNNActorCriticSettings

    def __init__(self, spaces: Spaces, settings: CNNActorCriticSettings) -> None:
        super().__init__()
        self.settings = settings
        self.encoder = image_encoder(spaces, settings, settings.widths)
        self.head = PolicyValueHead(
            self.encoder.features, spaces.action, settings.policy_gain, settings.initial_log_std
        )

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute policy ``[N, outputs]`` and value ``[N]`` from images ``[N, S, H, W]``."""
        policy, value = self.head(self.encoder(observation))
        return policy, value


class CNNQ(QNetwork):
    """Action values of images, plain (Mnih et al., 2015) or dueling (Wang et al., 2016).

    Raises:
        UnsupportedSpaceError: an observation or action space that it cannot serve.
    """

    settings_type: ClassVar[type[CNNQSettings]] = CNNQSettings

    def __init__(self, spaces: Spaces, settings: CNNQSettings) -> None:
        super().__init__()
        self.settings = settings
        actions = count_actions(spaces.action)
        widths = settings.widths
        if settings.dueling:  # the last layers of both streams, which see the same, are one
            widths = (*widths[:-1], 2 * widths[-1])
        self.encoder = image_encoder(spaces, settings, widths)
        self.value = build_layers(settings.widths[-1], (), "relu", [1.0]) if settings.dueling else None
        self.actions = build_layers(settings.widths[-1], (), "relu", [1.0] * actions)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """Compute ``Q [N, A]`` from images ``[N, S, H, W]``; dueling: V + A - mean(A), equation 9."""
        features = self.encoder(observation)
        if self.value is None:
            plain: torch.Tensor = self.actions(features)
            return plain
        of_value, of_advantage = features.chunk(2, dim=1)
        advantage = self.actions(of_advantage)
        q: torch.Tensor = self.value(of_value) + advantage - advantage.mean(dim=1, keepdim=True)
        return q

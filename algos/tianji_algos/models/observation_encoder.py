"""Observations as networks take them: images for convolutions, or rows of numbers for connected layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.errors import UnsupportedSpaceError

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

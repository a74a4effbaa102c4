"""Which observations are images, and how their bytes are laid out. Imports no torch: defaults ask it, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np

if TYPE_CHECKING:
    import torch

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

"""The rule which observations are images, and their layout in memory; without torch, for config defaults.

The rule, in one place. A Box is an image if it has

1. two axes, ``[H, W]``; three, one of them channels; or four, with a stack of frames, which become channels;
2. whole numbers or bools, with three or four axes also floats, whose bounds are at most 65,535 apart:
   networks see them from 0 to 1;
3. a height and a width of at least 16: smaller ones may be boards or maps, and only a convolutional network
   that a config names takes them.

Height and width are the two neighbouring axes with the most pixels, so channels are the smallest axis. Where
two pairs have as many, as in ``[64, 64, 64]``, ``environment.image_layout`` has to say where channels are.
All else is numbers in a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import gymnasium as gym
import numpy as np

from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.models.settings import ImageLayout

if TYPE_CHECKING:
    import torch

_SMALLEST_SIDE: Final = 16
_WIDEST: Final = 65_535
_MOST_COLOURS: Final = 4
"""Maximum channels behind height and width, in runs that are older than ``image_layout``."""


@dataclass(frozen=True)
class ImageShape:
    """Memory layout of one image, and the bounds of its numbers.

    Attributes:
        planes: channels as networks see them: colours times frames of a stack.
        axes: axes of the observation in the order ``[planes..., H, W]``.
        low: number that networks see as 0; they see ``low + span`` as 1.
    """

    planes: int
    height: int
    width: int
    axes: tuple[int, ...]
    low: float = 0.0
    span: float = 255.0

    def to_planes(self, observation: torch.Tensor) -> torch.Tensor:
        """Return ``observation [N, ...]`` as ``[N, planes, H, W]``."""
        ordered = observation.permute(0, *(axis + 1 for axis in self.axes))
        return ordered.reshape(-1, self.planes, self.height, self.width)


def image_shape(space: gym.Space[Any], layout: ImageLayout = "auto") -> ImageShape | None:
    """Read the layout of a space of images of any size; None for any other space.

    Raises:
        UnsupportedSpaceError: the channels may be on either side.
    """
    if not (heights := _heights(space, layout)):
        return None
    assert isinstance(space, gym.spaces.Box)
    if len(heights) > 1:
        raise UnsupportedSpaceError(
            f"{space} is an image whose channels may be before or behind its height and width; environment."
            "image_layout = 'channels_first' or 'channels_last' would be right, or 'none' for rows of numbers"
        )
    sides = (heights[0], heights[0] + 1)
    others = [axis for axis in range(len(space.shape)) if axis not in sides]
    planes = math.prod(space.shape[axis] for axis in others)
    low, high = (0.0, 255.0) if layout == "legacy" else (float(space.low.min()), float(space.high.max()))
    height, width = (space.shape[axis] for axis in sides)
    return ImageShape(planes, height, width, (*others, *sides), low, high - low or 1.0)


def is_picture(space: gym.Space[Any], layout: ImageLayout = "auto") -> bool:
    """Whether a space is of images that are large enough for convolutions, wherever their channels are."""
    heights = _heights(space, layout)
    return bool(heights) and min(space.shape[heights[0] :][:2]) >= _SMALLEST_SIDE  # type: ignore[index]


def how_seen(space: gym.Space[Any], layout: ImageLayout = "auto") -> str:
    """Describe how networks take a part of an observation, and why."""
    if is_picture(space, layout):
        image = image_shape(space, layout)
        assert image is not None
        size = f"{image.height} x {image.width} pixels, channels: {image.planes}"
        return f"an image of {size}, {image.low:g} to {image.low + image.span:g}"
    axes = len(space.shape or ())
    why = f"sides below {_SMALLEST_SIDE}" if _heights(space, layout) else "bounds that are no scale of pixels"
    if not 2 <= axes <= 4 or not isinstance(space, gym.spaces.Box):
        why = f"{type(space).__name__} of {axes} axes"
    elif axes == 2 and space.dtype.kind == "f":
        why = "real numbers of 2 axes"
    return f"numbers in a row ({why if layout != 'none' else 'environment.image_layout'})"


def _heights(space: gym.Space[Any], layout: ImageLayout) -> list[int]:
    """List the axes that may be the height, before the width; empty if the space is no image of any size."""
    if layout == "none" or not isinstance(space, gym.spaces.Box) or not 2 <= len(space.shape) <= 4:
        return []
    shape, last = space.shape, len(space.shape) - 2
    if layout == "legacy":
        behind = last == 1 and shape[2] <= _MOST_COLOURS < shape[0]
        return [] if space.dtype != np.uint8 or last > 1 else [0 if behind else last]
    too_wide = not float(space.high.max()) - float(space.low.min()) <= _WIDEST
    if too_wide or (space.dtype.kind == "f" and last == 0):
        return []
    if layout != "auto":
        return [last if layout == "channels_first" else max(0, last - 1)]
    large = [first for first in range(last + 1) if min(shape[first : first + 2]) >= _SMALLEST_SIDE]
    pixels = {first: math.prod(shape[first : first + 2]) for first in large or range(last + 1)}
    return [first for first, number in pixels.items() if number == max(pixels.values())]

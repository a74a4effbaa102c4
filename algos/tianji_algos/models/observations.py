"""Observations as networks take them: rows of numbers, images, and records of such parts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.device import part_of_records
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fields import ACTION_MASK
from tianji_algos.models.images import is_picture
from tianji_algos.models.settings import ImageLayout

Floats = npt.NDArray[np.float32]

MOST_RAW: Final = 4096
"""Most integers of a part that a fully connected network takes as they are: more are pixels in a row."""


def observation_encoder(space: gym.Space[Any], layout: ImageLayout = "auto") -> ArrayEncoder | RecordEncoder:
    """Choose how observations become rows of numbers.

    Raises:
        UnsupportedSpaceError: observations cannot become rows, or are images.
    """
    if isinstance(space, gym.spaces.Dict):
        return RecordEncoder(space, shown(space), layout)
    return ArrayEncoder(space, layout)


def shown(space: gym.spaces.Dict) -> dict[str, gym.Space[Any]]:
    """Return the parts of records that a network sees."""
    return {name: part for name, part in space.spaces.items() if name != ACTION_MASK}


class ArrayEncoder:
    """Flattens Box and MultiBinary observations; makes discrete ones one-hot.

    Attributes:
        features: numbers in a row.

    Raises:
        UnsupportedSpaceError: the space is of another kind, or of images.
    """

    def __init__(self, space: gym.Space[Any], layout: ImageLayout = "auto") -> None:
        is_raw = isinstance(space, gym.spaces.Box) and space.dtype.kind != "f"
        numbers = math.prod(space.shape or ()) if is_raw and layout not in {"none", "legacy"} else 0
        if numbers > MOST_RAW or is_picture(space, layout):
            raise UnsupportedSpaceError(
                f"a fully connected network learns next to nothing from images, {space}, nor from more than "
                f"{MOST_RAW:,} raw numbers; a convolutional one would be right, of axes such as [H, W, C]: "
                "the model 'cnn_actor_critic', 'cnn_q' or 'cnn_gaussian_q', or for a recurrent one "
                "encoder = 'nature'; or environment.image_layout = 'none' if these are no pixels"
            )
        if isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
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
                f"a fully connected network takes Box, Discrete, MultiDiscrete and MultiBinary "
                f"observations, and Dicts and Tuples of these, not {space}"
            )
        self._first = first
        self._first_in_torch = None if first is None else torch.from_numpy(first)

    def __call__(self, observation: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Encode ``observation [N, ...]`` as ``[N, features]``; float32 Box observations are not copied."""
        rows = observation.reshape(len(observation), -1)
        if self._first is None:
            return rows.astype(np.float32, copy=False)
        encoded = np.zeros((len(rows), self.features), np.float32)
        np.put_along_axis(encoded, rows.astype(np.int64, copy=False) + self._first, np.float32(1.0), axis=1)
        return encoded

    def in_torch(self, observation: torch.Tensor) -> torch.Tensor:
        """Encode ``observation [N, ...]`` as ``[N, features]`` where it is."""
        rows = observation.reshape(observation.shape[0], -1)  # tracing follows shape[0], not len()
        if self._first_in_torch is None:
            return rows.to(torch.float32)
        self._first_in_torch = self._first_in_torch.to(rows.device)  # copies once, or never
        places = rows.to(torch.int64) + self._first_in_torch
        return torch.zeros(rows.shape[0], self.features, device=rows.device).scatter_(1, places, 1.0)


class RecordEncoder:
    """Puts rows of the parts of a record side by side.

    Args:
        space: space of the records, for its dtype.
        parts: spaces of the encoded parts, by name.

    Attributes:
        features: numbers in a row.

    Raises:
        UnsupportedSpaceError: a part cannot be a row, or is an image.
    """

    def __init__(
        self, space: gym.Space[Any], parts: Mapping[str, gym.Space[Any]], layout: ImageLayout = "auto"
    ) -> None:
        assert space.dtype is not None
        self._dtype = space.dtype
        self._parts: dict[str, tuple[ArrayEncoder, slice]] = {}
        self.features = 0
        for name, part in parts.items():
            encoder = ArrayEncoder(part, layout)
            self._parts[name] = encoder, slice(self.features, self.features + encoder.features)
            self.features += encoder.features
        self._rows = np.empty((0, self.features), np.float32)

    def __call__(self, observation: npt.NDArray[Any]) -> Floats:
        """Encode records ``[N]`` as ``[N, features]``; reused by the next call."""
        if len(self._rows) != len(observation):
            self._rows = np.empty((len(observation), self.features), np.float32)
        for name, (encoder, where) in self._parts.items():
            self._rows[:, where] = encoder(observation[name])
        return self._rows

    def in_torch(self, observation: torch.Tensor) -> torch.Tensor:
        """Encode the bytes of records, ``[N, size]``, as ``[N, features]`` where they are."""
        rows = [
            encoder.in_torch(part_of_records(observation, self._dtype, name))
            for name, (encoder, _) in self._parts.items()
        ]
        return torch.cat(rows, dim=1)

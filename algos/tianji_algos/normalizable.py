"""Numbers of an observation that can be normalised: their place, and the arithmetic.

Normalisation covers an array as a whole, and those parts of a record (a Dict, a Tuple or a team's record)
that are floats; images, choices and masks beside them stay as they are, and so does the record's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Spaces
from tianji_algos.device import RecordParts, part_of_records, replace_part_of_records
from tianji_algos.errors import UnsupportedSpaceError
from tianji_algos.fields import ACTION_MASK
from tianji_algos.models.images import is_picture

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

MOST: Final = np.float32(10.0)
"""Normalised numbers are clipped to this many standard deviations."""
SMALL: Final = 1e-8
"""Added to the variance of values and rewards, which may be 0, and in older runs to that of observations."""
TINY: Final = 1e-30
"""Added to the variance of an observation's numbers, which is 0 for a number that is always 0."""
RESOLUTION: Final = {False: 6e-8, True: 1e-13}
"""Relative error of a number that is rounded to float32, or to the sum of two of them (``wide``)."""
OF_A_TEAM: Final = ("observation", "state")
"""Parts of a team's records that are numbers; networks do not see rewards and masks."""


@dataclass(frozen=True)
class Numbers:
    """The F numbers of an observation that have a mean and a variance.

    Attributes:
        count: F.
        floats: they are floats, which have no scale that a network could count on, and not integers.
        wide: some are of types whose numbers float32 cannot hold, as float64 and int64.
        precise: means of wide numbers are subtracted in double precision, and variances count however small.
        record: dtype of records; None where observations are arrays.
        parts: places of each part's numbers among the F, by the part's name.
    """

    count: int
    floats: bool = True
    wide: bool = False
    precise: bool = True
    record: np.dtype[Any] | None = None
    parts: Mapping[str, slice] = field(default_factory=dict)

    @property
    def doubles(self) -> bool:
        """Whether means are subtracted in double precision."""
        return self.wide and self.precise

    @classmethod
    def find(cls, spaces: Spaces) -> Self | None:
        """Find the numbers; None if an observation has none, or policies see stacks."""
        space = spaces.observation
        if spaces.stack > 1 or space.dtype is None or is_picture(space, spaces.image_layout):
            return None
        if isinstance(space, gym.spaces.Dict):
            kinds = {
                name: np.dtype((part.dtype, part.shape))
                for name, part in space.spaces.items()
                if isinstance(part, gym.spaces.Box) and part.dtype.kind == "f" and name != ACTION_MASK
                if not is_picture(part, spaces.image_layout)
            }
            return cls._of_record(space.dtype, kinds)
        if space.dtype.fields is not None:
            parts = {name: space.dtype.fields[name][0] for name in OF_A_TEAM if name in space.dtype.fields}
            return cls._of_record(space.dtype, parts)
        if isinstance(space, gym.spaces.Box) and (space.dtype.kind == "f" or len(space.shape) == 1):
            return cls(math.prod(space.shape), space.dtype.kind == "f", _is_wide(space.dtype))
        return None

    @classmethod
    def of(cls, spaces: Spaces, *, precise: bool = True) -> Self:
        """Find the numbers.

        Raises:
            UnsupportedSpaceError: there are none: choices have no mean, images have a known scale.
        """
        if (found := cls.find(spaces)) is not None:
            return replace(found, precise=precise)
        what = f"observations of {spaces.observation} cannot be normalised: there are no floats among them"
        if spaces.stack > 1:
            what = f"stacks of {spaces.stack} observations are not normalised"
        raise UnsupportedSpaceError(f"{what}; training.normalize_observations = false would be right")

    @classmethod
    def _of_record(cls, record: np.dtype[Any], kinds: Mapping[str, np.dtype[Any]]) -> Self | None:
        parts, count = {}, 0
        for name, kind in kinds.items():
            if size := math.prod(kind.shape):
                parts[name] = slice(count, count + size)
                count += size
        wide = any(_is_wide(kind.base) for kind in kinds.values())
        return cls(count, wide=wide, record=record, parts=parts) if count else None

    def rows(self, observation: Array) -> Array:
        """Return the numbers of observations ``[K, ...]``: ``[K, F]``."""
        if self.record is None:
            return observation.reshape(len(observation), -1)
        return np.concatenate(
            [observation[name].reshape(len(observation), -1) for name in self.parts], axis=1
        )

    def empty(self, shape: tuple[int, ...], observation: Array) -> Array:
        """Allocate memory for normalised observations, of ``shape`` and like ``observation`` otherwise."""
        return np.empty(shape, np.dtype(np.float32) if self.record is None else observation.dtype)

    def filter(self, mean: Any, variance: Any) -> tuple[Any, Any]:
        """Return the shift and the factor of each number, arrays or tensors ``[F]``.

        A rounded constant has a variance, too: deviations are never below its type's resolution.
        """
        least = (mean * RESOLUTION[self.wide]) ** 2 + TINY if self.precise else SMALL
        return mean, (variance + least) ** -0.5

    def normalize(self, observation: Array, mean: Array, scale: Floats, into: Array) -> None:
        """Shift, scale and clip observations ``[..., *shape]``.

        Args:
            mean: mean of each number, ``[F]``; float64 where ``doubles`` says so.
            scale: one over its standard deviation, ``[F]``.
            into: ``[..., *shape]``, contiguous, as ``empty`` allocates it; written.
        """
        if self.record is None:
            _normalize(observation, mean, scale, into)
            return
        into[...] = observation
        for name, which in self.parts.items():
            _normalize(observation[name], mean[which], scale[which], into[name])

    def normalize_in_torch(
        self, observation: torch.Tensor | RecordParts, mean: torch.Tensor, scale: torch.Tensor
    ) -> torch.Tensor | RecordParts:
        """Return observations ``[N, *shape]``, or the bytes of records ``[N, size]``, as ``normalize`` does.

        Args:
            mean: mean of each number, ``[F]``; of any type.
            scale: one over its standard deviation, ``[F]`` float32.
        """
        if self.record is None:
            assert isinstance(observation, torch.Tensor)
            return _normalized_in_torch(observation, mean, scale)
        parts = {}
        for name, which in self.parts.items():
            part = part_of_records(observation, self.record, name)
            parts[name] = _normalized_in_torch(part, mean[which], scale[which]).to(part.dtype)
        if isinstance(observation, RecordParts):
            return RecordParts({**observation.parts, **parts})
        seen = observation.clone()
        for name, part in parts.items():
            replace_part_of_records(seen, self.record, name, part)
        return seen


def _is_wide(dtype: np.dtype[Any]) -> bool:
    return not np.can_cast(dtype, np.float32)


def _normalize(observation: Array, mean: Array, scale: Floats, into: Array) -> None:
    flat = into.reshape(-1, len(mean))
    np.subtract(observation.reshape(flat.shape), mean, out=flat, casting="same_kind")
    flat *= scale
    # At so few numbers np.clip costs more than the rest.
    np.minimum(flat, MOST, out=flat)
    np.maximum(flat, -MOST, out=flat)


def _normalized_in_torch(observation: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    rows = observation.reshape(observation.shape[0], -1)  # tracing follows shape[0], not len()
    normal = (rows - mean).float() * scale
    return normal.clamp(-float(MOST), float(MOST)).reshape(observation.shape)

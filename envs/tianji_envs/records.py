"""Dict and Tuple observations, nested or not, as one record, which travels as any observation does.

A record is one element of a structured dtype, with a part for each space that is neither Dict nor Tuple:
``{"camera": image, "arm": {"angles": a, "speeds": s}}`` has the parts ``camera``, ``arm.angles`` and
``arm.speeds``, and a Tuple's are ``0``, ``1`` and so on. numpy gives each part of records ``[N]`` as a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.core import check_part, fits
from tianji_envs.errors import UnsupportedSpaceError
from tianji_envs.results import Expected, UnfitError

Path = tuple[str | int, ...]
Check = Callable[[Any], None]

_UNFIT: Final = (KeyError, IndexError, TypeError, ValueError)
"""Exceptions that an observation with a missing or wrong part causes."""


class RecordSpace(gymnasium.spaces.Dict):
    """The parts of a Dict or Tuple by their names; its values are records of ``dtype``.

    The space leaves out text, which no network takes.

    Args:
        name: name of the environment, for messages.
        space: a Dict or a Tuple.

    Attributes:
        left_out: names of the parts that are text.

    Raises:
        UnsupportedSpaceError: a part is no array of fixed dtype and shape; or no part is left.
    """

    def __init__(self, name: str, space: gymnasium.spaces.Dict[Any] | gymnasium.spaces.Tuple[Any]) -> None:
        found: dict[str, tuple[Path, gymnasium.Space[Any]]] = {}
        for path, leaf in _parts(space):
            called = ".".join(map(str, path))
            if not called or called in found:
                what = f"is the name of {found[called][0]} and {path}" if called else "is no name"
                raise UnsupportedSpaceError(
                    f"{name}: {called!r} of observation_space {what}; other keys would be right"
                )
            found[called] = path, leaf
        self.left_out = tuple(part for part, (_, leaf) in found.items() if _is_text(leaf))
        kept = {part: one for part, one in found.items() if part not in self.left_out}
        for part, (_, leaf) in kept.items():
            check_part(f"{name}: observation_space[{part!r}]", leaf)
        if not kept:
            raise UnsupportedSpaceError(f"{name}: nothing of observation_space {space} is an array")
        super().__init__({part: leaf for part, (_, leaf) in kept.items()})
        self._parts = {
            part: (kept[part][0], Expected(f"observation[{part!r}]", leaf.dtype, leaf.shape or ()).check)
            for part, leaf in self.spaces.items()
        }
        fields = [(part, leaf.dtype, leaf.shape) for part, leaf in self.spaces.items()]
        self._shape = ()
        # Aligned: torch reads views of numbers only at multiples of their size.
        self.dtype = np.dtype(fields, align=True)

    @property
    def is_np_flattenable(self) -> bool:
        """False: records are no arrays of numbers."""
        return False

    def rows(self, records: npt.NDArray[Any]) -> RecordRows:
        """Return an object that writes observations of N environments into ``records [N]``."""
        return RecordRows(self, [(records[part], *how) for part, how in self._parts.items()])

    def pack(self, observation: Any) -> npt.NDArray[Any]:
        """Make a record of an observation, or records ``[N]`` of a batch that has N in each of its parts.

        Raises:
            KeyError, IndexError, TypeError: a part is missing; ValueError: a part does not fit its space.
        """
        parts = {part: np.asarray(_at(path, observation)) for part, (path, _) in self._parts.items()}
        records: npt.NDArray[Any] | None = None
        for part, seen in parts.items():
            leaf = self.spaces[part]
            assert leaf.shape is not None
            batch = seen.shape[: max(0, seen.ndim - len(leaf.shape))]
            records = np.zeros(batch, self.dtype) if records is None else records
            if seen.shape != records.shape + leaf.shape or not fits(seen, np.dtype(leaf.dtype)):
                raise ValueError(f"{part!r} is of shape {seen.shape} and {seen.dtype}, its space is {leaf}")
            records[part] = seen
        assert records is not None, "a space has one part at least"
        return records

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is one record, with values that the parts' spaces have."""
        if not isinstance(x, np.ndarray | np.void) or x.dtype != self.dtype or x.shape != ():
            return False
        return all(leaf.contains(np.asarray(x[part])) for part, leaf in self.spaces.items())

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        """Draw a record, each part by itself."""
        drawn = super().sample(mask=mask, probability=probability)
        record = np.zeros((), self.dtype)
        for part, value in drawn.items():
            record[part] = value
        return record

    def __repr__(self) -> str:
        return f"RecordSpace({', '.join(f'{part}: {leaf}' for part, leaf in self.spaces.items())})"


class RecordRows:
    """Writes observations, part by part, into records ``[N]``.

    Args:
        parts: parts of all records, ``[N, ...]``, each with the keys that lead to it in an observation, and
            its check.
    """

    def __init__(self, space: RecordSpace, parts: Sequence[tuple[npt.NDArray[Any], Path, Check]]) -> None:
        self._space = space
        self._parts = parts

    def __setitem__(self, number: int, observation: Any) -> None:
        """Write an environment's observation into its record.

        Raises:
            UnfitError: the observation does not fit the space; names the part.
        """
        try:
            for part, path, check in self._parts:
                seen = observation
                for key in path:
                    seen = seen[key]
                check(seen)
                part[number] = seen
        except _UNFIT as cause:
            raise UnfitError(
                f"an observation that does not fit observation_space: {type(cause).__name__}: {cause}; "
                f"one of {self._space} is wanted"
            ) from cause


def _parts(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space[Any]]]:
    """Iterate over the spaces that are neither Dict nor Tuple, with the keys that lead to them."""
    if isinstance(space, gymnasium.spaces.Dict):
        for key, part in space.spaces.items():
            yield from _parts(part, (*path, key))
    elif isinstance(space, gymnasium.spaces.Tuple):
        for index, part in enumerate(space.spaces):
            yield from _parts(part, (*path, index))
    else:
        yield path, space


def _at(path: Path, observation: Any) -> Any:
    """Follow the keys to a part of an observation."""
    for key in path:
        observation = observation[key]
    return observation


def _is_text(space: gymnasium.Space[Any]) -> bool:
    """Whether a space is gymnasium's Text or another space of strings, as the missions of MiniGrid are."""
    return space.dtype is not None and space.dtype.kind in "US"

"""Dict and Tuple observations, nested or not, as one record: so they travel as any observation does.

A record is one element of a structured dtype, with a part for each space that is neither Dict nor Tuple:
``{"camera": image, "arm": {"angles": a, "speeds": s}}`` has the parts ``camera``, ``arm.angles`` and
``arm.speeds``, and a Tuple's are ``0``, ``1`` and so on. numpy gives each part of records ``[N]`` as a view.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from tianji_envs.core import BaseEnv, check_part, fits
from tianji_envs.errors import BrokenEnvironmentError, UnsupportedSpaceError

Path = tuple[str | int, ...]


class RecordSpace(gymnasium.spaces.Dict):
    """The parts of a Dict or Tuple by their names; its values are records of ``dtype``.

    Text is left out: no network takes it.

    Args:
        name: of the environment, for messages.
        space: a Dict or a Tuple.

    Attributes:
        left_out: names of the parts that are text.

    Raises:
        UnsupportedSpaceError: a part is no array of fixed dtype and shape; or nothing is left.
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
        self._paths = {part: kept[part][0] for part in self.spaces}
        fields = [(part, leaf.dtype, leaf.shape) for part, leaf in self.spaces.items()]
        self._shape = ()
        # Aligned: torch reads views of numbers only at multiples of their size.
        self.dtype = np.dtype(fields, align=True)

    @property
    def is_np_flattenable(self) -> bool:
        """It is no array of numbers."""
        return False

    def pack(self, observation: Any, into: npt.NDArray[Any]) -> None:
        """Write what an environment shows into a record.

        Raises:
            KeyError, IndexError, TypeError, ValueError: it does not fit the space.
        """
        for part, path in self._paths.items():
            into[part] = _at(path, observation)

    def check(self, observation: Any) -> None:
        """Refuse what numpy would broadcast or cut to the shapes and dtypes of the parts without a word.

        Raises:
            KeyError, IndexError, TypeError, ValueError: it does not fit the space; a ValueError says where.
        """
        for part, path in self._paths.items():
            leaf, seen = self.spaces[part], np.asarray(_at(path, observation))
            if seen.shape != leaf.shape or not fits(seen, np.dtype(leaf.dtype)):
                raise ValueError(f"{part!r} is of shape {seen.shape} and {seen.dtype}, its space is {leaf}")

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


class RecordEnv(BaseEnv):
    """An environment whose Dict or Tuple observations are shown as records."""

    def __init__(self, name: str, env: BaseEnv, space: RecordSpace) -> None:
        self._name = name
        self._env = env
        self._space = self.observation_space = space
        self.action_space = env.action_space
        self._record = np.zeros((), space.dtype)
        self._unproven = {"reset", "step"}  # Of neither was looked at what it gives.

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode; the record is written again by the next call."""
        return self._packed(self._env.reset(seed), "reset")

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:
        """Act once; the record is written again by the next call."""
        observation, *rest = self._env.step(action)
        return self._packed(observation, "step"), *rest  # type: ignore[return-value]  # as many as there were

    def render(self) -> npt.NDArray[np.uint8]:
        """Draw the current state."""
        return self._env.render()

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _packed(self, observation: Any, call: str) -> npt.NDArray[Any]:
        try:
            if call in self._unproven:
                self._space.check(observation)
                self._unproven.remove(call)
            self._space.pack(observation, self._record)
        except (KeyError, IndexError, TypeError, ValueError) as cause:
            raise BrokenEnvironmentError(
                f"{self._name}: {call}() gave an observation that does not fit observation_space: "
                f"{type(cause).__name__}: {cause}; one of {self._space} is wanted"
            ) from cause
        return self._record


def as_records(name: str, env: BaseEnv) -> BaseEnv:
    """Show Dict and Tuple observations as records; any other environment is returned as it is.

    Raises:
        UnsupportedSpaceError: a part of the observations is no array of fixed dtype and shape.
    """
    space = env.observation_space
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        return RecordEnv(name, env, RecordSpace(name, space))
    return env


def _parts(space: gymnasium.Space[Any], path: Path = ()) -> Iterator[tuple[Path, gymnasium.Space[Any]]]:
    """Go through what is neither Dict nor Tuple, with the keys that lead there."""
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
    """Whether it is gymnasium's Text or another space of strings, as the missions of MiniGrid are."""
    return space.dtype is not None and space.dtype.kind in "US"

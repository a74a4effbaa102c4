"""Checks of the results of an environment's ``reset()`` and ``step()``, before a learner sees them.

numpy silently casts, cuts and repeats numbers while it writes them into memory. So ``Expected`` compares
dtype and shape at that moment; ``first_fault`` looks for the faults that are still visible afterwards in many
steps at once, which costs next to nothing.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from tianji_envs.core import Array, fits
from tianji_envs.errors import BrokenEnvironmentError

SHOWN_CHARACTERS: Final = 80
"""Most characters of a value that a message shows."""

SAY_WHEN_IT_RESETS: Final = (
    'metadata["autoreset_mode"] = AutoresetMode.SAME_STEP, or DISABLED, would be right for a vector '
    "environment that resets at another time; its copies are stepped one by one then"
)

RESET_GIVES: Final = "gymnasium's (observation, info) is wanted"
STEP_GIVES: Final = (
    "gymnasium's (observation, reward, terminated, truncated, info) is wanted: "
    "of a single done, terminated is the end of an episode and truncated that it was only cut off"
)
"""Descriptions of the right results of a gymnasium environment's ``reset`` and ``step``, for messages."""


class UnfitError(BrokenEnvironmentError):
    """A value does not fit its space; the message ends a sentence that begins with "step() gave".

    Attributes:
        copy: number of the copy with the wrong value, where there are several.
    """

    def __init__(self, message: str, copy: int = 0) -> None:
        super().__init__(message)
        self.copy = copy


def describe(value: Any) -> str:
    """Describe a value: type, shape, dtype and first characters.

    >>> describe([False])
    'of type list and shape (1,), [False]'
    """
    what = f"of type {type(value).__name__}"
    if isinstance(value, np.ndarray | np.generic):
        what = f"of shape {value.shape} and {value.dtype}"
    else:
        with contextlib.suppress(ValueError):  # Lists of unequal lengths.
            what += f" and shape {np.shape(value)}" if np.ndim(value) else ""
    text = " ".join((repr(value) if isinstance(value, str) else str(value)).split())
    return f"{what}, {text[:SHOWN_CHARACTERS]}{'...' * (len(text) > SHOWN_CHARACTERS)}"


def wrong_result(name: str, call: str, result: Any, wanted: str) -> BrokenEnvironmentError:
    """Build the error of a ``reset`` or ``step`` whose result is not the wanted values."""
    found = f"{len(result)} values" if isinstance(result, tuple) else f"a value {describe(result)}"
    return BrokenEnvironmentError(f"{name}: {call}() gave {found}; {wanted}")


class Expected:
    """Expected dtype and shape of one value of every step; a value like a good one costs a comparison.

    Args:
        called: name of the value in messages.
        dtype: dtype of the memory that it goes to; for records their own.
        wanted: description of right values in messages; by default the space's.

    Attributes:
        types: types of single numbers that need no further check.
    """

    def __init__(self, called: str, dtype: Any, shape: tuple[int, ...], wanted: str = "") -> None:
        self._called = called
        self._dtype = self._known = np.dtype(dtype)
        self._shape = shape
        if self._dtype.names:
            wanted = f"a record of observation_space.dtype is wanted: {self._dtype}"
        self._wanted = wanted or (
            f"observation_space says {shape} and {self._dtype}; a wrapper has to change both"
        )
        self.types: set[type] = set()

    def check(self, value: Any) -> None:
        """Refuse a value that numpy would cut or repeat to this dtype and shape.

        Raises:
            UnfitError: shows the value, and describes a right one.
        """
        of = type(value)
        if of is np.ndarray:
            if value.dtype is self._known and value.shape == self._shape:
                return
        elif of in self.types:
            return
        try:  # Lists may be of unequal lengths, tensors on a GPU.
            seen = np.asarray(value)
        except (TypeError, ValueError, RuntimeError):
            seen = np.empty((), object)
        # numpy would copy another record part by part in their order, without regard to their names.
        is_right = seen.dtype == self._dtype if self._dtype.names else fits(seen, self._dtype)
        if seen.shape != self._shape or not is_right:
            raise self._unfit(value, seen)
        if self._dtype.kind != "f" and not np.can_cast(seen.dtype, self._dtype, "safe"):
            return  # Whole numbers of a wider type: each of them has to be looked at.
        if of is np.ndarray:
            self._known = seen.dtype
        elif isinstance(value, np.number | np.bool_ | int | float):
            self.types.add(of)

    def _unfit(self, value: Any, seen: Array) -> UnfitError:
        if self._dtype.names:
            return UnfitError(f"{getattr(value, 'dtype', type(value).__name__)}, {self._wanted}")
        at, copy = "", 0
        if seen.shape == self._shape and self._shape and seen.dtype.kind in "iu":
            copy, *_ = place = np.argwhere(seen.astype(self._dtype) != seen)[0].tolist()
            at = f", with {seen[tuple(place)]} at {place}"
        return UnfitError(f"{self._called} {describe(value)}{at}; {self._wanted}", copy)


def reward_and_flags() -> tuple[Expected, Expected, Expected]:
    """Build the expectations for a single reward, ``terminated`` and ``truncated``."""
    flags = (
        Expected(called, np.bool_, (), "True or False is wanted") for called in ("terminated", "truncated")
    )
    wanted = "a single number is wanted, which a wrapper can make of several"
    return Expected("a reward", np.float32, (), wanted), *flags  # type: ignore[return-value]


class Bounds:
    """Lower and upper bounds of a space.

    Attributes:
        are_whole: numbers are whole, so that one outside of the bounds is wrong.
    """

    def __init__(self, low: Any, high: Any, dtype: np.dtype[Any], copies: int) -> None:
        self._low, self._high = (np.asarray(bound).astype(dtype) for bound in (low, high))
        self.are_whole = dtype.kind != "f"
        self._least, self._most = self._low.max(), self._high.min()
        self._are_one = bool((self._low == self._least).all() and (self._high == self._most).all())
        self._of_copies = self._low, self._high
        if not self._are_one:  # Rows of numbers that lie side by side are compared several times as fast.
            self._of_copies = np.stack([self._low] * copies), np.stack([self._high] * copies)

    def outside(self, values: Array) -> npt.NDArray[np.bool_] | None:
        """Mark the numbers of ``[T, N, *shape]`` outside the bounds; None: there are none."""
        if self._are_one and values.size and values.min() >= self._least and values.max() <= self._most:
            return None
        low, high = self._of_copies
        found: npt.NDArray[np.bool_] = (values < low) | (values > high)
        return found if found.any() else None

    def say(self, place: tuple[int, ...]) -> str:
        """Describe the right numbers at a place of ``[T, N, *shape]``."""
        return f"observation_space says {self._low[place[2:]]} to {self._high[place[2:]]}"


def bounds_of(space: Any, copies: int) -> dict[str, Bounds]:
    """Return the bounds of parts of observations by the names of ``parts_of``, for N copies.

    A part whose bounds are those of its dtype is left out.
    """
    leaves = {f"observation[{part!r}]": leaf for part, leaf in getattr(space, "spaces", {}).items()}
    found = {}
    for name, leaf in (leaves or {"observation": space}).items():
        if isinstance(leaf, spaces.Box):
            low, high = leaf.low, leaf.high
        elif isinstance(leaf, spaces.MultiBinary):
            low, high = np.zeros(leaf.shape), np.ones(leaf.shape)
        elif isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            low = np.asarray(leaf.start)
            high = low + (leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec) - 1
        else:
            continue
        dtype = np.dtype(leaf.dtype)
        limits = np.iinfo(dtype) if dtype.kind in "iu" else None
        least, most = (limits.min, limits.max) if limits else (-np.inf, np.inf)
        if dtype.kind != "b" and not ((low <= least) & (high >= most)).all():
            found[name] = Bounds(low, high, dtype, copies)
    return found


def parts_of(shown: Array, called: str = "observation") -> Iterator[tuple[str, Array]]:
    """Iterate over the parts of observations: those of a record by their names, else the whole array."""
    if shown.dtype.names is None:
        yield called, shown
    for name in shown.dtype.names or ():
        yield f"{called}[{name!r}]", shown[name]


def coarse_number(shown: Array, *, subtracts: bool) -> str:
    """Describe a number whose changes are below float32's resolution at its size; empty if there is none.

    A float32 number above 2^24 may have lost its changes before this check.

    Args:
        shown: observations ``[rows, N, ...]``.
        subtracts: the mean of numbers of other types is subtracted before networks get them.
    """
    for name, values in parts_of(shown):
        single = values.dtype == np.float32
        if values.dtype.kind not in "fiu" or values.dtype.itemsize < 4 or (subtracts and not single):
            continue
        rows = values.reshape(len(values) * values.shape[1], -1)
        most, least = (extreme(axis=0).astype(np.float64) for extreme in (rows.max, rows.min))
        size, change = np.maximum(np.abs(most), np.abs(least)), most - least
        step = np.spacing(size.astype(np.float32)).astype(np.float64)
        is_lost = (step >= 1) if single else (change > 1e-12 * size)
        for place in np.flatnonzero(is_lost & (change < 4 * step))[:1].tolist():
            way_out = "float64 in observation_space" if single else "training.normalize_observations = true"
            words = (
                f"{name} shows numbers of about {size[place]:.3g} that change by {change[place]:.3g}, and "
                f"float32 says such numbers in steps of {step[place]:.3g}: {way_out} would be right"
            )
            return words if change[place] else f"{words}, unless they are constant"
    return ""


def first_not_finite(values: Array) -> list[int] | None:
    """Find the first number that is not finite; a sum of squares mostly saves the look at each.

    The sum takes a tenth of the time.

    Returns:
        Its place; None: all numbers are finite, or no floats.
    """
    if values.dtype.kind != "f":
        return None
    flat = values.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if math.isfinite(flat.dot(flat)) or np.isfinite(flat).all():  # The sum may overflow.
            return None
    place: list[int] = np.argwhere(~np.isfinite(values))[0].tolist()
    return place


class Fault(NamedTuple):
    """The first wrong number of a part of observations, in many steps.

    Attributes:
        row: number of the step.
        gave: the number and its place, as in "gave nan as observation[2]".
        wanted: description of a right number.
        outside: count of real numbers outside their bounds, which is tolerated; 0: this fault is an error.
    """

    row: int
    copy: int
    gave: str
    wanted: str
    outside: int


def faults(values: Array, bounds: Mapping[str, Bounds], called: str = "observation") -> Iterator[Fault]:
    """Find numbers of ``[T, N, ...]`` that are not finite, or not within bounds; one of each part.

    Args:
        bounds: bounds of the parts, see ``bounds_of``.
    """
    for name, part in parts_of(values, called):
        found, wanted, count = first_not_finite(part), "finite numbers would be right", 0
        known = bounds.get(name)
        if found is None and known is not None and (outside := known.outside(part)) is not None:
            found = [int(index) for index in np.unravel_index(outside.argmax(), outside.shape)]
            wanted = known.say(tuple(found)) + "; show one of these, or widen it" * known.are_whole
            count = 0 if known.are_whole else int(np.count_nonzero(outside))
        elif found is not None and np.isinf(part[tuple(found)]):
            wanted = f"finite numbers of at most {np.finfo(part.dtype).max:.2g} would be right"
        if found is not None:
            row, copy, *place = found
            yield Fault(row, copy, f"gave {part[tuple(found)]!s} as {name}{place or ''}", wanted, count)


def first_fault(values: Array, bounds: Mapping[str, Bounds]) -> Fault | None:
    """Find a number of ``[T, N, ...]`` that is an error; None: there is none."""
    return next((one for one in faults(values, bounds) if not one.outside), None)


def missing_reset(
    begins: Array, reward: Array, terminated: Array, truncated: Array
) -> tuple[int, str] | None:
    """Find a copy that did not begin an episode in a step after the end of one.

    Args:
        begins: steps that have to begin an episode, ``[..., N]`` as the others.

    Returns:
        Its number, and a description of the fault; None: all have begun one.
    """
    wrong = reward != 0
    for flags in (terminated, truncated):
        wrong |= flags
    wrong &= begins
    if not wrong.any():
        return None
    place = tuple(np.argwhere(wrong)[0])
    flag = "terminated" if terminated[place] else "truncated" if truncated[place] else ""
    what = f"says {flag}" if flag else f"gave a reward of {reward[place]:g}"
    return int(place[-1]), (
        f"{what} in the step after an episode's end, which is to show the first observation of another one, "
        f"with reward 0 and no flags. {SAY_WHEN_IT_RESETS}"
    )

"""Schedules of hyperparameters over training: a word, or a table of points. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticKnownError

Points = tuple[tuple[int, float], ...]
"""Ascending env steps, and factors of the start value there, with straight lines between them."""

_EXAMPLE: Final = "[[0, 1.0], [500_000, 0.3], [1_000_000, 0.0]]"


def _words_or_points(*words: str) -> Callable[[Any], Any]:
    """Build the validator of a schedule that is one of the words, or points."""
    quoted = [f"'{word}'" for word in words]
    expected = f"{', '.join(quoted[:-1])} or {quoted[-1]}, or points such as {_EXAMPLE}"

    def check(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return _points(value)
        if value not in words:
            raise PydanticKnownError("literal_error", {"expected": expected})
        return value

    return check


def _points(pairs: Sequence[Any]) -> Points:
    """Check points; raises ValueError for the first that is wrong."""
    if not pairs:
        raise ValueError(f"a schedule of points has none; {_EXAMPLE} would be right")
    points = tuple(_point(pair) for pair in pairs)
    for (before, _), (after, _) in pairwise(points):
        if after <= before:
            raise ValueError(
                f"the points of a schedule ascend in env steps, and {after:_} comes after {before:_}"
            )
    return points


def _point(pair: Any) -> tuple[int, float]:
    if not isinstance(pair, (list, tuple)) or len(pair) != 2:
        raise ValueError(
            f"a point of a schedule is a pair of env steps and a factor of the start value, not {pair}; "
            f"{_EXAMPLE} would be right"
        )
    env_steps, factor = pair
    if not _is_number(env_steps) or env_steps < 0 or env_steps != int(env_steps):
        raise ValueError(
            f"a point of a schedule is at a whole number of env steps from 0, not at {env_steps}"
        )
    if not _is_number(factor) or factor < 0:
        raise ValueError(f"the factor at a point of a schedule is a number from 0, not {factor}")
    return int(env_steps), float(factor)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


Schedule = Annotated[
    Literal["constant", "linear"] | Points, BeforeValidator(_words_or_points("constant", "linear"))
]
"""Schedule of a hyperparameter over training."""

AdaptiveSchedule = Annotated[
    Literal["constant", "linear", "adaptive"] | Points,
    BeforeValidator(_words_or_points("constant", "linear", "adaptive")),
]
"""Schedule of a hyperparameter that may also adapt to the policy's divergence."""


def falling(start: float, end: float, over: int, env_steps: int) -> float:
    """Go from ``start`` to ``end`` in a straight line over so many env steps, and stay there."""
    return start + min(1.0, env_steps / over) * (end - start)


def remaining(schedule: Schedule, over: int | None, env_steps: int) -> float:
    """Return the factor of a hyperparameter's start value after so many env steps.

    Args:
        over: env steps after which a "linear" schedule has reached 0.
    """
    if isinstance(schedule, tuple):
        return _between(schedule, env_steps)
    if schedule == "constant" or over is None:
        return 1.0
    return max(0.0, 1.0 - env_steps / over)


def _between(points: Points, env_steps: int) -> float:
    """Go in straight lines from point to point, and stay at the first and at the last beyond them."""
    if env_steps <= points[0][0]:
        return points[0][1]
    for (left, before), (right, after) in pairwise(points):
        if env_steps <= right:
            return falling(before, after, right - left, env_steps - left)
    return points[-1][1]

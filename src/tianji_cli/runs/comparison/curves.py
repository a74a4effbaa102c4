"""Learning curves: read from a run's files, and interpolated on a grid that several curves share.

A curve is known from its first point to its last, and linear between two points. It is unknown before the
first; it is known behind its end only if its run ended because it had reached its goal, which a longer run
would have kept: such a curve may be held at its last value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tianji_cli.runs.comparison.statistics import Array

Over = Literal["env_steps", "train_s"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A learning curve, by ascending seconds since the first env step.

    Attributes:
        returns: mean returns, usually of the last 100 training episodes, or else of an evaluation.
    """

    train_s: tuple[float, ...]
    env_steps: tuple[float, ...]
    returns: tuple[float, ...]

    def over(self, over: Over) -> Array:
        """Places of its points, in env steps or in seconds."""
        return np.asarray(getattr(self, over), np.float64)

    def steps_at(self, train_s: float) -> float:
        """Return the env steps at a moment, interpolated between two points, or between 0 and the first."""
        return float(np.interp(train_s, (0.0, *self.train_s), (0.0, *self.env_steps)))


def read_curve(
    rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None, of: str = "mean_100"
) -> Curve:
    """Build a curve from the reports that are newer than those before; a summary is the last point.

    Args:
        rows: snapshots, as ``read_metrics`` returns them.
        of: quantity of the curve: a key of the table ``returns``.
    """
    points: list[tuple[float, float, float]] = []
    last = [] if summary is None else [(summary["train_s"], summary["env_steps"], summary["returns"][of])]
    for row in rows:
        is_newer = row["train_s"] > (points[-1][0] if points else 0.0)
        if is_newer and row.get(f"returns.{of}") is not None and not (last and row["train_s"] >= last[0][0]):
            points.append((row["train_s"], row["env_steps"], row[f"returns.{of}"]))
    return curve_through([*points, *last])


def curve_through(points: Sequence[tuple[float, float, float]]) -> Curve:
    """Build a curve from points, each seconds, env steps and a return; without points it is empty."""
    return Curve(*zip(*points, strict=True)) if points else Curve((), (), ())


def values_on(grid: npt.NDArray[Any], curve: Curve, over: Over, *, held: bool) -> Array:
    """Evaluate a curve at the points of a grid.

    Args:
        held: the curve keeps its last value behind its end.

    Returns:
        Its values, NaN where the curve is unknown.
    """
    behind = curve.returns[-1] if held else np.nan
    found: Array = np.interp(grid, curve.over(over), curve.returns, left=np.nan, right=behind)
    return found


def stretch(curves: Sequence[Curve], over: Over, held: Sequence[bool]) -> tuple[float, float]:
    """Return the stretch where all of some curves are known: from their last beginning to their first end.

    Args:
        held: for each curve, whether it keeps its last value. Such a curve sets no end, unless all are held:
            then the last of their ends counts.

    Returns:
        First and last place; the first is behind the last if there is no such stretch.
    """
    ends = [curve.over(over)[-1] for curve in curves]
    open_ends = [end for end, keeps in zip(ends, held, strict=True) if not keeps]
    first = max(curve.over(over)[0] for curve in curves)
    return float(first), float(min(open_ends) if open_ends else max(ends))


def mean_height(curve: Curve, over: Over, first: float, last: float, *, held: bool) -> float:
    """Return the area under a curve between two places over their distance: the mean return on the way."""
    places = curve.over(over)
    inner = places[(places > first) & (places < last)]
    grid = np.array([first, *inner, last])
    return float(np.trapezoid(values_on(grid, curve, over, held=held), grid) / (last - first))


def first_at(curve: Curve, threshold: float) -> float | None:
    """Return the seconds until a curve first reaches a threshold, interpolated linearly; None if never."""
    above = np.flatnonzero(np.asarray(curve.returns) >= threshold)
    if not above.size:
        return None
    place = int(above[0])
    if place == 0:
        return curve.train_s[0]
    (x0, x1), (y0, y1) = curve.train_s[place - 1 : place + 1], curve.returns[place - 1 : place + 1]
    return x0 + (x1 - x0) * (threshold - y0) / (y1 - y0)

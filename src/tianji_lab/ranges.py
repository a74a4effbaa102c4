"""A figure over several runs, as all measurements sum it up: in tables, in JSON and as error bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tianji_cli.quantities import finite
from tianji_cli.runs.comparison.statistics import estimate

if TYPE_CHECKING:  # It takes a second, and only figures need it.
    from matplotlib.axes import Axes


@dataclass(frozen=True, slots=True)
class Range:
    """Middle and both ends of a figure over several runs, infinite where runs lack the figure."""

    middle: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range:
        """Compute median, minimum and maximum."""
        return cls(median(values), min(values), max(values))

    @classmethod
    def estimated(cls, values: Sequence[float]) -> Range:
        """Estimate the interquartile mean and its 95 % interval."""
        found = estimate(np.array(values))
        return cls(float(found.value), float(found.low), float(found.high))

    @property
    def apart(self) -> float:
        """Difference between both ends, as a share of the middle."""
        return (self.high - self.low) / self.middle

    def overlaps(self, other: Range) -> bool:
        """Whether the two have a value in common."""
        return self.low <= other.high and other.low <= self.high

    def scaled(self, factor: float) -> Range:
        """Multiply by a factor."""
        return Range(self.middle * factor, self.low * factor, self.high * factor)

    def written(self, write: Callable[[float], str]) -> str:
        """Write the middle, and both ends in brackets."""
        return f"{write(self.middle)} [{write(self.low)}, {write(self.high)}]"

    def document(self, names: Sequence[str]) -> dict[str, float | None]:
        """Write as JSON: the middle, the low and the high end under these names."""
        return dict(zip(names, finite((self.middle, self.low, self.high)), strict=True))


def draw_ranges(axes: Axes, x: Sequence[float], ranges: Sequence[Range], **style: Any) -> None:
    """Draw points with error bars from end to end."""
    # Rounding may put a middle beyond an end that it equals; a bar has no negative length.
    below = [max(0.0, one.middle - one.low) for one in ranges]
    above = [max(0.0, one.high - one.middle) for one in ranges]
    bars: dict[str, Any] = {"capsize": 1.5, "elinewidth": 0.7, "capthick": 0.7, **style}
    axes.errorbar(x, [one.middle for one in ranges], yerr=[below, above], **bars)

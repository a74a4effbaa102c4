"""Least squares with two coefficients, neither of which is ever negative: they are times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

_SINGULAR: Final = 1e-9


class Line(NamedTuple):
    """``intercept + slope x``."""

    intercept: float
    slope: float

    def at(self, x: float) -> float:
        """The line's value.

        >>> Line(1.0, 2.0).at(3.0)
        7.0
        """
        return self.intercept + self.slope * x


def line(points: Iterable[tuple[float, float]]) -> Line:
    """Fit a line; it is flat through one point, and zero through none.

    >>> line([(1.0, 3.0), (2.0, 5.0)])
    Line(intercept=1.0, slope=2.0)
    """
    return Line(*fit([(1.0, x, y) for x, y in points]))


def fit(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Find ``a, b >= 0`` that bring ``a x1 + b x2`` nearest to ``y``; where one row leaves it open, b is 0.

    Args:
        rows: of ``(x1, x2, y)``.
    """
    xx = sum(x1 * x1 for x1, _, _ in rows)
    xz = sum(x1 * x2 for x1, x2, _ in rows)
    zz = sum(x2 * x2 for _, x2, _ in rows)
    xy = sum(x1 * y for x1, _, y in rows)
    zy = sum(x2 * y for _, x2, y in rows)
    determinant = xx * zz - xz * xz
    if determinant > _SINGULAR * xx * zz:
        a, b = (xy * zz - zy * xz) / determinant, (zy * xx - xy * xz) / determinant
        if a >= 0 and b >= 0:
            return a, b
    # The best on the border of what is allowed: one of them is 0.
    first = (max(xy / xx, 0.0) if xx else 0.0, 0.0)
    second = (0.0, max(zy / zz, 0.0) if zz else 0.0)
    return min(first, second, key=lambda ab: sum((ab[0] * x1 + ab[1] * x2 - y) ** 2 for x1, x2, y in rows))

"""Writes numbers for people: 1.23 M steps, 45.2 K/s, 1 min 20 s."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any


def count(value: float) -> str:
    """Write a count with three digits and a unit: 999, 45.2 K, 1.23 M."""
    if value < 1000:
        return f"{value:.0f}"
    for unit in ("K", "M", "G"):
        value /= 1000
        if value < 999.5:
            return f"{_three_digits(value)} {unit}"
    return f"{_three_digits(value / 1000)} T"


def several(number: int, what: str, plural: str = "s") -> str:
    """Write a number of things, in singular or plural.

    >>> several(1, "core"), several(2, "core"), several(2, "process", "es")
    ('1 core', '2 cores', '2 processes')
    """
    return f"{number} {what}{'' if number == 1 else plural}"


def rate(per_s: float) -> str:
    """Write a rate: 0.50/s, 12.3/s, 45.2 K/s."""
    if 0 < per_s < 999.5:
        return f"{_three_digits(per_s)}/s"
    return f"{count(per_s)}/s"


def duration(seconds: float, decimals: int = 1) -> str:
    """Write a time with two units at most: 0.4 s, 12.3 s, 10 min, 1 min 20 s, 2 h 5 min, 3 d 4 h.

    Args:
        decimals: of the seconds, below a minute.
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if round(seconds, decimals) < 60:
        return f"{seconds:.{decimals}f} s"
    if round(seconds) < 3600:
        return _two_units(round(seconds), 60, "min", "s")
    if round(seconds / 60) < 24 * 60:
        return _two_units(round(seconds / 60), 60, "h", "min")
    return _two_units(round(seconds / 3600), 24, "d", "h")


def _two_units(small: int, size: int, large_unit: str, small_unit: str) -> str:
    large, rest = divmod(small, size)
    return f"{large} {large_unit}" + (f" {rest} {small_unit}" if rest else "")


def number(value: float) -> str:
    """Write a measured value with about four digits, and an exponent only if it is very small or large."""
    size = abs(value)
    if not math.isfinite(value) or (size and (size < 1e-3 or size >= 1e7)):
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3f}" if size < 1 else f"{value:.2f}"


def exact(value: float) -> str:
    """Write a number with the fewest digits that distinguish it from all others.

    >>> exact(300.0), exact(0.1), exact(1234567.5)
    ('300', '0.1', '1234567.5')
    """
    return repr(float(value)).removesuffix(".0")


def size(nbytes: float) -> str:
    """Write the size of a message, whose units are powers of two: 64 B, 512 KB, 8 MB.

    >>> size(64), size(512 * 1024), size(8 * 1024**2)
    ('64 B', '512 KB', '8 MB')
    """
    for unit in ("B", "KB"):
        if nbytes < 1024:
            return f"{nbytes:g} {unit}"
        nbytes /= 1024
    return f"{nbytes:g} MB"


def memory(nbytes: float) -> str:
    """Write an amount of memory, with MB = 1e6 bytes.

    >>> memory(512), memory(59_400_000)
    ('512 B', '59.4 MB')
    """
    return f"{nbytes:.0f} B" if nbytes < 1000 else f"{count(nbytes)}B"


def share(fraction: float) -> str:
    """Write a share of one as per cent: 93 %."""
    return f"{100 * fraction:.0f} %"


def ranges(numbers: Iterable[int]) -> str:
    """Write ascending numbers as ranges: ``1-3, 7``."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def finite(value: Any) -> Any:
    """Copy a JSON value with None for every float that JSON cannot hold (NaN and the infinities)."""
    if isinstance(value, float):
        # JSON has plain floats only; NumPy's float64 is a subclass of float.
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def written(values: Mapping[str, Any]) -> str:
    """Write values of a config with their keys.

    >>> written({"training.learning_rate": 0.00123456, "training.epochs": 4})
    'training.learning_rate 0.001235, training.epochs 4'
    """
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
        for key, value in values.items()
    )

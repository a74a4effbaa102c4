"""Statistics of few runs, after Agarwal et al. (2021): means, intervals, probability of improvement.

The mean of a few runs moves with one outlier, and their median ignores most of them. The interquartile mean
is over the middle half of the runs. Intervals are by the percentile bootstrap: runs are drawn with
replacement within one setting, which makes each setting a stratum; they show how far a figure may be from
that of very many runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95
MOST_DRAWN: Final = 4_000_000
"""Most values drawn at once: curves of a hundred runs would take gigabytes."""

LEAST_FOR_INTERVAL: Final = 2
"""Fewest runs with an interval: every resample of one run is the same."""

LEAST_FOR_VERDICT: Final = 5
"""Fewest runs of a setting with a verdict: an interval of fewer runs decides nothing."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Interquartile means, probabilities or shares, with the bounds of their intervals; all of one shape."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Interval:
    """An interquartile mean and its 95 % interval, which one run does not have; None is unknown."""

    iqm: float | None
    low: float | None
    high: float | None


def interquartile_mean(values: npt.NDArray[Any], axis: int = 0) -> Array:
    """Average the middle half of the values: the lowest and the highest quarter, rounded down, are left out.

    Returns:
        The means, without that axis.
    """
    ordered = np.sort(values, axis)
    runs = values.shape[axis]
    middle = np.arange(runs // 4, runs - runs // 4)
    return np.asarray(np.take(ordered, middle, axis).mean(axis), np.float64)


def estimate(values: npt.NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Estimate interquartile means and their 95 % intervals; a resample draws a run with all its quantities.

    Args:
        values: ``[runs, ...]`` of one setting. Infinity is a value beyond all others: a mean or a bound that
            includes one is infinite, or not a number.

    Returns:
        An estimate of shape ``[...]``.
    """
    draws = np.random.default_rng(seed).integers(len(values), size=(resamples, len(values)))
    blocks = np.array_split(draws, math.ceil(resamples * values.size / MOST_DRAWN))
    low, high = _bounds(np.concatenate([interquartile_mean(values[block], axis=1) for block in blocks]))
    return Estimate(interquartile_mean(values), low, high)


def interval(values: npt.NDArray[Any]) -> Interval:
    """Estimate an interquartile mean, with None in place of values that are not finite.

    Args:
        values: ``[runs]`` of one setting; infinity is a value beyond all others.
    """
    found = estimate(values)
    low, high = (found.low, found.high) if len(values) >= LEAST_FOR_INTERVAL else (np.nan, np.nan)
    return Interval(*(float(one) if math.isfinite(one) else None for one in (found.value, low, high)))


def probability_of_improvement(
    ours: npt.NDArray[Any], theirs: npt.NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Estimate P(X > Y), the probability that a run of ours exceeds one of theirs; a tie counts half.

    P is the Mann-Whitney statistic over all pairs. The runs of each side are drawn independently.

    Args:
        ours: ``[runs]``.
        theirs: ``[runs]`` of another setting, perhaps another number of them.

    Returns:
        A probability of shape ``[]``.
    """
    wins = (ours[:, None] > theirs) + 0.5 * (ours[:, None] == theirs)
    rng = np.random.default_rng(seed)
    of_ours = _times_drawn(len(ours), resamples, rng)
    of_theirs = _times_drawn(len(theirs), resamples, rng)
    low, high = _bounds(((of_ours @ wins) * of_theirs).sum(axis=1) / wins.size)
    return Estimate(np.asarray(wins.mean()), low, high)


def performance_profile(
    values: npt.NDArray[Any], taus: npt.NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES
) -> Estimate:
    """Estimate for each tau the share of runs above it, P(X > tau).

    Args:
        values: ``[runs]`` of one setting.
        taus: ``[taus]``.

    Returns:
        Shares of shape ``[taus]``.
    """
    above = (values[:, None] > taus).astype(np.float64)
    drawn = _times_drawn(len(values), resamples, np.random.default_rng(seed))
    low, high = _bounds(drawn @ above / len(values))
    return Estimate(above.mean(axis=0), low, high)


def _times_drawn(runs: int, resamples: int, rng: np.random.Generator) -> Array:
    """Counts of each run in each resample, ``[resamples, runs]``."""
    return rng.multinomial(runs, np.full(runs, 1 / runs), size=resamples).astype(np.float64)


def _bounds(resampled: Array) -> tuple[Array, Array]:
    """Bounds of the interval, from ``[resamples, ...]``."""
    tail = 100 * (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # Interpolation between two infinities is NaN.
        low, high = np.percentile(resampled, (tail, 100 - tail), axis=0)
    return np.asarray(low), np.asarray(high)

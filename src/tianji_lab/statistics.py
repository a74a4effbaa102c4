"""Interquartile means over runs and their bootstrap intervals, after Agarwal et al. (2021).

A few runs of a training say little by their mean, which one outlier moves, and their median, which ignores
most of them. The interquartile mean is over the middle half of the runs; its interval shows how far it may be
from that of very many runs. Knows neither trainings nor files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Interquartile means of some quantities, with the bounds of their intervals; one shape.

    Attributes:
        iqm: interquartile means.
        low: lower bounds.
        high: upper bounds.
    """

    iqm: Array
    low: Array
    high: Array


def interquartile_mean(values: npt.NDArray[Any], axis: int = 0) -> Array:
    """Average the middle half of the values: the lowest and the highest quarter, rounded down, are left out.

    Args:
        values: at least one along ``axis``.
        axis: of the runs.

    Returns:
        The means, without that axis.
    """
    ordered = np.sort(values, axis)
    runs = values.shape[axis]
    middle = np.arange(runs // 4, runs - runs // 4)
    return np.asarray(np.take(ordered, middle, axis).mean(axis), np.float64)


def estimate(values: npt.NDArray[Any], *, seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Estimate interquartile means and their 95 % intervals by the percentile bootstrap.

    Runs are drawn with replacement within one setting, which makes each setting a stratum; a run is drawn as
    a whole, with all its quantities.

    Args:
        values: ``[runs, ...]`` of one setting.
        seed: of the bootstrap.
        resamples: how many.

    Returns:
        An estimate of shape ``[...]``.
    """
    runs = len(values)
    draws = np.random.default_rng(seed).integers(runs, size=(resamples, runs))
    means = interquartile_mean(values[draws], axis=1)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(means, (tail, 100 - tail), axis=0)
    return Estimate(interquartile_mean(values), np.asarray(low), np.asarray(high))

"""How often each sample was used: a count each, and a histogram over all samples there ever were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

MOST: Final = 255
"""Counts stop here: they have one byte each."""


@dataclass(frozen=True)
class UseSummary:
    """Distribution of how often a sample was used, over those held and those evicted."""

    mean: float
    p50: float
    p95: float
    max: float


class UseCounts:
    """Counts the uses of each sample held; the histogram keeps what became of the others.

    Args:
        places: steps in all slots.

    Attributes:
        counts: uses of each place's sample.
        histogram: samples by their number of uses.
    """

    def __init__(self, places: int) -> None:
        self.counts = np.zeros(places, np.uint8)
        self.histogram = np.zeros(MOST + 1, np.int64)
        self.total = 0
        """Uses of all samples, also beyond what a count can hold."""

    def begin(self, places: slice, samples: int) -> None:
        """Let a fragment's places be those of so many new samples."""
        self.counts[places] = 0
        self.histogram[0] += samples

    def use(self, places: npt.NDArray[np.intp]) -> None:
        """Count a batch; a place that is in it twice was used twice."""
        self.total += places.size
        order = np.sort(places)
        times: npt.NDArray[np.intp] | int = 1
        if (order[1:] == order[:-1]).any():
            order, times = np.unique(order, return_counts=True)
        before = self.counts.take(order).astype(np.intp)
        after = np.minimum(before + times, MOST)
        self.counts[order] = after
        self.histogram -= np.bincount(before, minlength=MOST + 1)
        self.histogram += np.bincount(after, minlength=MOST + 1)

    def summary(self) -> UseSummary | None:
        """Mean, median, 95th percentile and maximum so far; None before there was a sample."""
        samples = int(self.histogram.sum())
        if samples == 0:
            return None
        cumulative = np.cumsum(self.histogram)
        return UseSummary(
            mean=self.total / samples,
            p50=float(np.searchsorted(cumulative, 0.50 * samples)),
            p95=float(np.searchsorted(cumulative, 0.95 * samples)),
            max=float(np.flatnonzero(self.histogram)[-1]),
        )

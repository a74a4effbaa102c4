"""How often each sample was used: a count each, and a histogram over all samples there ever were."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.wire.distribution import Pending, Spread

MOST: Final = 255
"""Counts stop here: they have one byte each."""


class UseCounts:
    """Counts the uses of each sample held; the histogram keeps what became of the others.

    Args:
        places: steps in all slots.

    Attributes:
        total: uses of all samples, also beyond what a count can hold.
    """

    def __init__(self, places: int) -> None:
        self.total = 0
        self._counts = np.zeros(places, np.uint8)
        self._histogram = np.zeros(MOST + 1, np.int64)
        self._pending = Pending(self._count)

    @property
    def counts(self) -> npt.NDArray[np.uint8]:
        """Uses of each place's sample."""
        self._pending.flush()
        return self._counts

    @property
    def histogram(self) -> npt.NDArray[np.int64]:
        """Samples by their number of uses, ``[MOST + 1]``."""
        self._pending.flush()
        return self._histogram

    def begin(self, places: slice, samples: int) -> None:
        """Let a fragment's places be those of so many new samples."""
        self._pending.flush()
        self._counts[places] = 0
        self._histogram[0] += samples

    def use(self, places: npt.NDArray[np.intp]) -> None:
        """Count a batch; a place that is in it twice was used twice."""
        self.total += places.size
        self._pending.add(places)

    def _count(self, places: npt.NDArray[np.intp]) -> None:
        used, times = np.unique(places, return_counts=True)
        before = self._counts.take(used).astype(np.intp)
        after = np.minimum(before + times, MOST)
        self._counts[used] = after
        self._histogram -= np.bincount(before, minlength=MOST + 1)
        self._histogram += np.bincount(after, minlength=MOST + 1)

    def summary(self) -> Spread | None:
        """Mean, median, 95th percentile and maximum so far; None before there was a sample."""
        histogram = self.histogram
        samples = int(histogram.sum())
        if samples == 0:
            return None
        cumulative = np.cumsum(histogram)
        return Spread(
            mean=self.total / samples,
            p50=float(np.searchsorted(cumulative, 0.50 * samples)),
            p95=float(np.searchsorted(cumulative, 0.95 * samples)),
            max=float(np.flatnonzero(histogram)[-1]),
        )

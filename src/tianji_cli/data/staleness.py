"""How old the policy was that made a sample, counted in versions when the sample is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class StalenessSummary:
    """Distribution of the version lag over all samples used, in versions."""

    mean: float
    p50: float
    p95: float
    max: float


class Staleness:
    """Counts samples by version lag. A histogram, because lags are few and samples are many."""

    def __init__(self) -> None:
        self._counts = np.zeros(64, np.int64)

    def record(self, lag: int, samples: int) -> None:
        """Count ``samples`` that were used ``lag`` versions after the policy that made them."""
        if lag >= self._counts.size:
            self._counts = np.concatenate([self._counts, np.zeros(lag + 1, np.int64)])
        self._counts[lag] += samples

    def summary(self) -> StalenessSummary | None:
        """Mean, median, 95th percentile and maximum so far; None before a sample was used."""
        total = int(self._counts.sum())
        if total == 0:
            return None
        cumulative = np.cumsum(self._counts)
        mean = float((self._counts * np.arange(self._counts.size)).sum() / total)
        return StalenessSummary(
            mean=mean,
            p50=float(np.searchsorted(cumulative, 0.50 * total)),
            p95=float(np.searchsorted(cumulative, 0.95 * total)),
            max=float(np.flatnonzero(self._counts)[-1]),
        )

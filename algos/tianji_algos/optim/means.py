"""Means of losses and diagnostics over the updates between two reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class Means:
    """Adds up a few numbers with every update.

    Args:
        names: of the numbers, in their order.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._sums = np.zeros(len(names), np.float64)
        self._updates = 0

    def add(self, values: npt.NDArray[np.float32] | Sequence[float], last: float) -> None:
        """Add the numbers of an update: all but the last, and the last."""
        self._sums[:-1] += values
        self._sums[-1] += last
        self._updates += 1

    def take(self) -> dict[str, float]:
        """Give the means since the last call, and begin anew; empty if there was no update."""
        if self._updates == 0:
            return {}
        means = dict(zip(self._names, (self._sums / self._updates).tolist(), strict=True))
        self._sums[:] = 0.0
        self._updates = 0
        return means

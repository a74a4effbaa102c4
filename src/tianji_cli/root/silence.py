"""Which workers were not heard of for long: suspended or compiling perhaps, which is not dead."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

LATE_S: Final = 10.0
"""A worker that was not heard of for so long is reported."""


class Silence:
    """Remembers when each rank was heard of last, and who was reported as late.

    Args:
        ranks: of the job.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._heard = dict.fromkeys(ranks, time.monotonic())
        self._late: set[int] = set()

    def begin(self, rank: int) -> None:
        """Take a rank for heard of: it was just started."""
        self._heard[rank] = time.monotonic()
        self._late.discard(rank)

    def is_broken(self, rank: int) -> bool:
        """Note that a rank was heard of; says whether it had been reported as late."""
        late = rank in self._late
        self.begin(rank)
        return late

    def newly_late(self, ranks: Iterable[int]) -> list[int]:
        """Find those of the ranks that are late now and were not reported before."""
        now = time.monotonic()
        late = [rank for rank in ranks if rank not in self._late and now - self._heard[rank] > LATE_S]
        self._late.update(late)
        return late

"""What one core can move at most: copies from a warm source into memory that is in no cache."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Final

from tianji_lab.bench.record import MB
from tianji_lab.bench.slots import MOST_SLOTS, Slots

ROUNDS: Final = 5
ROUND_S: Final = 0.05
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Copied between two looks at the clock."""


def memcpy_mb_per_s(nbytes: int) -> float:
    """Measure the median rate of several rounds, in MB of 1e6 bytes per second.

    Every copy is a statement of Python's, as it is where a receiver stores a message: for small messages the
    statement is what is measured.

    Args:
        nbytes: of a message.
    """
    source = memoryview(bytearray(nbytes))
    store = Slots(nbytes, MOST_SLOTS).next
    batch = range(max(1, BATCH_BYTES // nbytes))
    rates = []
    for _ in range(ROUNDS):
        copied, began = 0, perf_counter()
        while (seconds := perf_counter() - began) < ROUND_S:
            for _ in batch:
                store()[:] = source
            copied += len(batch) * nbytes
        rates.append(copied / seconds / MB)
    return statistics.median(rates)

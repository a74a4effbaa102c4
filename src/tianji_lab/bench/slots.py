"""Memory of a receiver: a ring so large that storing a message costs what it costs in a replay buffer."""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from typing import Final

import numpy as np

RING_BYTES: Final = 256 * 1024 * 1024
"""More than a processor's cache, so that what is stored goes to memory."""
LEAST_SLOTS: Final = 2
MOST_SLOTS: Final = 1 << 16
"""Of small messages; each slot is an object of its own, so that none is made while messages come."""
LINE: Final = 64


class Slots:
    """A ring of memory for messages of one size. Every page of it was written to before it is used.

    Args:
        nbytes: of a message.
        most: slots that are needed.

    Attributes:
        next: gives the memory of the next message, which is given again once the ring is over.
    """

    next: Callable[[], memoryview]

    def __init__(self, nbytes: int, most: int) -> None:
        stride = -(-nbytes // LINE) * LINE
        count = min(max(LEAST_SLOTS, RING_BYTES // stride), max(1, most), MOST_SLOTS)
        pages = mmap.mmap(-1, count * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # As NumPy asks for large arrays: replay memory is such an array.
        pages.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE] = 0
        memory = memoryview(pages)
        ring = [memory[start : start + nbytes] for start in range(0, count * stride, stride)]
        self.next = itertools.cycle(ring).__next__

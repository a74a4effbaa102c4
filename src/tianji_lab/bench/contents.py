"""What messages of a benchmark hold, so that a lost, reordered or damaged one is always noticed.

Every 8-byte word is the *stamp*: the sender's rank, the number of the run and that of the message. The
second word is the sender's clock when it pushed. Both sides keep it cheap: the writer fills memory once,
and in timed runs the reader looks at the head, the tail and ``PLACES`` words between.
"""

from __future__ import annotations

import itertools
import mmap
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

WORD: Final = 8
LEAST_BYTES: Final = 4 * WORD
"""Room for a stamp, the clock, and something to damage."""
PLACES: Final = 6
NUMBER_BITS: Final = 40
RUN_BITS: Final = 8
CLOCK: Final = 1
"""Index of the word that holds the sender's clock in nanoseconds."""


class DamagedMessageError(Exception):
    """A message is not the one that had to come next."""


def stamp(rank: int, run: int, number: int) -> int:
    """Make the word that the ``number``-th message of a rank is made of."""
    return (rank << RUN_BITS | run % (1 << RUN_BITS)) << NUMBER_BITS | number


def explain(word: int) -> str:
    """Return which message a stamp belongs to."""
    rank, run = word >> NUMBER_BITS >> RUN_BITS, (word >> NUMBER_BITS) % (1 << RUN_BITS)
    return f"message {word % (1 << NUMBER_BITS)} of rank {rank} in run {run}"


def write(memory: memoryview, word: int) -> NDArray[np.uint64]:
    """Write every byte of a message.

    Args:
        memory: of a size that ``WORD`` divides.

    Returns:
        The words, so that the one at ``CLOCK`` can be set when the message is pushed.
    """
    words = np.frombuffer(memory, np.uint64)
    words.fill(word)
    return words


class Inspector:
    """Compares messages of one size with their stamps."""

    def __init__(self, nbytes: int, *, thorough: bool) -> None:
        words = nbytes // WORD
        self._nbytes = nbytes
        self._thorough = thorough
        # The head is looked at first, since it says which message this is.
        between = np.linspace(CLOCK + 1, words - 1, PLACES + 1).astype(int)
        self._places = tuple(sorted({int(place) for place in between}))

    def inspect(self, memory: memoryview, word: int) -> int:
        """Check a message and read the sender's clock, in nanoseconds.

        Raises:
            DamagedMessageError: it is another message, or an altered one.
        """
        if memory.nbytes != self._nbytes:
            raise DamagedMessageError(
                f"{explain(word)} has {memory.nbytes} bytes where {self._nbytes} were sent"
            )
        words = memory.cast("Q")
        if words[0] != word:
            raise DamagedMessageError(
                f"{explain(word)} should come next, and the head says {explain(words[0])}"
            )
        if self._thorough:
            wrong = np.flatnonzero(np.frombuffer(memory, np.uint64)[CLOCK + 1 :] != word)
            if wrong.size:
                raise self._altered(words, word, int(wrong[0]) + CLOCK + 1)
        for place in self._places:
            if words[place] != word:
                raise self._altered(words, word, place)
        return words[CLOCK]

    def _altered(self, words: memoryview, word: int, place: int) -> DamagedMessageError:
        return DamagedMessageError(
            f"{explain(word)} is altered at byte {place * WORD}: {words[place]:#x}, not {word:#x}"
        )


class StampInspector(Inspector):
    """Compares messages that carry no clock: the stamp has its place, too."""

    def inspect(self, memory: memoryview, word: int) -> int:
        """Check a message; see ``Inspector.inspect``."""
        clock = super().inspect(memory, word)
        if clock != word:
            raise self._altered(memory.cast("Q"), word, CLOCK)
        return clock


RING_BYTES: Final = 256 * 1024 * 1024
"""More than a processor's cache, so that what is stored goes to memory."""
LEAST_SLOTS: Final = 2
MOST_SLOTS: Final = 1 << 16
"""Of small messages; each slot is an object of its own, so that none is made while messages come."""
LINE: Final = 64


class Slots:
    """A ring of memory for messages of one size. Every page of it was written to before it is used."""

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

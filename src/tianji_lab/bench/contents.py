"""Contents of a benchmark's messages, which show a lost, reordered or damaged one.

Every 8-byte word is the *stamp*: the sender's rank, the number of the run and the number of the message. The
second word is the sender's clock at the push. Both sides keep the cost low: the writer fills memory once, and
in timed runs the reader checks the head, the tail and ``PLACES`` words between.
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
"""Minimum bytes of a message: room for a stamp, the clock, and two words to check."""
PLACES: Final = 6
NUMBER_BITS: Final = 40
RUN_BITS: Final = 8
CLOCK: Final = 1
"""Index of the word that holds the sender's clock in nanoseconds."""


class DamagedMessageError(Exception):
    """A message is not the one that had to come next."""


def stamp(rank: int, run: int, number: int) -> int:
    """Make the word that fills the ``number``-th message of a rank."""
    return (rank << RUN_BITS | run % (1 << RUN_BITS)) << NUMBER_BITS | number


def explain(word: int) -> str:
    """Describe the message that a stamp belongs to."""
    rank, run = word >> NUMBER_BITS >> RUN_BITS, (word >> NUMBER_BITS) % (1 << RUN_BITS)
    return f"message {word % (1 << NUMBER_BITS)} of rank {rank} in run {run}"


def write(memory: memoryview, word: int) -> NDArray[np.uint64]:
    """Write every byte of a message.

    Args:
        memory: of a size that ``WORD`` divides.

    Returns:
        The words, so that the sender can set the one at ``CLOCK`` when it pushes the message.
    """
    words = np.frombuffer(memory, np.uint64)
    words.fill(word)
    return words


class Inspector:
    """Compares messages of one size with their stamps.

    Args:
        has_clock: the second word is the sender's clock, not the stamp.
    """

    def __init__(self, nbytes: int, *, thorough: bool, has_clock: bool = False) -> None:
        words = nbytes // WORD
        self._nbytes = nbytes
        self._thorough = thorough
        # ``inspect`` checks the head first, since it names the message.
        self._first = CLOCK + 1 if has_clock else CLOCK
        between = np.linspace(CLOCK + 1, words - 1, PLACES + 1).astype(int)
        self._places = tuple(sorted({self._first, *map(int, between)}))

    def inspect(self, memory: memoryview, word: int) -> int:
        """Check a message and read its second word, the sender's clock in nanoseconds if it has one.

        Raises:
            DamagedMessageError: the message is not the expected one, or altered.
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
            wrong = np.flatnonzero(np.frombuffer(memory, np.uint64)[self._first :] != word)
            if wrong.size:
                raise self._altered(words, word, int(wrong[0]) + self._first)
        for place in self._places:
            if words[place] != word:
                raise self._altered(words, word, place)
        return words[CLOCK]

    def _altered(self, words: memoryview, word: int, place: int) -> DamagedMessageError:
        return DamagedMessageError(
            f"{explain(word)} is altered at byte {place * WORD}: {words[place]:#x}, not {word:#x}"
        )


RING_BYTES: Final = 256 * 1024 * 1024
"""Bytes of a ring: more than a processor's cache, so that stores go to memory."""
LEAST_SLOTS: Final = 2
MOST_SLOTS: Final = 1 << 16
"""Maximum slots, for small messages. Each slot is an object made in advance: none is made during a run."""
LINE: Final = 64


class Slots:
    """A ring of memory for messages of one size; the constructor writes to every page once."""

    next: Callable[[], memoryview]

    def __init__(self, nbytes: int, most: int) -> None:
        stride = -(-nbytes // LINE) * LINE
        count = min(max(LEAST_SLOTS, RING_BYTES // stride), max(1, most), MOST_SLOTS)
        pages = mmap.mmap(-1, count * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        # NumPy advises the same for large arrays, such as replay memory.
        pages.madvise(mmap.MADV_HUGEPAGE)
        np.frombuffer(pages, np.uint8)[:: mmap.PAGESIZE] = 0
        memory = memoryview(pages)
        ring = [memory[start : start + nbytes] for start in range(0, count * stride, stride)]
        self.next = itertools.cycle(ring).__next__

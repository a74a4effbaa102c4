"""How ranks of the ``shm`` engine wake one another: a FIFO for each rank among the job's names.

Whoever stored something for a rank that sleeps writes a byte to its FIFO, and the sleeper polls it together
with any other descriptor. A FIFO outlives its reader, so a restarted rank hears those who opened it before.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tianji_transports.shm.page import SHM

MOST_RINGS = 4096


class Bells:
    """The bell of one rank, and those that it has rung.

    Attributes:
        own: readable once somebody has rung.
    """

    def __init__(self, stem: str, rank: int) -> None:
        self._stem = stem
        self._opened: dict[int, int] = {}
        self.own = self._open(rank)

    def _open(self, rank: int) -> int:
        path = Path(SHM, f"{self._stem}.bell-{rank}")
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # For both ways: neither side then waits for the other, nor finds it gone.
        descriptor = self._opened[rank] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return descriptor

    def ring(self, rank: int) -> None:
        """Wake a rank."""
        descriptor = self._opened.get(rank)
        if descriptor is None:
            descriptor = self._open(rank)
        # A full FIFO rings already.
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"!")

    def silence(self) -> None:
        """Take in every ring so far."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.own, MOST_RINGS)) == MOST_RINGS:
                pass

    def close(self) -> None:
        """Close every bell."""
        while self._opened:
            os.close(self._opened.popitem()[1])

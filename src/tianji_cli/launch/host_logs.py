"""What a worker on a joined host writes to its log, in pieces for the root: that host forgets it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tianji_cli.files.regular import open_regular

PIECE_BYTES: Final = 128 << 10
"""Of one message: in base64 far less than the control channel takes."""
MOST_BYTES: Final = 8 << 20
"""Of the beginning of a log; then comes the last piece. A flood would keep the root from its work."""


class HostLog:
    """Hands out a log that grows, from its beginning, each byte once.

    Args:
        path: of the log.
        most: bytes that are handed out as they come; of more, the middle is left out.
    """

    def __init__(self, path: Path, most: int = MOST_BYTES) -> None:
        self._path = path
        self._most = most
        self._read = 0

    def piece(self) -> bytes:
        """Read what is new, ``PIECE_BYTES`` at most; nothing any more once ``most`` were read."""
        return self._take(min(PIECE_BYTES, self._most - self._read))

    def rest(self) -> Iterator[bytes]:
        """Read all that is new, in pieces: the worker has ended. Says how much it leaves out."""
        while piece := self.piece():
            yield piece
        with contextlib.suppress(OSError):
            left_out = self._path.stat().st_size - self._read - PIECE_BYTES
            if left_out > 0:
                self._read += left_out
                yield f"\n[tianji: {left_out} bytes of this log are left out]\n".encode()
        if piece := self._take(PIECE_BYTES):
            yield piece

    def _take(self, most: int) -> bytes:
        if most <= 0:
            return b""
        try:
            with open(open_regular(self._path), "rb") as file:
                file.seek(self._read)
                taken = file.read(most)
        except OSError:  # It has written nothing yet.
            return b""
        self._read += len(taken)
        return taken

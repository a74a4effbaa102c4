"""A terminal or a pipe that is never waited for: Ctrl-S or a pager must not hold up the root, nor its job."""

from __future__ import annotations

import io
import os
import select
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MOST_KEPT_BYTES: Final = 64 << 10
"""What is not read is kept up to this size. Events are in the root's log besides."""
CLOSE_LIMIT_S: Final = 1.0
"""How long the end waits for a reader."""


@contextmanager
def unwaited(stream: TextIO) -> Iterator[TextIO]:
    """Give a stream that writes where another one does, and never waits.

    What the reader does not take is kept for later. If too much is kept already, a write is left out as a
    whole, and the next one that is not says how many were.

    Args:
        stream: the other one. A file is always ready, and is given as it is.
    """
    descriptor = _opened_anew(stream)
    if descriptor is None:
        yield stream
        return
    # Unbuffered between the two: what is printed is kept or left out as a whole.
    taker = cast(IO[bytes], _Unwaited(descriptor))
    with io.TextIOWrapper(taker, stream.encoding, stream.errors, newline="", write_through=True) as ours:
        yield ours


def _opened_anew(stream: TextIO) -> int | None:
    """Open a terminal or a pipe once more: whether writing waits is shared by all that have it open."""
    try:
        stream.flush()
        number = stream.fileno()
        if not stream.isatty() and not stat.S_ISFIFO(os.fstat(number).st_mode):
            return None
        return os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # No file at all, or a terminal of another user's.
        return None


class _Unwaited(io.RawIOBase):
    """Owns a descriptor that does not block, and what its reader has not taken yet.

    What is written is passed on or kept, or left out as a whole and counted; closing waits for the reader.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = bytearray()
        self._left_out = 0

    def writable(self) -> bool:
        """It is for writing only."""
        return True

    def isatty(self) -> bool:
        """Say whether it is a terminal."""
        return os.isatty(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, which is not the stream's own."""
        return self._descriptor

    def write(self, data: ReadableBuffer) -> int:
        """Pass text on, keep it, or leave it out as a whole; never waits."""
        text = bytes(data)
        self._pass_on()
        if len(self._kept) + len(text) > MOST_KEPT_BYTES:
            self._left_out += 1
            return len(text)
        if self._left_out:
            self._kept += f"... {self._left_out} writes were left out here: they were not read ...\n".encode()
            self._left_out = 0
        self._kept += text
        self._pass_on()
        return len(text)

    def flush(self) -> None:
        """Pass on as much of what is kept as the reader takes now."""
        if not self.closed:
            self._pass_on()

    def close(self) -> None:
        """Give the reader ``CLOSE_LIMIT_S`` to take what is kept, then close the descriptor."""
        if self.closed:
            return
        try:
            deadline = time.monotonic() + CLOSE_LIMIT_S
            poller = select.poll()
            poller.register(self._descriptor, select.POLLOUT)
            while self._kept and (remaining_s := deadline - time.monotonic()) > 0:
                poller.poll(1000 * remaining_s)
                self._pass_on()
        except OSError:  # The reader is gone.
            pass
        finally:
            os.close(self._descriptor)
            super().close()

    def _pass_on(self) -> None:
        try:
            while self._kept:
                del self._kept[: os.write(self._descriptor, self._kept)]
        except BlockingIOError:
            return
        except OSError:
            self._kept.clear()  # It has no reader any more.
            raise

"""A file that only grows, by whole records: a record is in it completely or not at all.

Both ``metrics.jsonl`` and the TensorBoard events need that: a torn record in the middle makes everything
after it unreadable, and a full disk tears records.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

from tianji_cli.errors import TianjiError
from tianji_cli.files.regular import open_regular


class InUseError(TianjiError):
    """Another process has the file open for appending."""


class AppendOnlyFile:
    """Owns one descriptor and appends records to it, unbuffered.

    Args:
        path: created if it is not there.

    Raises:
        InUseError: another process appends to it.
        OSError: it cannot be opened, is no regular file, or is a link.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(self._descriptor)
            raise InUseError(str(path)) from cause
        except OSError:
            # Some network file systems have no locks; then there is nothing to be learnt about other writers.
            pass
        self._size = os.fstat(self._descriptor).st_size

    def append(self, record: bytes) -> None:
        """Append a whole record.

        Raises:
            OSError: it does not fit; the file is as it was before.
        """
        try:
            written = os.write(self._descriptor, record)
            if written < len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            raise
        self._size += len(record)

    def drop_torn_tail(self, end: bytes) -> None:
        """Cut off what a writer that was killed left after the last ``end`` of a record.

        Raises:
            OSError: the file cannot be read or cut.
        """
        kept, step = self._size, 1 << 16
        while kept > 0:
            start = max(0, kept - step)
            found = os.pread(self._descriptor, kept - start, start).rfind(end)
            kept = start + found + len(end) if found >= 0 else start
            if found >= 0:
                break
        if kept < self._size:
            os.ftruncate(self._descriptor, kept)
            self._size = kept

    def close(self) -> None:
        """Close the file. Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def has_writer(path: Path) -> bool | None:
    """Say whether a living process has a file open for appending; None if its file system has no locks.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    descriptor = open_regular(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as cause:
        return True if isinstance(cause, BlockingIOError) else None
    finally:
        os.close(descriptor)
    return False

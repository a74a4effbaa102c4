"""Says of a directory that a process is writing to it, for as long as that process lives."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def occupied(directory: Path) -> Iterator[None]:
    """Mark a directory as written to; the kernel takes the mark away with the process, however it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, OPEN)
    try:
        # Some network file systems have no locks; then nobody can be kept out.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_occupied(directory: Path) -> bool:
    """Say whether a living process has marked the directory."""
    try:
        descriptor = os.open(directory, OPEN)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as cause:
        return cause.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False

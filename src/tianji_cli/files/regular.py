"""The one door to a run's files: it opens regular files only, follows no links, and bounds what it reads.

A run may be another user's, or have been sent. To open a FIFO in place of a file is to wait, to follow a link
is to read or write where another has chosen, and a file may be larger or deeper than its reader can bear.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, Final

MOST_DOCUMENT_BYTES: Final = 64 << 20
"""A JSON file that a run writes is smaller: a summary of ten thousand processes has 2 MB."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file, and never wait for it.

    Args:
        flags: as for ``os.open``; with ``O_NOFOLLOW`` a link is refused.
        mode: of a new file, less the umask.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        OSError: it cannot be opened, is no regular file, or is a link.
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError as cause:
        if cause.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "it is a link, and must not be", str(path)) from cause
        raise
    try:
        found = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(found):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_to_append(path: Path) -> int:
    """Open a log, which is made if it is not there, and is no link; see ``open_regular``.

    Raises:
        OSError: it cannot be opened, is no regular file, or is a link.
    """
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a whole file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than ``most_bytes``.
    """
    with open(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file that a run has written.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger than any that a run writes.
        ValueError: it is no JSON.
    """
    try:
        return json.loads(read_regular(path, MOST_DOCUMENT_BYTES))
    except RecursionError as cause:
        raise ValueError("it is nested too deeply") from cause


def write_to(log: Path) -> None:
    """Have a log file take what this process prints from now on, and what it prints as another program."""
    descriptor = open_to_append(log)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)

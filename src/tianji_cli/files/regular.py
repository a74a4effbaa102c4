"""Opens and reads all files of runs: regular files only, no links, and no more than a bounded size.

A run may be another user's, or have been sent. Opening a FIFO in place of a file would wait, following a link
would read or write a place that another has chosen, and a file may be larger or deeper than its reader bears.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

MOST_DOCUMENT_BYTES: Final = 64 << 20
"""Most bytes of a JSON file that a run writes: a summary of ten thousand processes has 2 MB."""

MOST_CONFIG_BYTES: Final = 1 << 20
"""Most bytes of a config that a run writes; usual ones have some 10 KB."""

MOST_DEPTH: Final = 100
"""Most tables and lists inside one another, in JSON and TOML that runs write."""

CONFIG: Final = "config.toml"
"""Resolved config of a run's first session; later sessions have ``config-<session>.toml``."""

OF_A_RUN: Final = ("logs", "checkpoints", "plots", "videos", "trace")
"""Directories of a run that are no links; the run itself may be one, and so may ``best`` and ``last``."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file without waiting. Neither the file nor the run's directory that contains it may be a link.

    Args:
        flags: as for ``os.open``.
        mode: mode of a new file, less the umask.

    Returns:
        A descriptor, which the caller closes.

    Raises:
        OSError: the file cannot be opened, is no regular file, or is a link.
    """
    of_run = path.parent.name in OF_A_RUN and os.path.isfile(path.parent.parent / CONFIG)
    no_link = os.O_NOFOLLOW if of_run else 0
    try:
        within = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC | no_link)
        try:
            own = os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(path.name, flags | own, mode, dir_fd=within)
        finally:
            os.close(within)
    except OSError as cause:
        for place in (path, path.parent)[: 2 if no_link else 1]:
            if cause.errno in {errno.ELOOP, errno.ENOTDIR} and place.is_symlink():
                raise OSError(errno.ELOOP, "it is a link, and must not be", str(place)) from cause
        cause.filename = str(path)
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
    """Open a log for appending, and create it if missing; it must be no link, see ``open_regular``.

    Raises:
        OSError: the log cannot be opened, is no regular file, or is a link.
    """
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Read a whole file.

    Raises:
        OSError: the file cannot be read, is no regular file, or has more than ``most_bytes``.
    """
    with open(open_regular(path), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def read_json(path: Path) -> Any:
    """Read a JSON file that a run has written.

    Raises:
        OSError: the file cannot be read, is no regular file, or is larger than any that a run writes.
        ValueError: it is no JSON that a run writes.
    """
    return parse_json(read_regular(path, MOST_DOCUMENT_BYTES))


def parse_json(content: bytes) -> Any:
    """Parse JSON that a run has written.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or has numbers that no run writes.
    """
    return _bounded(from_json(content, allow_inf_nan=False), most=sys.float_info.max)


def read_toml(path: Path) -> dict[str, Any]:
    """Read a config that a run has written, unchecked.

    Raises:
        OSError: the file cannot be read, is no regular file, or is larger than any that a run writes.
        ValueError: it is no TOML that a run writes.
    """
    try:
        found: dict[str, Any] = _bounded(tomllib.loads(read_regular(path, MOST_CONFIG_BYTES).decode()))
    except RecursionError as cause:
        raise ValueError("it is nested too deeply") from cause
    return found


def _bounded(value: Any, depth: int = 0, most: float = math.inf) -> Any:
    """Return a value if its depth and its numbers are within the bounds that all code can handle."""
    if depth > MOST_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            _bounded(one, depth + 1, most)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"it has a whole number of {value.bit_length()} bits")
    elif isinstance(value, float) and abs(value) > most:  # 1e999 reads as infinity.
        raise ValueError("it has a number that is not finite")
    return value


def write_to(log: Path) -> None:
    """Redirect stdout and stderr of this process to a log, even if it becomes another program."""
    descriptor = open_to_append(log)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


LOG_BYTES: Final = 8 << 20
"""Bytes kept of a log's beginning, and half as many of its end: environments may print in each step."""


def bound_log(log: Path) -> None:
    """Cut the middle out of a log that has grown beyond twice ``LOG_BYTES``.

    Other processes append to it; lines that they write at this very moment may be lost.

    Raises:
        OSError: the log cannot be opened, or written.
    """
    if log.stat().st_size > 2 * LOG_BYTES:
        with open(open_regular(log, os.O_RDWR | os.O_APPEND), "r+b", buffering=0) as file:
            file.seek(-LOG_BYTES // 2, os.SEEK_END)
            end = file.read(LOG_BYTES // 2)
            file.truncate(LOG_BYTES)
            file.write(b"\n[tianji: what comes here is left out: a log has 16 MiB at most]\n" + end)

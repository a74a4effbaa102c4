"""Opens files of a run as what they have to be, and checks that no other user can replace them.

Anything but a regular file of such a name, a FIFO, a device or a link, may be another user's doing: to open a
FIFO is to wait, and to follow a link is to write where another has chosen. A run's directory holds what its
processes execute and trust: the config that names modules, the job's key, checkpoints. A user who may write
to a directory above it can move it away and put another one there.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tianji_cli.errors import UsageError

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


ROOT: Final = 0
ALL_USERS: Final = ["0", "0", "4294967295"]
"""What ``uid_map`` says where each user is the one that the system knows."""
MOST_LINKS: Final = 40
"""As the kernel follows them."""


REMEDY: Final = (
    "choose a place below directories that only you or root may write to (--out DIR), or copy the run there"
)


class UntrustedPlaceError(UsageError):
    """Other users may change what a path leads to; the message names user and place."""


def check_trusted(path: Path, remedy: str = REMEDY) -> list[str]:
    """Look at every directory on the way to a path, and at every link.

    Args:
        path: need not be there yet; then the way to it is looked at as far as it goes.
        remedy: what would be right, for the message.

    Returns:
        Warnings: a group may write to a directory.

    Raises:
        UntrustedPlaceError: a directory, a link or the file itself is owned by neither root nor the user, or
            all may write to it: a directory with the sticky bit, as /tmp has, is right.
    """
    warnings, trusted = [], _trusted()
    for place, status in _way_to(path):
        owner, mode = status.st_uid, status.st_mode
        what = f"{path} is not safe: {place}" if place != path else str(path)
        if owner not in trusted:
            raise UntrustedPlaceError(
                f"{what} is owned by {_user(owner)}, who could put other files in its place\n{remedy}"
            )
        if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            continue
        if mode & stat.S_IWOTH:
            raise UntrustedPlaceError(
                f"{what} may be written to by all (mode {stat.S_IMODE(mode):o}): anybody could put other "
                f"files in its place\n{remedy}"
            )
        if mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
            warnings.append(
                f"{place} may be written to by the group {_group(status.st_gid)}, whose members could put "
                "other files in the place of the run's"
            )
    return warnings


def _way_to(path: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Walk to a path as the kernel does: yield each directory and link on the way, and the end."""
    here = Path("/")
    yield here, here.lstat()
    ahead = list(reversed(path.absolute().parts[1:]))
    links = 0
    while ahead:
        part = ahead.pop()
        if part == "..":
            here = here.parent
            continue
        place = here / part
        try:
            status = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as cause:
            raise UntrustedPlaceError(f"cannot look at {place}: {cause.strerror}") from cause
        yield place, status
        if not stat.S_ISLNK(status.st_mode):
            here = place
            continue
        links += 1
        if links > MOST_LINKS:
            raise UntrustedPlaceError(f"cannot look at {path}: {os.strerror(errno.ELOOP)}")
        target = Path(os.readlink(place))
        if target.is_absolute():
            here = Path("/")
        ahead.extend(reversed(target.parts[target.is_absolute() :]))


def _trusted() -> set[int]:
    """Owners that are trusted.

    In a user namespace, as containers of users have it, the kernel shows files of the true root as those of
    the account for unmapped users, mostly called "nobody".
    """
    trusted = {ROOT, os.geteuid()}
    with contextlib.suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ALL_USERS:
            trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")))
    return trusted


def _is_own_group(group: int) -> bool:
    """Whether a group is root's, or the one of its own that many systems give each user."""
    with contextlib.suppress(KeyError):
        entry, user = grp.getgrgid(group), pwd.getpwuid(os.geteuid())
        return group == ROOT or (entry.gr_name == user.pw_name and set(entry.gr_mem) <= {user.pw_name})
    return group == ROOT


def _user(number: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(number).pw_name
    return f"user {number}"


def _group(number: int) -> str:
    with contextlib.suppress(KeyError):
        return grp.getgrgid(number).gr_name
    return str(number)

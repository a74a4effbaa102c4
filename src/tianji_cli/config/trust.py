"""Checks that no other user can replace the code that a command is about to run.

A config names modules, and a run's directory has files that its processes execute and trust: the config, the
job's key, checkpoints. A user who may write to a directory above a file can move it away and put another
there.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tianji_cli.errors import UsageError

TRUST: Final = "TIANJI_TRUST"
"""Environment variable, inherited by children, by which ``--trust`` lifts refusals."""
ROOT: Final = 0
ALL_USERS: Final = ["0", "0", "4294967295"]
"""Words of ``uid_map`` outside user namespaces, where all users keep their numbers."""
MOST_LINKS: Final = 40
"""Maximum links on the way to a path, the same as the kernel's."""


REMEDY: Final = (
    "choose a place below directories that only you or root may write to (--out DIR), or copy the run there"
)
OF_CODE: Final = (
    "it would be executed: copy it to a directory that only you may write to; --trust executes it as it is"
)


class UntrustedPlaceError(UsageError):
    """Other users may change the file at a path; the message names user and place."""


def check_trusted(path: Path, remedy: str = REMEDY) -> list[str]:
    """Check the owner and the mode of every directory and link on the way to a path.

    Args:
        path: need not exist yet; then the check goes as far as the way exists.
        remedy: for the message.

    Returns:
        Warnings: a group may write to a directory.

    Raises:
        UntrustedPlaceError: neither root nor the user owns a directory, a link or the file itself, or all
            users may write to it; a directory with the sticky bit, such as /tmp, is right.
    """
    warnings: list[str] = []
    trusted = _trusted()
    for place, status in _way_to(path):
        owner, mode = status.st_uid, status.st_mode
        what = f"{path} is not safe: {place}" if place != path else str(path)
        if owner not in trusted:
            text = f"{what} is owned by {_user(owner)}, who could put other files in its place"
            warnings.append(_refused(text, remedy))
        if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            continue
        if mode & stat.S_IWOTH:
            text = f"{what} may be written to by all (mode {stat.S_IMODE(mode):o}): anybody could put other "
            warnings.append(_refused(f"{text}files in its place", remedy))
        if mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
            warnings.append(
                f"{place} may be written to by the group {_group(status.st_gid)}, whose members could put "
                "other files in the place of the run's"
            )
    return warnings


def check_code(directory: Path, modules: Iterable[str]) -> None:
    """Check that no other user can change modules in a directory of imports, or add modules.

    Raises:
        UntrustedPlaceError: another user can; a sticky bit does not keep users from adding modules.
    """
    for place in (directory, *(directory / module.replace(".", os.sep) for module in modules)):
        for path in (place, place / "__init__.py", place.with_name(f"{place.name}.py")):
            check_trusted(path, OF_CODE)
    if directory.is_dir() and directory.stat().st_mode & stat.S_IWOTH:
        _refused(f"{directory} may be written to by all: anybody could put modules there", OF_CODE)


def check_sent(config: Path, directories: Iterable[str]) -> None:
    """Check that a run has no modules in its own directory: tianji writes absolute paths outside of the run.

    Args:
        directories: that modules are imported from, in the words of the run's config.

    Raises:
        UntrustedPlaceError: modules came with the run, so its sender would have them executed.
    """
    run = config.resolve().parent
    for directory in directories:
        if not os.path.isabs(directory) or Path(directory).resolve().is_relative_to(run):
            message = f"{config} names modules that came with the run, in {run / directory}"
            _refused(message, "its sender would have them executed: read them first; --trust executes them")


def _refused(what: str, remedy: str) -> str:
    """Refuse a place; returns the warning instead if the user trusts all places (``--trust``).

    Raises:
        UntrustedPlaceError: the user does not trust the place.
    """
    if not os.environ.get(TRUST):
        raise UntrustedPlaceError(f"{what}\n{remedy}")
    return what


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
        except OSError as cause:
            if cause.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG}:
                return  # It is not there.
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
    """Numbers of the users whose files are trusted.

    In a user namespace, such as that of a user's container, the kernel shows files of the true root under the
    account for unmapped users, mostly called "nobody".
    """
    trusted = {ROOT, os.geteuid()}
    with contextlib.suppress(OSError, ValueError):
        if Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ALL_USERS:
            trusted.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")))
    return trusted


def _is_own_group(group: int) -> bool:
    """Whether a group is root's, or the user's private group, which many systems give each user."""
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

"""Checks whose code a command is about to run: that no other user can put something else in its place.

A config names modules, and a run's directory holds what its processes execute and trust: that config, the
job's key, checkpoints. A user who may write to a directory above them can move it away and put another there.
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
"""What ``uid_map`` says where each user is the one that the system knows."""
MOST_LINKS: Final = 40
"""As the kernel follows them."""


REMEDY: Final = (
    "choose a place below directories that only you or root may write to (--out DIR), or copy the run there"
)
OF_CODE: Final = (
    "it would be executed: copy it to a directory that only you may write to; --trust executes it as it is"
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
    warnings: list[str] = []
    trusted = _trusted()
    for place, status in _way_to(path):
        owner, mode = status.st_uid, status.st_mode
        what = f"{path} is not safe: {place}" if place != path else str(path)
        if owner not in trusted:
            said = f"{what} is owned by {_user(owner)}, who could put other files in its place"
            warnings.append(_refused(said, remedy))
        if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
            continue
        if mode & stat.S_IWOTH:
            said = f"{what} may be written to by all (mode {stat.S_IMODE(mode):o}): anybody could put other "
            warnings.append(_refused(f"{said}files in its place", remedy))
        if mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
            warnings.append(
                f"{place} may be written to by the group {_group(status.st_gid)}, whose members could put "
                "other files in the place of the run's"
            )
    return warnings


def check_code(directory: Path, modules: Iterable[str]) -> None:
    """Check that nobody else can change modules in a directory that they are imported from, nor add others.

    Raises:
        UntrustedPlaceError: they can; a sticky bit does not keep a user from putting more modules there.
    """
    for place in (directory, *(directory / module.replace(".", os.sep) for module in modules)):
        for path in (place, place / "__init__.py", place.with_name(f"{place.name}.py")):
            check_trusted(path, OF_CODE)
    if directory.is_dir() and directory.stat().st_mode & stat.S_IWOTH:
        _refused(f"{directory} may be written to by all: anybody could put modules there", OF_CODE)


def check_sent(config: Path, directories: Iterable[str]) -> None:
    """Check that a run brings no modules along: tianji notes where they lie, by absolute paths outside of it.

    Args:
        directories: that modules are imported from, as the run's config says it.

    Raises:
        UntrustedPlaceError: it does, so whoever has sent it would have them executed.
    """
    run = config.resolve().parent
    for directory in directories:
        if not os.path.isabs(directory) or Path(directory).resolve().is_relative_to(run):
            said = f"{config} names modules that came with the run, in {run / directory}"
            _refused(said, "its sender would have them executed: read them first; --trust executes them")


def _refused(what: str, remedy: str) -> str:
    """Refuse a place, or return the warning if the user trusts whoever can change it.

    Raises:
        UntrustedPlaceError: the user does not.
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

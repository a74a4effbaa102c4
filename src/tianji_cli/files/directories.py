"""Directories that appear whole or not at all, are locked while a process writes to them, and are cleaned up.

Entries of shared directories may belong to any user: entries that are not plain ones of this user are left
alone, and an entry that cannot be looked at or removed causes no failure.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final


class LinkedDirectories:
    """Lets one process fill directories under a temporary name and rename them.

    It replaces links to them in one step, so that a reader finds a whole directory at any moment. It also
    removes the leftovers of an earlier writer that was killed.
    """

    def __init__(self, directory: Path, links: Sequence[str]) -> None:
        self._directory = directory
        self._links = links
        directory.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()

    @contextlib.contextmanager
    def fill(self, link: str, name: str) -> Iterator[Path]:
        """Let the caller fill a directory, then rename it to ``name``, and point ``link`` at it."""
        temporary = self._directory / f".{name}.{os.getpid()}"
        twin = self._directory / f".twin-{name}.{os.getpid()}"
        temporary.mkdir()
        try:
            yield temporary
            for path in temporary.iterdir():
                _sync(path)
            _sync(temporary)
            final = self._directory / name
            if final.exists():
                # A link can be replaced in one step, a directory cannot: the link leads to a twin meanwhile.
                copy_files(temporary, twin, os.link)
                replace_link(self._directory / link, twin.name)
                remove_directory(final)
            temporary.rename(final)
            replace_link(self._directory / link, name)
            _sync(self._directory)
        finally:
            self._remove_leftovers()

    def targets(self) -> set[str]:
        """Return the names of the directories that links lead to."""
        links = (self._directory / link for link in self._links)
        return {os.readlink(link) for link in links if link.is_symlink()}

    def _remove_leftovers(self) -> None:
        """Remove links and directories that a killed writer left, unless a link leads to them."""
        in_use = self.targets()
        for leftover in self._directory.glob(".*"):
            if leftover.is_symlink():
                with contextlib.suppress(OSError):
                    leftover.unlink()
            elif leftover.name not in in_use:
                shutil.rmtree(leftover, ignore_errors=True)


LAST: Final = "last"
"""Link to the newest copy."""


class NewestCopy:
    """Keeps the newest copy of something that one process saves from time to time; ``last`` leads to it.

    Args:
        directory: directory of the copies, which this process owns.
    """

    def __init__(self, directory: Path, every_s: float) -> None:
        self.directory = directory
        self._every_s = every_s
        self._places = LinkedDirectories(directory, (LAST,))
        self._saved_at = time.monotonic()

    @property
    def place(self) -> Path | None:
        """Directory of the newest copy; None before the first."""
        last = self.directory / LAST
        return last if last.exists() else None

    @property
    def is_due(self) -> bool:
        """Whether ``every_s`` have passed since the last copy."""
        return time.monotonic() - self._saved_at >= self._every_s

    @contextlib.contextmanager
    def replaced(self, name: str) -> Iterator[Path]:
        """Let the caller fill a directory, which is the newest copy from then on; remove the one before.

        Raises:
            OSError: the disk does not take it; the copy before is untouched.
        """
        with self._places.fill(LAST, name) as place:
            yield place
        keep = self._places.targets()
        for path in self.directory.iterdir():  # Whatever else lies in the directory stays.
            if path.name.isdecimal() and path.name not in keep and path.is_dir() and not path.is_symlink():
                remove_directory(path)
        self._saved_at = time.monotonic()


def copy_files(directory: Path, to: Path, copy: Callable[[str, Path], object] = shutil.copyfile) -> None:
    """Copy the files of a directory, but no links, into another one, which may exist already.

    An error is that of one file, where ``shutil.copytree`` raises one without a number for all of them.

    Raises:
        OSError: a file cannot be copied.
    """
    to.mkdir(exist_ok=True)
    for entry in os.scandir(directory):
        if entry.is_file(follow_symlinks=False):
            copy(entry.path, to / entry.name)


def remove_directory(place: Path) -> None:
    """Remove a directory, hiding it as a whole first: a kill leaves no half of it under its name.

    Raises:
        OSError: it cannot be removed.
    """
    hidden = place.with_name(f".removed-{place.name}.{os.getpid()}")
    place.rename(hidden)
    shutil.rmtree(hidden)


def replace_link(link: Path, to: Path | str) -> None:
    """Point a link at another directory, in one step.

    Raises:
        OSError: the link cannot be written.
    """
    temporary = link.with_name(f".{link.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(to, target_is_directory=True)
    temporary.replace(link)


def _sync(path: Path) -> None:
    """Sync a file or directory to disk, since a rename alone promises no order after a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


OPEN: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Mark a directory as written to; the kernel removes the mark with the process, however it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, OPEN)
    try:
        # Some network file systems have no locks; no process can be kept out there.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def temporary_directory(prefix: str = "tianji-temporary-") -> Iterator[Path]:
    """Make a temporary directory, marked as written to; it is removed at the end, or by ``remove_stale``.

    Before the mark is set, another process may take the directory for a dead job's and remove it; then
    another one is made.
    """
    while True:
        with tempfile.TemporaryDirectory(prefix=prefix) as name:
            try:
                descriptor = os.open(name, OPEN)
            except FileNotFoundError:
                continue
            try:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # A remover holds it until the directory is gone.
                if Path(name).is_dir():
                    yield Path(name)
                    return
            finally:
                os.close(descriptor)


def is_occupied(directory: Path) -> bool:
    """Whether a living process has marked the directory."""
    try:
        with kept_free(directory) as free:
            return not free
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def kept_free(directory: Path) -> Iterator[bool]:
    """Yield whether no living process has marked the directory; it stays so within the ``with`` statement."""
    descriptor = os.open(directory, OPEN)
    try:
        free = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as cause:
            free = cause.errno != errno.EWOULDBLOCK
        yield free
    finally:
        os.close(descriptor)


def remove_stale() -> list[str]:
    """Remove shared memory and directories of this user's dead jobs; return their names."""
    # Import only the file names of the engine: a broken engine must not prevent cleaning up.
    from tianji_transports.shm.page import remove_stale as remove_stale_shared_memory  # noqa: PLC0415

    there = Path(tempfile.gettempdir())
    temporary = (place for kind in ("temporary", "host") for place in there.glob(f"tianji-{kind}-*"))
    return [*_remove_unmarked(temporary), *remove_stale_shared_memory(), *_remove_memory_of_mpi()]


MPI_BEGINS_S: Final = 60.0
"""Age in seconds from which MPICH's shared memory has been mapped by all its processes."""


def _remove_memory_of_mpi() -> Iterator[str]:
    """Remove MPICH's shared memory that no process has mapped: a killed or aborted job leaves it."""
    from tianji_transports.shm.page import own_names  # noqa: PLC0415

    for path in own_names("mpich_shm_"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > MPI_BEGINS_S and not _is_mapped(path):
                path.unlink()
                yield path.name


def _is_mapped(path: Path) -> bool:
    """Whether a process of this user has mapped a file."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # The process has ended, or is another user's.
            if str(path) in maps.read_text(encoding="utf-8", errors="replace"):
                return True
    return False


def _remove_unmarked(places: Iterable[Path]) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for place in places:
            with contextlib.suppress(OSError):
                status = place.lstat()
                if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                    with kept_free(place) as free:
                        if free:
                            shutil.rmtree(place)
                    if free:
                        yield str(place)

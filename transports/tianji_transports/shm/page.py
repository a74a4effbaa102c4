"""The shared page of a job: credits, sleep flags and slot values; and the removal of dead jobs' names.

All names of a job in shared memory begin with the same prefix, ``/dev/shm/tianji-<user>-<job>``. The page
itself carries a shared lock of every living endpoint, and the kernel drops a lock with its process: a process
that gets the lock exclusively knows that the job is dead and may remove all of its names.

All cells are 64-bit and have one writer each. Counters are hints and credits: the messages themselves are
ordered by iceoryx2. The values of slots are guarded by hold cells, see ``SlotArea``.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import re
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from tianji_transports.errors import TransportError, TransportMemoryError
from tianji_transports.wiring import Channel, Slot, Wiring

SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lives on Linux, not a temporary file
LINE = 64
CELL = 8
PAGE_SUFFIX = ".page"
OPEN_PAGE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
USUAL_BUFFERS = 3
"""Buffers that a slot usually needs: the newest value, one being read, one being written."""


def user_prefix() -> str:
    """Prefix of the names of this user's jobs."""
    return f"tianji-{os.getuid()}-"


def job_stem(job: str) -> str:
    """Prefix of the names of one job; short, because iceoryx2 appends up to 130 characters."""
    return user_prefix() + hashlib.sha256(job.encode()).hexdigest()[:12]


def _stem() -> re.Pattern[str]:
    """Pattern of ``job_stem``'s results."""
    return re.compile(rf"{re.escape(user_prefix())}[0-9a-f]{{12}}")


def lines(nbytes: int) -> int:
    """Round up to whole cache lines."""
    return -(-nbytes // LINE)


def own_names(prefix: str) -> list[Path]:
    """List the entries with this prefix that this user owns; other users may have made some with any name."""
    found: list[Path] = []
    with contextlib.suppress(OSError):
        for path in SHM.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_uid == os.getuid():
                    found.append(path)
    return found


def remove_job(stem: str) -> None:
    """Remove every name of a dead job, its page last; links are not followed."""
    for path in sorted(own_names(stem), key=lambda path: path.suffix == PAGE_SUFFIX):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(path.lstat().st_mode):
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink()


def remove_stale() -> list[str]:
    """Remove the names of this user's jobs that died without closing.

    Returns:
        The stems of the jobs that were removed.
    """
    # A shorter name would be a prefix of other jobs' names, living ones among them.
    stems = {match[0] for path in own_names(user_prefix()) if (match := _stem().match(path.name))}
    return [stem for stem in sorted(stems) if _remove_if_dead(stem)]


def _remove_if_dead(stem: str) -> bool:
    path = SHM / f"{stem}{PAGE_SUFFIX}"
    try:
        # Created if missing, so that a job starting at this moment and this removal exclude each other.
        descriptor = os.open(path, OPEN_PAGE, 0o600)
    except OSError:
        return False  # Another user's, or no file.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove_job(stem)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@dataclass(frozen=True)
class Pair:
    """One (sender, channel, receiver) and its index in the page."""

    index: int
    source: int
    channel: Channel


class SlotArea:
    """A slot's values in the page: more buffers than readers, so that the writer never waits.

    Cells: the version, the newest buffer + 1, and for each reader the buffer + 1 that it holds. A reader
    first writes its hold, then checks that the buffer is still the newest; the writer overwrites a
    buffer that is neither newest nor held. Each buffer begins with a line: version, nbytes.
    """

    def __init__(self, slot: Slot, first_cell: int, offset: int) -> None:
        self.slot = slot
        self.version = first_cell
        self.newest = first_cell + 1
        self.holds = first_cell + 2
        self.cells = 2 + len(slot.readers)
        self.end = first_cell + self.cells
        self.stride = LINE * (1 + lines(slot.max_bytes))
        self.buffers = len(slot.readers) + 2
        self.starts = tuple(offset + index * self.stride for index in range(self.buffers))


class Layout:
    """Offsets of everything in the page; the same for every endpoint of a wiring."""

    def __init__(self, wiring: Wiring) -> None:
        channels, slots = wiring.channels, wiring.slots
        ranks = wiring.ranks
        # A line for each sleep flag: it is read at every push, and must not share a line with counters.
        self.flags = {rank: (1 + place) * LINE // CELL for place, rank in enumerate(sorted(ranks))}
        self.pairs = {
            (source, channel.name, channel.receiver): Pair(index, source, channel)
            for index, (source, channel) in enumerate(
                (source, channel) for channel in channels for source in channel.senders
            )
        }
        count = lines(len(self.pairs) * CELL) * LINE // CELL
        first = (1 + len(ranks)) * LINE // CELL
        self.epochs, self.sent, self.attached, self.claimed = (first + k * count for k in range(4))
        cell = first + 4 * count
        offset = LINE * lines(CELL * (cell + sum(2 + len(slot.readers) for slot in slots)))
        self.head_nbytes = offset
        self.slots: dict[str, SlotArea] = {}
        for slot in slots:
            area = self.slots[slot.name] = SlotArea(slot, cell, offset)
            cell += area.cells
            offset += area.buffers * area.stride
        self.nbytes = offset
        self.digest = int.from_bytes(hashlib.sha256(repr((channels, slots)).encode()).digest()[:8], "little")

    def needed(self) -> int:
        """Bytes of shared memory that the job may come to touch.

        Only readers that keep old values need more than a few buffers of a slot; the writer calls
        ``reserve`` before it uses one of those for the first time.
        """
        messages = sum(
            (pair.channel.window + pair.channel.borrow) * LINE * (1 + lines(pair.channel.max_bytes))
            for pair in self.pairs.values()
        )
        values = sum(min(area.buffers, USUAL_BUFFERS) * area.stride for area in self.slots.values())
        return messages + values + self.head_nbytes


class Page:
    """A job's page, mapped and locked as alive until ``close``."""

    def __init__(self, wiring: Wiring) -> None:
        self.layout = Layout(wiring)
        self.stem = job_stem(wiring.job)
        self.path = SHM / f"{self.stem}{PAGE_SUFFIX}"
        self._descriptor = self._lock_page()
        try:
            self._map = self._map_page()
            self.bytes = memoryview(self._map)
            self.cells = self.bytes[: self.layout.nbytes].cast("Q")
            if self.cells[0] not in {0, self.layout.digest}:
                raise TransportError(f"job {wiring.job!r} is running on this host with another wiring")
            self.cells[0] = self.layout.digest
        except BaseException:
            self._leave()
            raise

    def _lock_page(self) -> int:
        while True:
            descriptor = os.open(self.path, OPEN_PAGE, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            try:
                if os.path.samestat(os.fstat(descriptor), self.path.stat()):
                    return descriptor
            except FileNotFoundError:
                pass
            # The last endpoint of an earlier job of this name removed it between open and lock: try again.
            os.close(descriptor)

    def _map_page(self) -> mmap.mmap:
        size = os.fstat(self._descriptor).st_size
        if size == 0:
            self._check_room()
            try:
                os.ftruncate(self._descriptor, self.layout.nbytes)
            except OSError as error:
                raise self._refused(error) from error
            self.reserve(0, self.layout.head_nbytes)
        elif size != self.layout.nbytes:
            raise TransportError(
                f"the page of {self.stem} has {size} bytes, this wiring {self.layout.nbytes}"
            )
        return mmap.mmap(self._descriptor, self.layout.nbytes)

    def _check_room(self) -> None:
        status = os.statvfs(SHM)
        free, needed = status.f_bavail * status.f_frsize, self.layout.needed()
        if needed > free:
            raise self.no_room(f"needs up to {needed / 1e6:.0f} MB", free)

    def no_room(self, what: str, free: int | None = None) -> TransportMemoryError:
        """Build the error for a /dev/shm that is too small."""
        if free is None:
            status = os.statvfs(SHM)
            free = status.f_bavail * status.f_frsize
        return TransportMemoryError(
            f"the job {what} of shared memory and {SHM} has {free / 1e6:.0f} MB free; in a container, start"
            " it with more (docker run --shm-size=2g), or use smaller fragments, windows or fewer actors"
        )

    def _refused(self, error: OSError) -> TransportMemoryError:
        return TransportMemoryError(f"cannot write {self.path}: {error.strerror}")

    def reserve(self, offset: int, nbytes: int) -> None:
        """Reserve memory for a part of the page now, so that writing to it cannot fail."""
        try:
            os.posix_fallocate(self._descriptor, offset, nbytes)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise self._refused(error) from error
            raise self.no_room(f"asks for {nbytes / 1e6:.1f} MB more") from error

    def close(self) -> None:
        """Unmap, and remove the job's names if no endpoint of it is left."""
        self.cells.release()
        try:
            self.bytes.release()
            self._map.close()
        except BufferError:
            pass  # a borrowed value is still referenced: the mapping goes with the last reference
        self._leave()

    def _leave(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_job(self.stem)
        except BlockingIOError:
            pass  # others are alive; the last one removes the names
        finally:
            os.close(self._descriptor)

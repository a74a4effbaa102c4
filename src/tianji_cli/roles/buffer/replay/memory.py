"""The memory of a replay: a ring of slots in one contiguous block, and a check that it fits this host.

One slot holds one fragment, and the slot to be written next is always free. Fields that the replay does not
need may lie behind a fragment's last needed field (``ReplayRing.tail``): the slots then overlap, the end of
one is the start of the next, and such fields take no memory. Only the slots that the tail of the free slot
reaches have to be vacant.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.errors import TianjiError, os_errors_as
from tianji_cli.limits import CGROUPS, PROC, control_groups, lines_of, numbers_of
from tianji_cli.wire.fragment import HEADER, FragmentLayout
from tianji_cli.wire.records import aligned

USABLE: Final = 0.9
"""Share of the available memory that a replay may take: processes and page tables need some, too."""


class ReplayMemoryError(TianjiError):
    """The host has no room for a replay; the message says what would fit."""


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Return the bytes that a new array could fill without swapping, within the process's control groups.

    ``cgroups`` is the directory of the kernel's control groups, of version 2 or 1.
    """
    meminfo = numbers_of(proc / "meminfo")
    available = [meminfo.get("MemAvailable:", meminfo.get("MemFree:", 0)) * 1024]
    for group, unified in control_groups("memory", proc, cgroups):
        limit, usage, reclaimable = _NAMES[unified]
        most, used = _number(group / limit), _number(group / usage)
        if most is not None and used is not None:
            # The kernel counts file pages without recent use as used, but gives them up at once.
            available.append(most - used + numbers_of(group / "memory.stat").get(reclaimable, 0))
    return max(0, min(available))


_NAMES: Final = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Names of a control group's limit, usage and reclaimable memory; the key says whether it has version 2."""


def place_for(
    memory: str, in_ram: int, in_file: int, capacity: int, directory: Path | None, replays: int = 1
) -> Path | None:
    """Decide whether a replay's fragments lie in a file in ``directory``, or in RAM.

    Args:
        in_ram: bytes in RAM if all of the replay lies there.
        in_file: the part of these bytes that may lie in a file instead.
        capacity: env steps that the replay holds, for the message.
        replays: number of replays that take these bytes together.

    Returns:
        The directory for the file; None for RAM.

    Raises:
        ReplayMemoryError: the replay fits nowhere.
    """
    ram, bookkeeping = int(available_bytes() * USABLE), in_ram - in_file
    if memory == "mmap" and directory is None:
        raise ReplayMemoryError('memory = "mmap" needs a directory for the replay\'s file')
    if memory != "mmap" and in_ram <= ram:
        return None
    what = f"a replay of {capacity} env steps takes"
    if replays > 1:
        what = f"{replays} replays of {capacity} env steps take"
    if memory == "ram" or directory is None:
        otherwise = ', or memory = "mmap",' if memory == "ram" else ""
        raise _too_large(what, capacity, in_ram, ram, "of memory are", otherwise)
    if bookkeeping > ram:
        raise _too_large(what, capacity, bookkeeping, ram, "of memory are")
    disk = _disk_room(directory)
    if in_file > disk:
        raise _too_large(what, capacity, in_file, disk, f"on the disk of {directory} are")
    return directory


def in_units(nbytes: int) -> str:
    """Format a size in MB or GB, of 1e6 and 1e9 bytes."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _too_large(
    what: str, capacity: int, needed: int, there: int, where: str, otherwise: str = ""
) -> ReplayMemoryError:
    return ReplayMemoryError(
        f"distribution.buffer.capacity: {what} {in_units(needed)}, but {in_units(there)} {where} free: "
        f"a capacity of at most {int(capacity * there / needed)}{otherwise} would do"
    )


def _disk_room(directory: Path) -> int:
    with os_errors_as(ReplayMemoryError, f"there is no directory {directory} for the replay's file"):
        disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize


def _number(path: Path) -> int | None:
    lines = lines_of(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]

MOST_UNITS = 64
"""Most pieces of a row for ``np.take``; copying rows of more pieces one by one is faster."""


class ReplayRing:
    """Maps held fragments to slots; a fragment's *insertion index* counts the fragments accepted before it.

    Args:
        capacity: least number of env steps to hold.
        needed: names of the fields that are read after a fragment was accepted.

    Attributes:
        steps_each: T x N, steps in a fragment.
        live: number of fragments in a full ring.
        stride: bytes from one slot to the next.
        tail: bytes of a fragment behind its needed fields, which its successor overwrites.
        slots: places for fragments; ``slots - live`` of them are vacant.
        first: insertion index of the first fragment that this ring ever held.
        next: insertion index of the next fragment, which goes into the free slot.
        samples: held steps that are experience.
        drawable: samples that can be drawn: such steps, or sequences or unrolls of them.
        env_steps: approximate env steps of the job when the newest fragment came.
    """

    def __init__(self, layout: FragmentLayout, capacity: int, needed: Collection[str]) -> None:
        if capacity < 1:
            raise ValueError(f"a replay needs a capacity of at least one env step, not {capacity}")
        self.layout = layout
        self.steps_each = layout.steps * layout.num_envs
        self.live = -(-capacity // self.steps_each)
        kept = [spec for spec in layout.fields if spec.name in needed]
        ends = [HEADER.itemsize, *(layout.offsets[spec.name] + _size(layout, spec) for spec in kept)]
        self.stride = aligned(max(ends))
        self.tail = layout.nbytes - self.stride
        self.slots = self.live + 1 + -(-self.tail // self.stride)
        self.first = 0
        self.next = 0
        self.samples = 0
        self.drawable = 0
        self.env_steps = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the memory."""
        return self.slots * self.stride + self.tail

    @property
    def slot_steps(self) -> int:
        """Steps in all slots; each step has one place in every per-step array."""
        return self.slots * self.steps_each

    @property
    def oldest(self) -> int:
        """Insertion index of the oldest fragment held; ``next`` if the ring is empty."""
        return max(self.first, self.next - self.live)

    def slot(self, insertion: int) -> int:
        """Return the slot of a fragment."""
        return insertion % self.slots

    def steps(self, insertion: int) -> slice:
        """Return the places of a fragment's steps in per-step arrays."""
        start = self.slot(insertion) * self.steps_each
        return slice(start, start + self.steps_each)


class ReplayMemory:
    """Owns a ring's memory.

    In RAM the memory is zeros that the system allocates page by page at the first write: a replay that never
    fills takes only what it holds, and a start does not wait for gigabytes. This is safe because
    ``place_for`` has compared the size with the available memory before. All blocks of a file are reserved at
    once instead, because a disk that is full later would cause a SIGBUS. The file has no name, so nothing of
    it remains however the process ends.

    Args:
        directory: directory of the file; None for RAM.

    Raises:
        ReplayMemoryError: memory or disk have too little room.
    """

    def __init__(self, ring: ReplayRing, directory: Path | None) -> None:
        self.ring = ring
        self.in_file = directory is not None
        self.bytes = _zeros(ring.nbytes) if directory is None else _mapped(ring.nbytes, directory)
        self.headers = np.ndarray((ring.slots,), HEADER, self.bytes, 0, (ring.stride,))

    def slot(self, slot: int) -> memoryview:
        """View the bytes of a slot, as many as a fragment has."""
        start = slot * self.ring.stride
        return self.bytes[start : start + self.ring.layout.nbytes].data

    def field(self, spec: FieldSpec, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """View a field in all slots, ``[slots, T, N, ...]`` (or T + 1)."""
        layout = self.ring.layout
        shape = layout.shape(spec)
        inner = _strides(shape, spec)
        return np.ndarray(
            (self.ring.slots, *shape),
            spec.dtype if dtype is None else dtype,
            self.bytes,
            layout.offsets[spec.name],
            (self.ring.stride, *inner),
        )


class Rows:
    """Gathers rows of one field from any slots into contiguous memory.

    ``np.take`` from a strided view would copy the whole view first, so this addresses the memory in units
    that divide rows, slots and offsets alike: one unit for each row in the common case.
    """

    def __init__(self, memory: ReplayMemory, spec: FieldSpec) -> None:
        self.nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        ring, offset = memory.ring, memory.ring.layout.offsets[spec.name]
        unit = math.gcd(self.nbytes, ring.stride, offset, ring.nbytes)
        self._units = memory.bytes.reshape(-1, unit)
        self._memory = memory.bytes.data
        self._unit = unit
        self._per_slot, self._first, self._per_row = ring.stride // unit, offset // unit, self.nbytes // unit
        self._pieces = np.arange(self._per_row)

    def gather(self, slots: Indices, rows: Indices, into: npt.NDArray[Any]) -> None:
        """Copy row ``rows[...]`` (t x N + n) of each of ``slots[...]`` to ``into[..., *shape]``."""
        first = slots * self._per_slot
        first += self._first
        first += rows if self._per_row == 1 else rows * self._per_row
        if self._per_row == 1:
            np.take(self._units, first, 0, into.view(np.uint8).reshape(*rows.shape, self._unit), "clip")
        elif self._per_row <= MOST_UNITS:
            out = into.reshape(-1).view(np.uint8).reshape(*rows.shape, self._per_row, self._unit)
            np.take(self._units, first[..., None] + self._pieces, 0, out, "clip")
        else:
            source, target, nbytes = self._memory, into.reshape(-1).view(np.uint8).data, self.nbytes
            for number, start in enumerate((first.reshape(-1) * self._unit).tolist()):
                target[number * nbytes : (number + 1) * nbytes] = source[start : start + nbytes]


def _size(layout: FragmentLayout, spec: FieldSpec) -> int:
    return math.prod(layout.shape(spec)) * spec.dtype.itemsize


def _strides(shape: tuple[int, ...], spec: FieldSpec) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) * spec.dtype.itemsize for axis in range(len(shape)))


def _zeros(nbytes: int) -> Bytes:
    try:
        return np.zeros(nbytes, np.uint8)
    except MemoryError as cause:
        raise ReplayMemoryError(f"no memory for a replay of {in_units(nbytes)}") from cause


def _mapped(nbytes: int, directory: Path) -> Bytes:
    """Map a new file without a name, with all its blocks reserved."""
    what = f"no file of {in_units(nbytes)} for the replay in {directory}"
    remedy = "a smaller capacity or a directory on another disk would do"
    with (
        os_errors_as(ReplayMemoryError, what, remedy),
        tempfile.TemporaryFile(dir=directory, prefix="replay-") as file,
    ):
        os.posix_fallocate(file.fileno(), 0, nbytes)
        mapped = mmap.mmap(file.fileno(), nbytes)
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_RANDOM)  # Samples lie anywhere, so reading ahead is in vain.
    return np.frombuffer(mapped, np.uint8)


NONE: Final = -1


@dataclass(frozen=True)
class _Latest:
    """The newest fragment of an actor."""

    incarnation: int
    sequence: int
    insertion: int

    def is_followed_by(self, incarnation: int, sequence: int, oldest: int) -> bool:
        """Whether that fragment directly follows this one, and the replay still holds this one."""
        return (incarnation, sequence - 1) == (self.incarnation, self.sequence) and self.insertion >= oldest


class Links:
    """Links each fragment to its predecessor and its successor from the same actor.

    Attributes:
        successor: slot of the successor of each slot's fragment; meaningless if there is none.
        predecessor: insertion index of the predecessor of each slot's fragment, or ``NONE``.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self.successor = np.zeros(memory.ring.slots, np.intp)
        self.predecessor = np.full(memory.ring.slots, NONE, np.int64)
        self._ring, self._headers = memory.ring, memory.headers
        self._latest: dict[int, _Latest] = {}

    @staticmethod
    def bookkeeping_bytes(slots: int) -> int:
        """Return the bytes of the links of so many slots."""
        return slots * 16

    def accept(self, insertion: int) -> int:
        """Link a fragment to its predecessor; return the predecessor's insertion index, or ``NONE``."""
        slot = self._ring.slot(insertion)
        header = self._headers[slot]
        actor, incarnation, sequence = (int(header[name]) for name in ("actor", "incarnation", "sequence"))
        before = self._latest.get(actor)
        self._latest[actor] = _Latest(incarnation, sequence, insertion)
        self.predecessor[slot] = NONE
        if before is None or not before.is_followed_by(incarnation, sequence, self._ring.oldest):
            return NONE
        self.successor[self._ring.slot(before.insertion)] = slot
        self.predecessor[slot] = before.insertion
        return before.insertion

    def restore(self, oldest: int, predecessors: npt.NDArray[np.int64]) -> None:
        """Link the fragments from insertion index ``oldest`` on to their predecessors.

        Args:
            predecessors: predecessor of each fragment, counted from ``oldest``, or ``NONE``.

        Raises:
            ValueError: a predecessor is not older than its fragment, or has two successors.
        """
        links = np.flatnonzero(predecessors != NONE)
        earlier = predecessors[links]
        if ((earlier < 0) | (earlier >= links)).any() or np.unique(earlier).size < earlier.size:
            raise ValueError("fragments go on from fragments that are not before them")
        slots = (oldest + np.arange(len(predecessors))) % self._ring.slots
        self.predecessor[slots[links]] = oldest + earlier
        self.successor[slots[earlier]] = slots[links]

    def chains(self, slots: Indices, hops: int) -> Indices:
        """List the slots after each of ``slots [B]``, itself first: ``[hops + 1, B]``.

        Slots behind the last fragment of a chain are arbitrary.
        """
        chains = np.empty((hops + 1, slots.size), np.intp)
        chains[0] = slots
        for hop in range(hops):
            self.successor.take(chains[hop], out=chains[hop + 1], mode="clip")
        return chains

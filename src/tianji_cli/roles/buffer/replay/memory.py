"""The memory of a replay: a ring of slots in one contiguous block, and whether it fits this host.

One slot holds one fragment and one is always free, the next to be written. What the replay does not need of
a fragment may lie behind its last needed field (``ReplayRing.tail``): the slots then overlap, the end of
one is the start of the next, and such fields take no memory. Only what follows the free slot has to be
vacant.
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
"""Part of the available memory that a replay may take: processes and page tables need some, too."""


class ReplayMemoryError(TianjiError):
    """The memory of a replay cannot be had; the message says what would be right."""


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that a new array could fill without swapping, within the limits of the process's control groups.

    ``cgroups`` has the kernel's files about control groups, of version 2 or 1.
    """
    meminfo = numbers_of(proc / "meminfo")
    available = [meminfo.get("MemAvailable:", meminfo.get("MemFree:", 0)) * 1024]
    for group, unified in control_groups("memory", proc, cgroups):
        limit, usage, reclaimable = _NAMES[unified]
        most, used = _number(group / limit), _number(group / usage)
        if most is not None and used is not None:
            # Pages of files that were not used lately are counted as used, but given up at once.
            available.append(most - used + numbers_of(group / "memory.stat").get(reclaimable, 0))
    return max(0, min(available))


_NAMES: Final = {
    True: ("memory.max", "memory.current", "inactive_file"),
    False: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Of a control group's limit, of its usage, and of what it can give up; by whether it is of version 2."""


def place_for(
    memory: str, in_ram: int, in_file: int, capacity: int, directory: Path | None, replays: int = 1
) -> Path | None:
    """Decide whether a replay's fragments lie in a file in ``directory``, or in RAM.

    Args:
        in_ram: bytes it takes if all of it lies in RAM.
        in_file: how many of them may lie in a file instead.
        capacity: env steps it holds, for the message.
        replays: how many replays take so much together.

    Returns:
        The directory for the file, or None: RAM.

    Raises:
        ReplayMemoryError: it fits nowhere.
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
    """A size for people: MB or GB, of 1e6 and 1e9 bytes."""
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
"""Rows in more pieces than this are copied one by one, which is then faster than ``np.take``."""


class ReplayRing:
    """Which fragments are held, and where; a fragment's *insertion index* is how many were accepted before.

    Args:
        capacity: env steps to be held, at least.
        needed: names of the fields that are read after a fragment was accepted.

    Attributes:
        steps_each: T x N, steps in a fragment.
        live: fragments that are held once the ring is full.
        stride: bytes from one slot to the next.
        tail: bytes of a fragment behind what is needed, which its successor overwrites.
        slots: places for fragments; ``slots - live`` of them are vacant.
        first: insertion of the first fragment that was ever held here.
        next: insertion of the fragment that comes next, into the free slot.
        samples: steps held that are experience.
        drawable: samples that can be drawn: such steps, or sequences or unrolls of them.
        env_steps: the job's when the newest fragment came, about.
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
        """Size of the memory."""
        return self.slots * self.stride + self.tail

    @property
    def slot_steps(self) -> int:
        """Steps in all slots: each has one place in every array of numbers about steps."""
        return self.slots * self.steps_each

    @property
    def oldest(self) -> int:
        """Insertion index of the oldest fragment held; ``next`` if there is none."""
        return max(self.first, self.next - self.live)

    def slot(self, insertion: int) -> int:
        """Slot of a fragment."""
        return insertion % self.slots

    def steps(self, insertion: int) -> slice:
        """Places of a fragment's steps in arrays of numbers about steps."""
        start = self.slot(insertion) * self.steps_each
        return slice(start, start + self.steps_each)


class ReplayMemory:
    """Owns a ring's memory.

    In RAM it is zeros that the system hands out page by page as they are first written: a replay that is
    never filled takes only what it holds, and a start does not wait for gigabytes. That is safe because the
    size was compared with what memory there is before. A file's blocks are all reserved at once instead,
    as a disk that is full later would be a SIGBUS. The file has no name: nothing is left of it whatever ends
    the process.

    Args:
        directory: where the file is to lie; None: RAM.

    Raises:
        ReplayMemoryError: there is not so much memory, or room on the disk.
    """

    def __init__(self, ring: ReplayRing, directory: Path | None) -> None:
        self.ring = ring
        self.in_file = directory is not None
        self.bytes = _zeros(ring.nbytes) if directory is None else _mapped(ring.nbytes, directory)
        self.headers = np.ndarray((ring.slots,), HEADER, self.bytes, 0, (ring.stride,))

    def slot(self, slot: int) -> memoryview:
        """A slot's bytes, as many as a fragment has."""
        start = slot * self.ring.stride
        return self.bytes[start : start + self.ring.layout.nbytes].data

    def field(self, spec: FieldSpec, dtype: npt.DTypeLike | None = None) -> npt.NDArray[Any]:
        """View of a field in all slots, ``[slots, T, N, ...]`` (or T + 1)."""
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

    ``np.take`` from a strided view would copy the whole view first, so the memory is addressed in units that
    divide rows, slots and offsets alike: one unit a row in the common case.
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
    """Map a new file without a name, all its blocks reserved."""
    what = f"no file of {in_units(nbytes)} for the replay in {directory}"
    remedy = "a smaller capacity or a directory on another disk would do"
    with (
        os_errors_as(ReplayMemoryError, what, remedy),
        tempfile.TemporaryFile(dir=directory, prefix="replay-") as file,
    ):
        os.posix_fallocate(file.fileno(), 0, nbytes)
        mapped = mmap.mmap(file.fileno(), nbytes)
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_RANDOM)  # Samples lie anywhere: what is read ahead is read in vain.
    return np.frombuffer(mapped, np.uint8)


NONE: Final = -1


@dataclass(frozen=True)
class _Latest:
    """The newest fragment of an actor."""

    incarnation: int
    sequence: int
    insertion: int

    def is_followed_by(self, incarnation: int, sequence: int, oldest: int) -> bool:
        """Whether that fragment goes on where this one, if it is still held, ends."""
        return (incarnation, sequence - 1) == (self.incarnation, self.sequence) and self.insertion >= oldest


class Links:
    """Links each fragment to the one before it and the one after it.

    Attributes:
        successor: slot of the fragment that goes on where a slot's fragment ends; it means something only
            where there is one.
        predecessor: insertion of the fragment that a slot's fragment goes on from, or ``NONE``.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self.successor = np.zeros(memory.ring.slots, np.intp)
        self.predecessor = np.full(memory.ring.slots, NONE, np.int64)
        self._ring, self._headers = memory.ring, memory.headers
        self._latest: dict[int, _Latest] = {}

    @staticmethod
    def bookkeeping_bytes(slots: int) -> int:
        """Size of what is kept beside so many fragments."""
        return slots * 16

    @property
    def nbytes(self) -> int:
        """Size of what is kept beside the fragments."""
        return self.successor.nbytes + self.predecessor.nbytes

    def accept(self, insertion: int) -> int:
        """Link a fragment to the one that it goes on from; returns that one's insertion, or ``NONE``."""
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
        """Link fragments from insertion ``oldest`` on to those that they go on from.

        Args:
            predecessors: what each goes on from, counted from ``oldest``, or ``NONE``.

        Raises:
            ValueError: one goes on from a fragment that is not older, or that another goes on from.
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

        What follows the last fragment of a chain is the slot of any.
        """
        chains = np.empty((hops + 1, slots.size), np.intp)
        chains[0] = slots
        for hop in range(hops):
            self.successor.take(chains[hop], out=chains[hop + 1], mode="clip")
        return chains

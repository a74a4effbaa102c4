"""The memory of a replay: a ring of slots in one contiguous block, and how rows are gathered from it.

One slot holds one fragment and one is always free, the next to be written. What the replay does not need of
a fragment may lie behind its last needed field (``ReplayRing.tail``): the slots then overlap, the end of one
is the start of the next, and such fields take no memory. Only what follows the free slot has to be vacant.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.roles.buffer.replay.memory_limits import ReplayMemoryError, in_units
from tianji_cli.wire.blocks import aligned
from tianji_cli.wire.fragment import HEADER, FragmentLayout

Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]

MOST_UNITS = 64
"""Rows in more pieces than this are copied one by one, which is then faster than ``np.take``."""


class ReplayRing:
    """Which fragments are held, and where. Fragments are numbered by *birth*, how many were accepted before.

    Args:
        layout: of every fragment.
        capacity: env steps to be held, at least.
        needed: names of the fields that are read after a fragment was accepted.

    Attributes:
        steps_each: T x N, steps in a fragment.
        live: fragments that are held once the ring is full.
        stride: bytes from one slot to the next.
        tail: bytes of a fragment behind what is needed, which its successor overwrites.
        slots: places for fragments; ``slots - live`` of them are vacant.
        first: birth of the first fragment that was ever held here.
        next: birth of the fragment that comes next, into the free slot.
        samples: steps held that are experience.
        drawable: samples that can be drawn: such steps, or sequences of them.
        env_steps: what the job had made when the newest fragment came, about.
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
    def span(self) -> int:
        """Steps in all slots: each has one place in every array of numbers about steps."""
        return self.slots * self.steps_each

    @property
    def oldest(self) -> int:
        """Birth of the oldest fragment held; ``next`` if there is none."""
        return max(self.first, self.next - self.live)

    def slot(self, birth: int) -> int:
        """Slot of a fragment."""
        return birth % self.slots

    def steps(self, birth: int) -> slice:
        """Places of a fragment's steps in arrays of numbers about steps."""
        start = self.slot(birth) * self.steps_each
        return slice(start, start + self.steps_each)


class ReplayMemory:
    """Owns a ring's memory.

    In RAM it is zeros that the system hands out page by page as they are first written: a replay that is
    never filled takes only what it holds, and a start does not wait for gigabytes. That is safe because the
    size was compared with what memory there is before. A file's blocks are all reserved at once instead,
    as a disk that is full later would be a SIGBUS. The file has no name: nothing is left of it whatever ends
    the process.

    Args:
        ring: which slots there are.
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

    Args:
        memory: where from.
        spec: which field.
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
    try:
        with tempfile.TemporaryFile(dir=directory, prefix="replay-") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            mapped = mmap.mmap(file.fileno(), nbytes)
    except OSError as cause:
        raise ReplayMemoryError(
            f"no file of {in_units(nbytes)} for the replay in {directory}: {cause.strerror or cause}; "
            "a smaller capacity or a directory on another disk would do"
        ) from cause
    with contextlib.suppress(OSError):
        mapped.madvise(mmap.MADV_RANDOM)  # Samples lie anywhere: what is read ahead is read in vain.
    return np.frombuffer(mapped, np.uint8)

"""Records: blocks of memory of a declared layout, which cross a process boundary as they are.

    layout = RecordLayout(0x544A5052, arrays=(Array("key", np.int64, (32,)),))
    record = Record(layout, loan.memory)           # views; a record owns nothing
    record.stamp(job)
    record.arrays["key"][...] = keys

Sender and receiver derive the same layout beforehand, so a record does not describe its layout: its header
holds its kind (magic, schema), its job and a hash of its layout, then the numbers of its kind.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number")

ALIGNMENT: Final = 64
"""Arrays start at multiples of a cache line, which suits vector loads best, too."""
SCHEMA: Final = 1

_COMMON: Final = (("magic", "<u4"), ("schema", "<u4"), ("job", "<u8"), ("layout", "<u8"))


class Array(NamedTuple):
    """One array of a record."""

    name: str
    dtype: npt.DTypeLike
    shape: tuple[int, ...]


@dataclass(frozen=True)
class RecordLayout:
    """Memory layout of one kind of record.

    Attributes:
        magic: 32 bits that no other kind has.
        numbers: names and dtypes of the header's numbers beside the common ones.
        arrays: arrays in the order of memory.
        identity: text that both sides agree on; by default numbers, and names, dtypes and shapes of arrays.
    """

    magic: int
    numbers: tuple[tuple[str, str], ...] = ()
    arrays: tuple[Array, ...] = ()
    identity: str = ""

    @cached_property
    def header(self) -> np.dtype[Any]:
        """Dtype of the header."""
        return np.dtype([*_COMMON, *self.numbers])

    @cached_property
    def offsets(self) -> dict[str, int]:
        """First byte of each array, counted from the start of the header; ``""`` is the end."""
        offsets: dict[str, int] = {}
        end = self.header.itemsize
        for name, dtype, shape in self.arrays:
            offsets[name] = aligned(end)
            end = offsets[name] + math.prod(shape) * np.dtype(dtype).itemsize
        offsets[""] = end
        return offsets

    @cached_property
    def nbytes(self) -> int:
        """Size of a record, in bytes."""
        return self.offsets[""]

    @cached_property
    def fingerprint(self) -> int:
        """64-bit hash that two processes share only if they agree on the layout."""
        arrays = [(name, np.dtype(dtype).descr, shape) for name, dtype, shape in self.arrays]
        return fingerprint_of(self.identity or repr((SCHEMA, self.numbers, arrays)))

    def views(self, memory: memoryview) -> dict[str, npt.NDArray[Any]]:
        """Zero-copy arrays over a record's memory, by name."""
        return {
            name: np.ndarray(shape, dtype, memory, self.offsets[name]) for name, dtype, shape in self.arrays
        }

    def read(self, memory: memoryview, job: int) -> Record | str:
        """View a record of a job; returns an error string if the memory holds none."""
        if memory.nbytes != self.nbytes:
            return f"it has {memory.nbytes} bytes, not {self.nbytes}"
        record = Record(self, memory)
        return record.rejection(job) or record


class Record:
    """Views over one record's memory; owns nothing.

    Args:
        memory: at least ``layout.nbytes`` bytes.

    Attributes:
        header: an array without dimensions.
        arrays: all arrays by name.
        memory: memory of the record.
    """

    __slots__ = ("_expected", "arrays", "header", "memory")

    def __init__(self, layout: RecordLayout, memory: memoryview) -> None:
        self.memory = memory
        self.header: npt.NDArray[Any] = np.ndarray((), layout.header, memory)
        self.arrays = layout.views(memory)
        self._expected = (layout.magic, SCHEMA, layout.fingerprint)

    def stamp(self, job: int, *numbers: float) -> None:
        """Write the header: the job's number, and the numbers of this kind of record in their order."""
        magic, schema, layout = self._expected
        self.header[...] = (magic, schema, job, layout, *numbers)

    def rejection(self, job: int) -> str | None:
        """Returns an error string if this is no such record of the job, None if it is one."""
        magic, schema, layout = self._expected
        for name, number in (("magic", magic), ("schema", schema), ("job", job), ("layout", layout)):
            found = int(self.header[name])
            if found != number:
                return f"its {name} is {found:#x}, not {number:#x}"
        return None


class InHeader(Generic[Number]):
    """A number of a record's header, as an attribute of its class."""

    def __init__(self, name: str, kind: Callable[[Any], Number]) -> None:
        self._name, self._kind = name, kind

    def __get__(self, record: Record, _: object = None) -> Number:
        return self._kind(record.header[self._name])


def aligned(nbytes: int) -> int:
    """Round a size up to the start of the next array."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def fingerprint_of(text: str) -> int:
    """64-bit hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def job_number(job: str) -> int:
    """Hash of a job's id, as headers carry it."""
    return fingerprint_of(job)

"""What groups send to be averaged and what the root makes of it: a fixed header, then float32 values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

MAGIC: Final = 0x544A4156
"""``TJAV``: marks a contribution, and an average."""
ALIGNMENT: Final = 64
"""Values begin at a multiple of this many bytes."""

_VALUE: Final = np.dtype(np.float32)
_CONTRIBUTION: Final = np.dtype(
    {
        "names": ["magic", "group", "job", "number", "weight"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<f8"],
        "offsets": [0, 4, 8, 16, 24],
        "itemsize": ALIGNMENT,
    }
)
_AVERAGE: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("groups", "<u4"),
        ("job", "<u8"),
        ("round", "<u8"),
        ("contributors", "<u4"),
        ("open", "<u4"),
    ]
)
_NUMBER: Final = np.dtype("<u8")


def contribution_nbytes(values: int) -> int:
    """Size of a contribution of so many values, in bytes."""
    return _CONTRIBUTION.itemsize + values * _VALUE.itemsize


def values_in(nbytes: int) -> int:
    """Say how many values a contribution of ``nbytes`` bytes has."""
    return (nbytes - _CONTRIBUTION.itemsize) // _VALUE.itemsize


def average_nbytes(values: int, groups: int) -> int:
    """Size of an average of so many values over so many groups, in bytes."""
    return _values_begin(groups) + values * _VALUE.itemsize


def _values_begin(groups: int) -> int:
    nbytes = _AVERAGE.itemsize + groups * _NUMBER.itemsize
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Contribution:
    """Views of a contribution; owns nothing.

    Args:
        memory: ``contribution_nbytes(values)`` bytes.

    Attributes:
        values: ``[values]``: the group's parameters, then the optimiser's moments if they are averaged too.
    """

    __slots__ = ("_header", "memory", "values")

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self._header: npt.NDArray[Any] = np.ndarray((), _CONTRIBUTION, memory)
        self.values: Floats = np.ndarray((values_in(memory.nbytes),), _VALUE, memory, _CONTRIBUTION.itemsize)

    def fill_header(self, job: int, group: int, number: int, weight: float) -> None:
        """Say whose it is.

        Args:
            job: the job's number.
            group: that contributes.
            number: of this contribution of the group, from 1.
            weight: uses of samples in updates since the last one.
        """
        self._header[...] = (MAGIC, group, job, number, weight)

    @property
    def group(self) -> int:
        """The group that contributes."""
        return int(self._header["group"])

    @property
    def number(self) -> int:
        """Which contribution of its group this is, from 1."""
        return int(self._header["number"])

    @property
    def weight(self) -> float:
        """Uses of samples in updates since the last one."""
        return float(self._header["weight"])

    @property
    def is_finite(self) -> bool:
        """Every value is a number. Looks at the extremes, since a NaN is one; allocates nothing."""
        return math.isfinite(self.values.min()) and math.isfinite(self.values.max())

    def refusal(self, job: int, group: int) -> str | None:
        """Say why this is no contribution of a group of this job; None if it is one."""
        header = self._header
        if int(header["magic"]) != MAGIC:
            return "it is no contribution"
        if int(header["job"]) != job:
            return "it is of another job"
        if self.group != group:
            return f"it is in the name of group {self.group}, not of group {group}"
        if not (math.isfinite(self.weight) and self.weight > 0):
            return f"its weight is {self.weight}"
        return None


class Average:
    """Views of an average; owns nothing.

    Args:
        memory: ``average_nbytes(values, groups)`` bytes.
        groups: how many the job has.

    Attributes:
        taken: ``[groups]``: number of the newest contribution that was taken from each.
        values: ``[values]``: the mean over the groups that contributed to the round.
    """

    __slots__ = ("_groups", "_header", "memory", "taken", "values")

    def __init__(self, memory: memoryview, groups: int) -> None:
        self.memory = memory
        self._groups = groups
        self._header: npt.NDArray[Any] = np.ndarray((), _AVERAGE, memory)
        self.taken: npt.NDArray[Any] = np.ndarray((groups,), _NUMBER, memory, _AVERAGE.itemsize)
        begin = _values_begin(groups)
        count = (memory.nbytes - begin) // _VALUE.itemsize
        self.values: Floats = np.ndarray((count,), _VALUE, memory, begin)

    def fill_header(
        self, job: int, number: int, contributors: int, *, is_open: bool, taken: Sequence[int]
    ) -> None:
        """Say what it is the average of.

        Args:
            job: the job's number.
            number: of the round that was closed last.
            contributors: groups in its average; with 0 there are no values yet.
            is_open: a further round has begun and waits for whoever has not contributed to it.
            taken: number of the newest contribution that was taken from each group.
        """
        self._header[...] = (MAGIC, self._groups, job, number, contributors, is_open)
        self.taken[...] = taken

    @property
    def round(self) -> int:
        """Number of the round that was closed last."""
        return int(self._header["round"])

    @property
    def contributors(self) -> int:
        """Groups in the average; 0: there are no values yet."""
        return int(self._header["contributors"])

    @property
    def is_open(self) -> bool:
        """A further round has begun and waits for whoever has not contributed to it."""
        return bool(self._header["open"])

    def refusal(self, job: int) -> str | None:
        """Say why this is no average of this job; None if it is one."""
        header = self._header
        if int(header["magic"]) != MAGIC or int(header["groups"]) != self._groups:
            return "it is no average"
        if int(header["job"]) != job:
            return "it is of another job"
        return None

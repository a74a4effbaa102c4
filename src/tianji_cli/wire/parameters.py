"""Parameters under way: a published policy, a group's contribution to an average, and the average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.wire.records import Array, InHeader, Record, RecordLayout, aligned

Floats = npt.NDArray[np.float32]

_VALUE: Final = np.dtype(np.float32)

MOST_STATISTICS: Final = 4
"""Kinds of running statistics that a policy may have."""


def are_finite(values: Floats) -> bool:
    """Whether every value is a number. Looks at the extremes, since a NaN is one; allocates nothing."""
    return math.isfinite(values.min(initial=0.0)) and math.isfinite(values.max(initial=0.0))


@cache
def policy_layout(parameter_count: int) -> RecordLayout:
    """Lay out a published policy: the progress of training, by which actors schedule, and the parameters."""
    return RecordLayout(
        0x544A504C,  # "TJPL"
        (("env_steps", "<i8"),),
        (Array("parameters", np.float32, (parameter_count,)),),
    )


POLICY_HEADER_BYTES: Final = policy_layout(0).nbytes
"""Offset of the parameters in a published policy."""


class PublishedPolicy(Record):
    """Views of a published policy; owns nothing.

    Nothing checks its header: a latest-value slot has one writer, which the engine lets in.

    Attributes:
        parameters: ``[parameter_count]`` as ``Model.write_parameters`` writes them.
    """

    __slots__ = ("parameters",)

    def __init__(self, memory: memoryview) -> None:
        super().__init__(policy_layout((memory.nbytes - POLICY_HEADER_BYTES) // _VALUE.itemsize), memory)
        self.parameters: Floats = self.arrays["parameters"]

    env_steps = InHeader("env_steps", int)
    """Env steps that the learner has received, over all sessions."""


@cache
def contribution_layout(values: int) -> RecordLayout:
    """Lay out a contribution to an average of so many values."""
    return RecordLayout(
        0x544A4143,  # "TJAC"
        (("group", "<u8"), ("number", "<u8"), ("weight", "<f8")),
        (Array("statistics", np.uint64, (MOST_STATISTICS, 3)), Array("values", np.float32, (values,))),
    )


def values_in(nbytes: int) -> int:
    """Number of values in a contribution of ``nbytes`` bytes."""
    return (nbytes - contribution_layout(0).nbytes) // _VALUE.itemsize


class Contribution(Record):
    """Views of a contribution; owns nothing.

    Attributes:
        values: ``[values]``: the group's parameters, then the optimiser's moments if they are averaged too.
        statistics: ``[MOST_STATISTICS, 3]``: for each kind of running statistics the index of its means in
            ``values``, the number of means, and the number of those that float32 holds only with a rest.
            Variances, one for each mean, follow the means, then the rests; the count of observations lies
            before the means. Unused rows are zeros.
    """

    __slots__ = ("statistics", "values")

    def __init__(self, memory: memoryview) -> None:
        super().__init__(contribution_layout(values_in(memory.nbytes)), memory)
        self.values: Floats = self.arrays["values"]
        self.statistics: npt.NDArray[np.uint64] = self.arrays["statistics"]

    number = InHeader("number", int)
    """Number of this contribution in its group, from 1."""

    weight = InHeader("weight", float)
    """Sample uses in updates since the last contribution."""

    @property
    def is_finite(self) -> bool:
        """Whether every value is a number."""
        return are_finite(self.values)

    def rejection_from(self, group: int, job: int) -> str | None:
        """Returns an error string if this is no contribution of a group of this job, else None."""
        if (found := self.rejection(job)) is not None:
            return found
        if (sender := int(self.header["group"])) != group:
            return f"it is in the name of group {sender}, not of group {group}"
        if not (math.isfinite(self.weight) and self.weight > 0):
            return f"its weight is {self.weight}"
        for start, number, rests in self.statistics.tolist():
            if number and not (rests in (0, number) and 1 <= start <= len(self.values) - 2 * number - rests):
                return f"it has statistics at {start}, {number} each, and {len(self.values)} values"
            if number and self.values[start - 1] < 0:
                return f"its statistics at {start} are of {self.values[start - 1]} observations"
        return None


@cache
def average_layout(values: int, groups: int) -> RecordLayout:
    """Lay out an average of so many values over so many groups."""
    return RecordLayout(
        0x544A4156,  # "TJAV"
        (("round", "<u8"), ("contributors", "<u4"), ("open", "<u4")),
        (Array("taken", np.uint64, (groups,)), Array("values", np.float32, (values,))),
    )


class Average(Record):
    """Views of an average; owns nothing.

    Attributes:
        taken: ``[groups]``: number of the newest contribution that was taken from each group.
        values: ``[values]``: the mean over the groups that contributed to the round.
    """

    __slots__ = ("taken", "values")

    def __init__(self, memory: memoryview, groups: int) -> None:
        begin = aligned(average_layout(0, groups).nbytes)
        super().__init__(average_layout((memory.nbytes - begin) // _VALUE.itemsize, groups), memory)
        self.taken: npt.NDArray[np.uint64] = self.arrays["taken"]
        self.values: Floats = self.arrays["values"]

    def fill_header(
        self, job: int, number: int, contributors: int, *, is_open: bool, taken: Sequence[int]
    ) -> None:
        """Write the header, by the names of the properties."""
        self.stamp(job, number, contributors, is_open)
        self.taken[...] = taken

    round = InHeader("round", int)
    """Number of the round that was closed last."""

    contributors = InHeader("contributors", int)
    """Groups in the average; 0: there are no values yet."""

    is_open = InHeader("open", bool)
    """Whether a further round has begun and waits for groups that have not contributed to it."""

"""Batches of samples as one record, in an array of its own or in a loan, and priorities.

The process that samples and the learner derive the same ``BatchLayout`` from the fragment's layout, so a
batch needs no serialisation either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import Batch, SequenceBatch, UnrollBatch
from tianji_algos.errors import DivergedError
from tianji_algos.fields import FieldSpec
from tianji_cli.config.schema import Unroll
from tianji_cli.wire.fragment import FragmentLayout
from tianji_cli.wire.records import SCHEMA, Array, Record, RecordLayout

REWARD: Final = FieldSpec("reward", np.dtype(np.float32))
NUMBERS: Final = (
    FieldSpec("weight", np.dtype(np.float32)),
    FieldSpec("key", np.dtype(np.int64)),
    FieldSpec("version", np.dtype(np.int64)),
    FieldSpec("age", np.dtype(np.int64)),
)
"""Numbers of each sample of any batch, beside observations, rewards and the agent's fields."""
OF_TRANSITIONS: Final = (FieldSpec("discount", np.dtype(np.float32)),)
OF_SEQUENCES: Final = (
    FieldSpec("length", np.dtype(np.int32)),
    FieldSpec("terminated", np.dtype(np.bool_)),
)
OF_UNROLLS: Final = (
    FieldSpec("terminated", np.dtype(np.bool_)),
    FieldSpec("mask", np.dtype(np.bool_)),
)


@dataclass(frozen=True)
class BatchLayout:
    """Position of each array of a batch.

    Attributes:
        size: B, samples.
        observation: the observation's field of a fragment, stacked as a policy sees it.
        fields: the agent's fields that its update rule reads.
        sample: maximum steps L of a sample where samples are sequences; the shape of an unroll where they
            are unrolls; None where they are transitions.
    """

    size: int
    observation: FieldSpec
    fields: tuple[FieldSpec, ...]
    sample: int | Unroll | None = None

    @classmethod
    def of(
        cls,
        layout: FragmentLayout,
        size: int,
        agent_fields: Sequence[str],
        sample: int | Unroll | None = None,
    ) -> BatchLayout:
        """Derive the layout of batches of ``size`` samples from that of fragments.

        Raises:
            ValueError: ``size`` is below 1, or a fragment has no such field for each step.
        """
        if size < 1:
            raise ValueError(f"a batch needs samples, not {size}")
        specs = {spec.name: spec for spec in layout.fields}
        missing = [name for name in ("observation", *agent_fields) if name not in specs]
        if missing:
            raise ValueError(f"fragments have no field {missing[0]!r}; they have {sorted(specs)}")
        once = [name for name in agent_fields if specs[name].once]
        if once and not isinstance(sample, Unroll):
            raise ValueError(f"field {once[0]!r} is recorded once a fragment, and a batch is of single steps")
        fields = tuple(specs[name] for name in agent_fields)
        return cls(size, _stacked(specs["observation"]), fields, sample)

    @property
    def most_steps(self) -> int:
        """Maximum env steps that an update learns from in a batch: every sample is as long as possible."""
        return self.size * (self.sample.learnt if isinstance(self.sample, Unroll) else self.sample or 1)

    @cached_property
    def arrays(self) -> tuple[tuple[str, FieldSpec], ...]:
        """All arrays by unique names, in the order of the layout."""
        if self.sample is None:
            return (
                ("observation", self.observation),
                ("next_observation", self.observation),
                *((f"fields/{spec.name}", spec) for spec in self.fields),
                *((spec.name, spec) for spec in (REWARD, *OF_TRANSITIONS, *NUMBERS)),
            )
        of_steps: tuple[FieldSpec, ...] = (REWARD,)
        of_each: tuple[FieldSpec, ...] = (*OF_SEQUENCES, *NUMBERS)
        steps = self.sample
        if isinstance(steps, Unroll):
            of_steps, of_each = (REWARD, *OF_UNROLLS), NUMBERS
            steps = steps.steps
        return (
            ("observation", _of_rows(self.observation, steps + 1)),
            *((f"fields/{spec.name}", _of_rows(spec, steps)) for spec in self.fields),
            *((spec.name, _of_rows(spec, steps)) for spec in of_steps),
            *((spec.name, spec) for spec in of_each),
        )

    @cached_property
    def record(self) -> RecordLayout:
        """Record layout of a batch; two processes share it only if they agree on every array."""
        arrays = ((name, spec.dtype.descr, spec.shape) for name, spec in self.arrays)
        return RecordLayout(
            0x544A4254,  # "TJBT"
            arrays=tuple(Array(name, spec.dtype, (self.size, *spec.shape)) for name, spec in self.arrays),
            identity=repr((SCHEMA, self.size, *arrays)),
        )

    @property
    def nbytes(self) -> int:
        """Size of a batch with its header, in bytes."""
        return self.record.nbytes


def _stacked(spec: FieldSpec) -> FieldSpec:
    """Describe an observation as a policy sees it."""
    shape = (spec.history + 1, *spec.shape) if spec.history else spec.shape
    return FieldSpec(spec.name, spec.dtype, shape)


def _of_rows(spec: FieldSpec, rows: int) -> FieldSpec:
    """Describe a field over so many steps in a row; a field that is recorded once has no steps."""
    return FieldSpec(spec.name, spec.dtype, spec.shape if spec.once else (rows, *spec.shape))


class BatchView:
    """A batch in arrays that it does not own.

    Attributes:
        arrays: all of them by name, as the layout lists them.
        batch: the same arrays as the update rule gets them.
        weight: ``[B]`` float32, importance weights; 1 where samples are drawn uniformly.
        key: ``[B]`` int64, names each sample to ``Replay.update_priorities``.
        version: ``[B]`` int64, of the policy that made each sample.
        age: ``[B]`` int64, env steps that the replay accepted after each sample's (first) fragment.
    """

    def __init__(self, layout: BatchLayout, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.layout = layout
        self.arrays = arrays
        self.batch: Batch | SequenceBatch | UnrollBatch = _batch_of(layout, arrays)
        self.weight: npt.NDArray[np.float32] = arrays["weight"]
        self.key: npt.NDArray[np.int64] = arrays["key"]
        self.version: npt.NDArray[np.int64] = arrays["version"]
        self.age: npt.NDArray[np.int64] = arrays["age"]

    @property
    def steps(self) -> int:
        """Env steps to learn from: one a transition, all of a sequence, those of an unroll after burn-in."""
        sample = self.layout.sample
        if isinstance(sample, Unroll):
            return int(np.count_nonzero(self.arrays["mask"][:, sample.burn_in :]))
        return self.layout.size if sample is None else int(self.arrays["length"].sum())

    def part(self, start: int, stop: int) -> BatchView:
        """View some of its samples."""
        arrays = {name: array[start:stop] for name, array in self.arrays.items()}
        return BatchView(replace(self.layout, size=stop - start), arrays)


def _batch_of(
    layout: BatchLayout, arrays: Mapping[str, npt.NDArray[Any]]
) -> Batch | SequenceBatch | UnrollBatch:
    """View the arrays as the batch of an update rule, by the names of its attributes."""
    batch: type[Batch | SequenceBatch | UnrollBatch] = Batch
    if layout.sample is not None:
        batch = UnrollBatch if isinstance(layout.sample, Unroll) else SequenceBatch
    named = {field.name: arrays[field.name] for field in fields(batch) if field.name != "fields"}
    return batch(fields={spec.name: arrays[f"fields/{spec.name}"] for spec in layout.fields}, **named)


class BatchArrays(BatchView):
    """A batch's arrays over one block of at least ``layout.nbytes`` bytes, for repeated use."""

    def __init__(self, layout: BatchLayout, memory: memoryview | None = None) -> None:
        self.memory = np.zeros(layout.nbytes, np.uint8).data if memory is None else memory
        self._record = Record(layout.record, self.memory)
        super().__init__(layout, self._record.arrays)

    def stamp(self, job: int) -> None:
        """Write the job's number."""
        self._record.stamp(job)

    def rejection(self, job: int) -> str | None:
        """Returns an error string if this is no batch of the job, else None."""
        return self._record.rejection(job)


def priorities_layout(size: int) -> RecordLayout:
    """Lay out the new priorities of a batch of so many samples, on their way back to the replay."""
    return RecordLayout(
        0x544A5052,  # "TJPR"
        arrays=(Array("key", np.int64, (size,)), Array("priority", np.float32, (size,))),
    )


def write_priorities(
    layout: RecordLayout,
    memory: memoryview,
    job: int,
    keys: npt.NDArray[np.int64],
    priorities: npt.NDArray[np.float32],
) -> None:
    """Write the priorities ``[B]`` of the samples with these keys ``[B]``.

    Raises:
        DivergedError: a priority is not finite.
    """
    if not _are_valid(priorities):
        raise DivergedError("a sample's new priority is not finite: the loss has diverged")
    record = Record(layout, memory)
    record.stamp(job)
    record.arrays["key"][...] = keys
    record.arrays["priority"][...] = priorities


def read_priorities(
    layout: RecordLayout, memory: memoryview, job: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | str:
    """View keys ``[B]`` and priorities ``[B]``; returns an error string if the memory holds none."""
    record = layout.read(memory, job)
    if isinstance(record, str):
        return record
    keys, priorities = record.arrays["key"], record.arrays["priority"]
    return (keys, priorities) if _are_valid(priorities) else "a priority is negative or not finite"


def _are_valid(priorities: npt.NDArray[np.float32]) -> bool:
    """Check priorities: one NaN or infinity would stay in a sum of priorities for ever."""
    return bool(np.isfinite(priorities).all() and (priorities >= 0).all())

"""Batches of transitions or sequences as one block of memory: in an array of their own, or in a loan.

The process that samples and the learner derive the same ``BatchLayout`` from the fragment's layout, so a
batch needs no serialisation either.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import Batch, SequenceBatch
from tianji_algos.fields import FieldSpec
from tianji_cli.wire.blocks import aligned, fingerprint_of, mismatch
from tianji_cli.wire.fragment import FragmentLayout

MAGIC: Final = 0x544A4254  # "TJBT"
SCHEMA: Final = 1

HEADER: Final = np.dtype([("magic", "<u4"), ("schema", "<u4"), ("job", "<u8"), ("layout", "<u8")])

REWARD: Final = FieldSpec("reward", np.dtype(np.float32))
NUMBERS: Final = (
    FieldSpec("weight", np.dtype(np.float32)),
    FieldSpec("key", np.dtype(np.int64)),
    FieldSpec("version", np.dtype(np.int64)),
    FieldSpec("age", np.dtype(np.int64)),
)
"""What every batch has for each sample beside observations, rewards and the agent's fields."""
OF_TRANSITIONS: Final = (FieldSpec("discount", np.dtype(np.float32)),)
OF_SEQUENCES: Final = (
    FieldSpec("length", np.dtype(np.int32)),
    FieldSpec("terminated", np.dtype(np.bool_)),
)


@dataclass(frozen=True)
class BatchLayout:
    """Where each array of a batch lies.

    Attributes:
        size: B, samples.
        observation: the observation's field of a fragment, stacked as a policy sees it.
        fields: the agent's fields that its update rule reads.
        sequence_steps: L, steps of a sample at most, where samples are sequences; None: they are transitions.
    """

    size: int
    observation: FieldSpec
    fields: tuple[FieldSpec, ...]
    sequence_steps: int | None = None

    @classmethod
    def of(
        cls,
        layout: FragmentLayout,
        size: int,
        agent_fields: Sequence[str],
        sequence_steps: int | None = None,
    ) -> BatchLayout:
        """Derive the layout of batches of ``size`` samples from that of fragments.

        Raises:
            ValueError: no samples, or a fragment has no such field for each step.
        """
        if size < 1:
            raise ValueError(f"a batch needs samples, not {size}")
        specs = {spec.name: spec for spec in layout.fields}
        missing = [name for name in ("observation", *agent_fields) if name not in specs]
        if missing:
            raise ValueError(f"fragments have no field {missing[0]!r}; they have {sorted(specs)}")
        once = [name for name in agent_fields if specs[name].once]
        if once:
            raise ValueError(f"field {once[0]!r} is recorded once a fragment, and a batch is of single steps")
        fields = tuple(specs[name] for name in agent_fields)
        return cls(size, _stacked(specs["observation"]), fields, sequence_steps)

    @property
    def most_steps(self) -> int:
        """Env steps that a batch may have: those of all its samples, if each is as long as can be."""
        return self.size * (self.sequence_steps or 1)

    @cached_property
    def arrays(self) -> tuple[tuple[str, FieldSpec], ...]:
        """Every array by a name that no other array has, in the order they are laid out."""
        steps = self.sequence_steps
        if steps is None:
            return (
                ("observation", self.observation),
                ("next_observation", self.observation),
                *((f"fields/{spec.name}", spec) for spec in self.fields),
                *((spec.name, spec) for spec in (REWARD, *OF_TRANSITIONS, *NUMBERS)),
            )
        return (
            ("observation", _of_rows(self.observation, steps + 1)),
            *((f"fields/{spec.name}", _of_rows(spec, steps)) for spec in self.fields),
            ("reward", _of_rows(REWARD, steps)),
            *((spec.name, spec) for spec in (*OF_SEQUENCES, *NUMBERS)),
        )

    @cached_property
    def offsets(self) -> dict[str, int]:
        """First byte of each array, counted from the start of the header; ``""`` is the end."""
        offsets: dict[str, int] = {}
        start = aligned(HEADER.itemsize)
        for name, spec in self.arrays:
            offsets[name] = start
            start += aligned(self.size * math.prod(spec.shape) * spec.dtype.itemsize)
        offsets[""] = start
        return offsets

    @property
    def nbytes(self) -> int:
        """Size of a batch with its header, in bytes."""
        return self.offsets[""]

    @cached_property
    def fingerprint(self) -> int:
        """64-bit hash that two processes share only if they agree on every array."""
        arrays = ((name, spec.dtype.descr, spec.shape) for name, spec in self.arrays)
        return fingerprint_of(repr((SCHEMA, self.size, *arrays)))


def _stacked(spec: FieldSpec) -> FieldSpec:
    """Describe an observation as a policy sees it."""
    shape = (spec.history + 1, *spec.shape) if spec.history else spec.shape
    return FieldSpec(spec.name, spec.dtype, shape)


def _of_rows(spec: FieldSpec, rows: int) -> FieldSpec:
    """Describe a field of so many steps in a row."""
    return FieldSpec(spec.name, spec.dtype, (rows, *spec.shape))


class BatchView:
    """A batch in arrays that are somebody else's.

    Args:
        layout: what there is.
        arrays: all of them by name, as the layout lists them.

    Attributes:
        arrays: all of them by name, as the layout lists them.
        batch: what the update rule gets: the same arrays.
        weight: ``[B]`` float32, importance weights; 1 where samples are drawn uniformly.
        key: ``[B]`` int64, names each sample to ``Replay.update_priorities``.
        version: ``[B]`` int64, of the policy that made each sample.
        age: ``[B]`` int64, env steps that the replay accepted after each sample's (first) fragment.
    """

    def __init__(self, layout: BatchLayout, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self.layout = layout
        self.arrays = arrays
        batch_of = _transitions if layout.sequence_steps is None else _sequences
        self.batch: Batch | SequenceBatch = batch_of(layout, arrays)
        self.weight: npt.NDArray[np.float32] = arrays["weight"]
        self.key: npt.NDArray[np.int64] = arrays["key"]
        self.version: npt.NDArray[np.int64] = arrays["version"]
        self.age: npt.NDArray[np.int64] = arrays["age"]

    @property
    def steps(self) -> int:
        """Env steps in the batch: one a transition, and as many as sequences are long."""
        return self.layout.size if self.layout.sequence_steps is None else int(self.arrays["length"].sum())


def _transitions(layout: BatchLayout, arrays: Mapping[str, npt.NDArray[Any]]) -> Batch:
    return Batch(
        observation=arrays["observation"],
        fields={spec.name: arrays[f"fields/{spec.name}"] for spec in layout.fields},
        reward=arrays["reward"],
        next_observation=arrays["next_observation"],
        discount=arrays["discount"],
        weight=arrays["weight"],
    )


def _sequences(layout: BatchLayout, arrays: Mapping[str, npt.NDArray[Any]]) -> SequenceBatch:
    return SequenceBatch(
        observation=arrays["observation"],
        fields={spec.name: arrays[f"fields/{spec.name}"] for spec in layout.fields},
        reward=arrays["reward"],
        length=arrays["length"],
        terminated=arrays["terminated"],
    )


class BatchArrays(BatchView):
    """A batch's arrays over one block of memory, to be filled again and again.

    Args:
        layout: how the memory is divided.
        memory: at least ``layout.nbytes`` bytes; None: allocate them here.
    """

    def __init__(self, layout: BatchLayout, memory: memoryview | None = None) -> None:
        self.memory = np.zeros(layout.nbytes, np.uint8).data if memory is None else memory
        self.header = np.ndarray((), HEADER, self.memory)
        arrays = {
            name: np.ndarray((layout.size, *spec.shape), spec.dtype, self.memory, layout.offsets[name])
            for name, spec in layout.arrays
        }
        super().__init__(layout, arrays)

    def stamp(self, job: int) -> None:
        """Write whose batch this is."""
        self.header[...] = (MAGIC, SCHEMA, job, self.layout.fingerprint)

    def refusal(self, job: int) -> str | None:
        """Say why this is no batch of the job, or None if it is one."""
        expected = {"magic": MAGIC, "schema": SCHEMA, "job": job, "layout": self.layout.fingerprint}
        return mismatch(self.header, expected)

"""The unit of data: T steps of N environments in one contiguous block of memory.

Every process derives the same ``FragmentLayout`` from the agent and the spaces before anything
starts, so a fragment needs no serialisation: the actor writes numpy views over loaned memory and
the learner reads numpy views over claimed memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.wire.records import SCHEMA, Array, Record, RecordLayout, aligned

_MAGIC: Final = 0x544A4652  # "TJFR"
_NUMBERS: Final = (
    ("actor", "<u4"),
    ("incarnation", "<u4"),
    ("sequence", "<u8"),
    ("before", "<u8"),
    ("version", "<i8"),
    ("samples", "<u8"),
    ("age_ns", "<i8"),
)
"""A fragment's header holds its origin (actor, incarnation, sequence), the version of its
policy (version), the number of experience steps among its T x N (samples), that number over all earlier
fragments of the incarnation (before), and the nanoseconds from its first step to the push (age_ns: hosts
share no clock)."""
HEADER: Final = RecordLayout(_MAGIC, _NUMBERS).header

EPISODE_STEPS: Final = "episode_steps"
"""Field with the length of each episode where it ended, and 0 elsewhere."""

MOST_AGE_NS: Final = 1 << 60
"""No fragment takes 36 years; beyond that, sums of times would leave their 64 bits."""


def common_fields(
    observation: gym.Space[Any], stack: int = 1, *, winnable: bool = False, metrics: int = 0
) -> tuple[FieldSpec, ...]:
    """Fields of every fragment, for any agent: those of the environments, and returns of episodes.

    Args:
        stack: number of observations in a row that an agent sees as one; each is stored once.
        winnable: whether episodes of the environments are won or lost.
        metrics: number of metrics recorded at each episode's end.
    """
    if observation.shape is None or observation.dtype is None:
        raise ValueError(f"observations of {observation} have no fixed shape and dtype")
    flag = np.dtype(np.bool_)
    number = np.dtype(np.float32)
    return (
        FieldSpec(
            "observation",
            np.dtype(observation.dtype),
            observation.shape,
            bootstrap=True,
            history=stack - 1,
        ),
        FieldSpec("reward", number),
        FieldSpec("terminated", flag),
        FieldSpec("truncated", flag),
        FieldSpec("mask", flag),
        FieldSpec("episode_return", np.dtype(np.float64)),
        FieldSpec(EPISODE_STEPS, np.dtype(np.int32)),
        *((FieldSpec("won", flag),) if winnable else ()),
        *((FieldSpec("metrics", number, (metrics,)),) if metrics else ()),
    )


@dataclass(frozen=True)
class FragmentLayout:
    """Position of each field of a fragment.

    Attributes:
        steps: T, steps of each environment.
        num_envs: N, environments of one actor.
        fields: recorded fields, in the order of the layout.
    """

    steps: int
    num_envs: int
    fields: tuple[FieldSpec, ...]

    def __post_init__(self) -> None:
        """Reject settings that have no layout.

        Raises:
            ValueError: no steps or environments, a repeated name, or a dtype that cannot live in raw memory.
        """
        if self.steps < 1 or self.num_envs < 1:
            raise ValueError(f"a fragment needs steps and environments, not {self.steps} x {self.num_envs}")
        names = [field.name for field in self.fields]
        if len(set(names)) != len(names):
            raise ValueError(f"a fragment's fields need distinct names, not {names}")
        for field in self.fields:
            if field.dtype.hasobject or field.dtype.itemsize == 0:
                raise ValueError(f"field {field.name!r}: dtype {field.dtype} cannot live in shared memory")

    def shape(self, field: FieldSpec) -> tuple[int, ...]:
        """Shape of a field: ``[rows, N, ...]``; see ``FieldSpec``."""
        return (field.rows(self.steps), self.num_envs, *field.shape)

    @cached_property
    def record(self) -> RecordLayout:
        """Record layout of a fragment; two processes share it only if they agree on every field."""
        fields = ((f.name, f.dtype.descr, f.shape, f.bootstrap, f.history, f.once) for f in self.fields)
        return RecordLayout(
            _MAGIC,
            _NUMBERS,
            tuple(Array(field.name, field.dtype, self.shape(field)) for field in self.fields),
            identity=repr(((SCHEMA, self.steps, self.num_envs), *fields)),
        )

    @property
    def offsets(self) -> dict[str, int]:
        """First byte of each field, counted from the start of the header; ``""`` is the end."""
        return self.record.offsets

    @cached_property
    def nbytes(self) -> int:
        """Size of a fragment with its header, in bytes: fragments lie side by side, so it is aligned."""
        return aligned(self.record.nbytes)

    @property
    def fingerprint(self) -> int:
        """64-bit hash that two processes share only if they agree on every field."""
        return self.record.fingerprint

    def views(self, memory: memoryview) -> dict[str, npt.NDArray[Any]]:
        """Zero-copy arrays over a fragment's memory, by field name."""
        return self.record.views(memory)


class Fragment(Record):
    """Views over one fragment's memory; owns nothing."""

    __slots__ = ("fields", "layout")

    def __init__(self, layout: FragmentLayout, memory: memoryview) -> None:
        super().__init__(layout.record, memory)
        self.layout = layout
        self.fields = self.arrays

    def begin(
        self, *, job: int, actor: int, incarnation: int, sequence: int, before: int, version: int
    ) -> None:
        """Write the fragment's actor and policy version; ``samples`` and times come later."""
        self.stamp(job, actor, incarnation, sequence, before, version, 0, 0)

    @property
    def source(self) -> tuple[int, int]:
        """(number, incarnation) of the actor that made it."""
        return int(self.header["actor"]), int(self.header["incarnation"])

    def refusal(self, job: int, actors: Sequence[int]) -> str | None:
        """Returns an error string if this is no fragment of the job by one of these actors, else None."""
        if (found := self.rejection(job)) is not None:
            return found
        header = self.header
        if int(header["actor"]) not in actors:
            return f"its actor {int(header['actor'])} does not live there"
        capacity = self.layout.steps * self.layout.num_envs
        if int(header["samples"]) > capacity:
            return f"it claims {int(header['samples'])} samples where {capacity} fit"
        if not 0 <= int(header["age_ns"]) < MOST_AGE_NS:
            return f"it claims an age of {int(header['age_ns'])} ns"
        return None


def stats_layout(steps: int, metrics: int = 0) -> RecordLayout:
    """Lay out the stats of a fragment of so many steps, each of which may end an episode.

    Args:
        metrics: number of metrics of each episode.
    """
    numbers = Array("returns", np.float64, (steps,)), Array("lengths", np.int32, (steps,))
    measured = (Array("metrics", np.float32, (steps, metrics)),) if metrics else ()
    return RecordLayout(
        0x544A4653,  # "TJFS"
        (("samples", "<u8"), ("age_ns", "<i8"), ("returns", "<u8"), ("wins", "<u8")),
        (*numbers, Array("wins", np.bool_, (steps,)), *measured),
    )


@dataclass(frozen=True)
class FragmentStats:
    """Numbers that a learner counts of every received fragment, whether or not it learns from the fragment.

    Attributes:
        samples: steps in the fragment that are experience.
        started_ns: when its first step began, ``time.monotonic_ns`` of this host.
        returns: returns of the episodes that ended in the fragment, in that order.
        wins: whether each of these episodes was won; empty where nothing is won.
        metrics: metrics of each of these episodes; empty where none are asked for.
        lengths: env steps of each of these episodes.
    """

    samples: int
    started_ns: int
    returns: Sequence[float]
    wins: Sequence[bool] = ()
    metrics: Sequence[Sequence[float]] = ()
    lengths: Sequence[int] = ()

    @classmethod
    def of(cls, fragment: Fragment, started_ns: int | None = None) -> FragmentStats:
        """Count a fragment, which has just been received if no time is given."""
        if started_ns is None:
            started_ns = time.monotonic_ns() - int(fragment.header["age_ns"])
        returns, *others = (
            ended(fragment.fields, name) for name in ("episode_return", "won", "metrics", EPISODE_STEPS)
        )
        return cls(int(fragment.header["samples"]), started_ns, returns, *others)

    def write(self, layout: RecordLayout, memory: memoryview, job: int) -> None:
        """Write the stats as a record; hosts share no clock, so the time becomes an age."""
        record = Record(layout, memory)
        returns, wins = len(self.returns), len(self.wins)
        record.stamp(job, self.samples, time.monotonic_ns() - self.started_ns, returns, wins)
        record.arrays["returns"][:returns] = self.returns
        record.arrays["lengths"][: len(self.lengths)] = self.lengths
        record.arrays["wins"][:wins] = self.wins
        if self.metrics:
            record.arrays["metrics"][:returns] = self.metrics

    @classmethod
    def read(cls, layout: RecordLayout, memory: memoryview, job: int) -> FragmentStats | str:
        """Read stats from a record; returns an error string if the memory holds none."""
        record = layout.read(memory, job)
        if isinstance(record, str):
            return record
        samples, age_ns, returns, wins = (
            int(record.header[name]) for name in ("samples", "age_ns", "returns", "wins")
        )
        steps = record.arrays["returns"].size
        if max(samples, returns) > steps or not 0 <= age_ns < MOST_AGE_NS or wins not in {0, returns}:
            counted = f"{samples} samples, {returns} returns, {wins} wins"
            return f"it counts {counted} of {steps} steps, {age_ns} ns ago"
        # A byte may have any value: only the comparison makes it a bool.
        won = record.arrays["wins"][:wins].view(np.uint8) != 0
        made_ns = time.monotonic_ns() - age_ns
        metrics = record.arrays["metrics"][:returns].tolist() if "metrics" in record.arrays else []
        of_each, lengths = (record.arrays[name][:returns].tolist() for name in ("returns", "lengths"))
        return cls(samples, made_ns, of_each, won.tolist(), metrics, lengths)


def ended(fields: Mapping[str, npt.NDArray[Any]], name: str) -> list[Any]:
    """Values of a field where episodes ended in a fragment, in the order they ended; none without the field.

    Args:
        fields: ``[T, N, ...]`` by name; ``episode_return`` is NaN where no episode ended.
    """
    return fields[name][~np.isnan(fields["episode_return"])].tolist() if name in fields else []

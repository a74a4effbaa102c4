"""The unit of data: T steps of N environments in one contiguous block of memory.

Every process derives the same ``FragmentLayout`` from the agent and the spaces before anything
starts, so a fragment needs no serialisation: the actor writes numpy views over loaned memory and
the learner reads numpy views over what it claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.wire.blocks import aligned, fingerprint_of, mismatch

MAGIC: Final = 0x544A4652  # "TJFR"
SCHEMA: Final = 1

HEADER: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("schema", "<u4"),
        ("job", "<u8"),
        ("layout", "<u8"),
        ("actor", "<u4"),
        ("incarnation", "<u4"),
        ("sequence", "<u8"),
        ("before", "<u8"),
        ("version", "<i8"),
        ("samples", "<u8"),
        ("age_ns", "<i8"),
    ]
)
"""Fixed header of a fragment: who made it (actor, incarnation, sequence), with which policy
(version), how many of its T x N steps are experience (samples), how many those of all earlier fragments
of the incarnation were (before), and how long before the push its first step began (age_ns: hosts share no
clock)."""

MOST_AGE_NS: Final = 1 << 60
"""No fragment takes 36 years; beyond that, sums of times would leave their 64 bits."""


def common_fields(
    observation: gym.Space[Any], stack: int = 1, *, winnable: bool = False
) -> tuple[FieldSpec, ...]:
    """Fields of every fragment, whatever the agent: what the environments said, and returns of episodes.

    Args:
        observation: space of one observation, as an environment gives it.
        stack: how many observations in a row an agent sees as one; each is stored once.
        winnable: the environments say of episodes that end whether they were won.
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
        FieldSpec("episode_return", number),
        *((FieldSpec("won", flag),) if winnable else ()),
    )


@dataclass(frozen=True)
class FragmentLayout:
    """Where each field of a fragment lies.

    Attributes:
        steps: T, steps of each environment.
        num_envs: N, environments of one actor.
        fields: what is recorded, in the order it is laid out.
    """

    steps: int
    num_envs: int
    fields: tuple[FieldSpec, ...]

    def __post_init__(self) -> None:
        """Refuse what has no layout.

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
    def offsets(self) -> dict[str, int]:
        """First byte of each field, counted from the start of the header."""
        offsets: dict[str, int] = {}
        start = aligned(HEADER.itemsize)
        for field in self.fields:
            offsets[field.name] = start
            start += aligned(math.prod(self.shape(field)) * field.dtype.itemsize)
        return offsets

    @cached_property
    def nbytes(self) -> int:
        """Size of a fragment with its header, in bytes."""
        sizes = (math.prod(self.shape(field)) * field.dtype.itemsize for field in self.fields)
        return aligned(HEADER.itemsize) + sum(aligned(size) for size in sizes)

    @cached_property
    def fingerprint(self) -> int:
        """64-bit hash that two processes share only if they agree on every field."""
        fields = ((f.name, f.dtype.descr, f.shape, f.bootstrap, f.history, f.once) for f in self.fields)
        return fingerprint_of(repr(((SCHEMA, self.steps, self.num_envs), *fields)))

    def views(self, memory: memoryview) -> dict[str, npt.NDArray[Any]]:
        """Zero-copy arrays over a fragment's memory, by field name."""
        return {
            field.name: np.ndarray(self.shape(field), field.dtype, memory, self.offsets[field.name])
            for field in self.fields
        }


class Fragment:
    """Views over one fragment's memory; owns nothing.

    Args:
        layout: how the memory is divided.
        memory: at least ``layout.nbytes`` bytes.
    """

    __slots__ = ("fields", "header", "layout", "memory")

    def __init__(self, layout: FragmentLayout, memory: memoryview) -> None:
        self.layout = layout
        self.memory = memory
        self.header = np.ndarray((), HEADER, memory)
        self.fields = layout.views(memory)

    def stamp(
        self, *, job: int, actor: int, incarnation: int, sequence: int, before: int, version: int
    ) -> None:
        """Write who makes this fragment and with which policy; ``samples`` and times come later."""
        self.header[...] = (
            MAGIC, SCHEMA, job, self.layout.fingerprint, actor, incarnation, sequence, before, version, 0, 0,
        )  # fmt: skip

    @property
    def source(self) -> tuple[int, int]:
        """(number, incarnation) of the actor that made it."""
        return int(self.header["actor"]), int(self.header["incarnation"])

    def refusal(self, job: int, actors: Sequence[int]) -> str | None:
        """Say why this is no fragment of the job by one of these actors, or None if it is one."""
        header = self.header
        expected = {"magic": MAGIC, "schema": SCHEMA, "job": job, "layout": self.layout.fingerprint}
        if (found := mismatch(header, expected)) is not None:
            return found
        if int(header["actor"]) not in actors:
            return f"its actor {int(header['actor'])} does not live there"
        capacity = self.layout.steps * self.layout.num_envs
        if int(header["samples"]) > capacity:
            return f"it claims {int(header['samples'])} samples where {capacity} fit"
        if not 0 <= int(header["age_ns"]) < MOST_AGE_NS:
            return f"it claims an age of {int(header['age_ns'])} ns"
        return None


def job_number(job: str) -> int:
    """The job's id as the header carries it."""
    return fingerprint_of(job)

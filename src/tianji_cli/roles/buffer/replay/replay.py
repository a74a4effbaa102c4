"""The replay: stores fragments in their order of arrival, and draws batches of samples from them.

Receiving is storing: the caller takes a fragment into ``free``, checks it, and calls ``accept``, or takes the
next fragment to the same place. A replay knows no processes and no transport.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.config.schema import Unroll
from tianji_cli.roles.buffer.replay.memory import ReplayMemory, ReplayRing, Rows, place_for
from tianji_cli.roles.buffer.replay.samplers import find_sampler
from tianji_cli.roles.buffer.replay.samples import SampleIndex, Sequences, Transitions
from tianji_cli.roles.buffer.replay.unrolls import Unrolls
from tianji_cli.wire.batches import BatchView
from tianji_cli.wire.fragment import EPISODE_STEPS, FragmentLayout
from tianji_cli.wire.reports import Pending, Spread

MOST: Final = 255
"""Largest count of uses: each count has one byte."""


class UseCounts:
    """Counts the uses of each held sample; the histogram also covers evicted samples.

    Attributes:
        total: uses of all samples, also those beyond the largest count.
    """

    def __init__(self, places: int) -> None:
        self.total = 0
        self._counts = np.zeros(places, np.uint8)
        self._histogram = np.zeros(MOST + 1, np.int64)
        self._pending = Pending(self._count)

    @property
    def counts(self) -> npt.NDArray[np.uint8]:
        """Uses of the sample at each place."""
        self._pending.flush()
        return self._counts

    @property
    def histogram(self) -> npt.NDArray[np.int64]:
        """Samples by their number of uses, ``[MOST + 1]``."""
        self._pending.flush()
        return self._histogram

    def begin(self, places: slice, samples: int) -> None:
        """Reset the places of a fragment for so many new samples."""
        self._pending.flush()
        self._counts[places] = 0
        self._histogram[0] += samples

    def use(self, places: npt.NDArray[np.intp]) -> None:
        """Count the uses of a batch; a place that occurs twice counts twice."""
        self.total += places.size
        self._pending.add(places)

    def _count(self, places: npt.NDArray[np.intp]) -> None:
        used, times = np.unique(places, return_counts=True)
        before = self._counts.take(used).astype(np.intp)
        after = np.minimum(before + times, MOST)
        self._counts[used] = after
        self._histogram -= np.bincount(before, minlength=MOST + 1)
        self._histogram += np.bincount(after, minlength=MOST + 1)

    def summary(self) -> Spread | None:
        """Return mean, median, 95th percentile and maximum over all samples so far; None without samples."""
        histogram = self.histogram
        samples = int(histogram.sum())
        if samples == 0:
            return None
        cumulative = np.cumsum(histogram)
        return Spread(
            mean=self.total / samples,
            p50=float(np.searchsorted(cumulative, 0.50 * samples)),
            p95=float(np.searchsorted(cumulative, 0.95 * samples)),
            max=float(np.flatnonzero(histogram)[-1]),
        )


PRIORITY: Final = "priority"
"""Field of a fragment with the actor's first priorities of its samples, ``[T, N]`` float32."""

KEPT: Final = ("observation", "reward")
"""Fields, beside the agent's, that every batch needs."""

_OF_ENDS: Final = ("episode_return", EPISODE_STEPS, "won", "metrics")
READ_ONCE: Final = ("terminated", "truncated", "mask", *_OF_ENDS, PRIORITY)
"""Fields that the replay does not read after it has accepted a fragment."""


@dataclass(frozen=True)
class ReplaySettings:
    """Settings of a replay, from ``distribution.buffer`` and the update rule.

    Samples are sequences of up to ``sequence_steps``, or unrolls, or, if both are None, transitions of up to
    ``n_step``.
    """

    capacity: int
    sampler: str
    n_step: int = 1
    gamma: float = 1.0
    sequence_steps: int | None = None
    unroll: Unroll | None = None
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4
    importance_steps: int | None = None
    memory: Literal["auto", "ram", "mmap"] = "auto"


@dataclass(frozen=True)
class ReplayBytes:
    """Bytes of a replay: its fragments, in RAM or in a file, and the bookkeeping, always in RAM."""

    memory: int
    bookkeeping: int

    @property
    def total(self) -> int:
        """Sum of both."""
        return self.memory + self.bookkeeping

    def place(self, settings: ReplaySettings, directory: Path | None, replays: int = 1) -> Path | None:
        """Decide where the fragments lie: in a file in the returned directory, or, if None, in RAM.

        Args:
            replays: number of replays that have to fit together.

        Raises:
            ReplayMemoryError: the replays fit nowhere, or not where the settings want them.
        """
        in_ram, in_file = replays * self.total, replays * self.memory
        return place_for(settings.memory, in_ram, in_file, settings.capacity, directory, replays)


def kept_first(fields: Iterable[FieldSpec]) -> tuple[FieldSpec, ...]:
    """Order a fragment's fields so that fields which are read once take no memory in a replay."""
    return tuple(sorted(fields, key=lambda field: field.name in READ_ONCE))


def bytes_of(layout: FragmentLayout, settings: ReplaySettings, agent_fields: tuple[str, ...]) -> ReplayBytes:
    """Return the exact bytes that a ``Replay`` will take."""
    ring = ReplayRing(layout, settings.capacity, (*KEPT, *agent_fields))
    bookkeeping = (
        _index_type(settings).bookkeeping_bytes(layout, ring.slots) + ring.slot_steps + ring.slots * 24
    )
    return ReplayBytes(ring.nbytes, bookkeeping + find_sampler(settings.sampler).bytes_for(ring.slot_steps))


class Replay:
    """Holds the newest fragments and draws from them.

    Args:
        agent_fields: names of the agent's fields in a batch.
        directory: directory for a file of the memory; None allows only RAM.
        env_steps: env steps of the job before this replay began.

    Attributes:
        nbytes: bytes that the replay takes.
        accepted: samples accepted so far.
        accepted_by: samples accepted up to each slot's fragment, itself included.
        stale_updates: priorities that came for evicted samples.

    Raises:
        ReplayMemoryError: memory or disk have too little room.
        ValueError: the settings contradict themselves or the layout.
    """

    def __init__(
        self,
        layout: FragmentLayout,
        settings: ReplaySettings,
        *,
        agent_fields: tuple[str, ...],
        seed: int,
        directory: Path | None = None,
        env_steps: int = 0,
    ) -> None:
        specs = {spec.name: spec for spec in layout.fields}
        self.layout, self.settings, self.agent_fields = layout, settings, agent_fields
        self.ring = ReplayRing(layout, settings.capacity, (*KEPT, *agent_fields))
        self.ring.env_steps = env_steps
        size = bytes_of(layout, settings, agent_fields)
        self.nbytes = size.total
        self.memory = ReplayMemory(self.ring, size.place(settings, directory))
        self.index = _index(settings, self.memory)
        sampler = find_sampler(settings.sampler)
        own = {name: getattr(settings, name) for name in sampler.settings}
        self.sampler = sampler(self.ring, self.index.starts, seed, **own)
        self.uses = UseCounts(self.ring.slot_steps)
        self.accepted = 0
        self.stale_updates = 0
        self._samples = np.zeros(self.ring.slots, np.int64)
        self._versions = np.zeros(self.ring.slots, np.int64)
        self.accepted_by = np.zeros(self.ring.slots, np.int64)
        # The index gathers fields that are recorded once in a fragment: it knows where a sample begins.
        self._fields = {name: Rows(self.memory, specs[name]) for name in agent_fields if not specs[name].once}
        self._priorities = self._first_priorities(specs.get(PRIORITY))

    @property
    def size(self) -> int:
        """Number of held samples: steps that are experience."""
        return self.ring.samples

    @property
    def steps_given_up(self) -> int | None:
        """Steps that were evicted before they were part of a sample; None if each step begins one."""
        return self.index.steps_given_up

    @property
    def free(self) -> memoryview:
        """Memory of the next fragment; the replay has already evicted its former contents."""
        return self.memory.slot(self.ring.slot(self.ring.next))

    def accept(self) -> None:
        """Add the fragment in ``free`` to the replay; a full replay evicts its oldest one."""
        insertion = self.ring.next
        evicted = self.ring.oldest
        self.ring.next += 1
        if evicted < self.ring.oldest:
            self._evict(evicted)
        slot = self.ring.slot(insertion)
        samples, complete = self.index.accept(insertion)
        self._samples[slot] = samples
        self._versions[slot] = self.memory.headers[slot]["version"]
        self.ring.samples += samples
        self.ring.env_steps += samples
        self.accepted += samples
        self.accepted_by[slot] = self.accepted
        self.uses.begin(self.ring.steps(insertion), samples)
        if complete is not None:
            known = (
                None if self._priorities is None else self._priorities[self.ring.slot(complete)].reshape(-1)
            )
            self.sampler.accept(complete, known)

    @property
    def drawable(self) -> bool:
        """Whether there is a sample: a step of experience, or a complete sequence or unroll."""
        return self.ring.drawable > 0

    def sample(self, into: BatchView) -> None:
        """Draw a batch, with replacement.

        Raises:
            ValueError: the replay has no samples.
        """
        if not self.drawable:
            raise ValueError("an empty replay has no batches")
        self.sampler.draw(into.key, into.weight)
        places = into.key % self.ring.slot_steps
        slots, rows = np.divmod(places, self.ring.steps_each)
        self._versions.take(slots, out=into.version, mode="clip")
        np.subtract(self.accepted, self.accepted_by.take(slots), out=into.age)
        slots, rows, used = self.index.gather(places, slots, rows, into)
        for name, field in self._fields.items():
            field.gather(slots, rows, into.arrays[f"fields/{name}"])
        self.uses.use(used)

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.float32]) -> None:
        """Give samples new priorities; this counts and skips samples that have been evicted meanwhile.

        Raises:
            DivergedError: a priority is not finite.
        """
        each = self.ring.steps_each
        held = (keys >= self.ring.oldest * each) & (keys < self.ring.next * each)
        stale = keys.size - int(np.count_nonzero(held))
        if stale:
            self.stale_updates += stale
            keys, priorities = keys[held], priorities[held]
        self.sampler.update(keys % self.ring.slot_steps, priorities)

    def restore(
        self,
        oldest: int,
        *,
        predecessors: npt.NDArray[np.int64],
        accepted_by: npt.NDArray[np.int64],
        accepted: int,
        env_steps: int,
        stale_updates: int,
        steps_given_up: int,
        sampler: Mapping[str, Any],
    ) -> None:
        """Register fragments, uses and priorities that lie in their places already; see ``file.py``.

        Args:
            oldest: insertion index of the first fragment.
            predecessors: predecessor of each fragment, counted from ``oldest``, or ``NONE``.
            accepted_by: samples accepted up to each fragment, itself included.

        Raises:
            ValueError: the numbers contradict themselves.
        """
        ring, headers = self.ring, self.memory.headers
        self.index.restore(oldest, predecessors)
        ring.first, ring.next = oldest, oldest + len(predecessors)
        for insertion in range(oldest, ring.next):
            slot = ring.slot(insertion)
            self._versions[slot] = headers[slot]["version"]
            self._samples[slot] = headers[slot]["samples"]
            self.accepted_by[slot] = accepted_by[insertion - oldest]
        ring.samples = int(self._samples.sum())
        self.accepted, ring.env_steps, self.stale_updates = accepted, env_steps, stale_updates
        if self.index.steps_given_up is not None:
            self.index.steps_given_up = steps_given_up
        self.sampler.load_state(sampler)

    def _first_priorities(self, spec: FieldSpec | None) -> npt.NDArray[np.float32] | None:
        if spec is None or self.settings.unroll is not None:
            return None  # The priority of a step is not that of the unroll that begins with it.
        if spec != FieldSpec(PRIORITY, np.dtype(np.float32)):
            raise ValueError(f"a fragment's {PRIORITY!r} is float32 [T, N]; {spec} is not")
        return self.memory.field(spec)

    def _evict(self, insertion: int) -> None:
        slot = self.ring.slot(insertion)
        self.ring.samples -= int(self._samples[slot])
        self.sampler.evict(insertion)
        self.index.evict(insertion)


def _index_type(settings: ReplaySettings) -> type[Transitions | Sequences | Unrolls]:
    if settings.unroll is not None:
        return Unrolls
    return Transitions if settings.sequence_steps is None else Sequences


def _index(settings: ReplaySettings, memory: ReplayMemory) -> SampleIndex:
    index = _index_type(settings)
    if index not in find_sampler(settings.sampler).draws_from:
        raise ValueError(f"a sampler {settings.sampler!r} has no use for {index.__name__.lower()}")
    if settings.unroll is not None:
        return Unrolls(memory, settings.unroll)
    if settings.sequence_steps is not None:
        return Sequences(memory, settings.sequence_steps)
    return Transitions(memory, settings.n_step, settings.gamma)

"""The samples in a ring of fragments: n-step transitions or sequences, with stacks of observations.

**Transitions.** An environment is reset on the step after an episode's end, and that step is no experience
(its mask is off). So the observation after a step is always the next row, and the one after an episode's last
step is the true final observation. A transition of step (t, n) covers up to n steps of the same environment,
stops after a step that ends the episode, and continues in the same actor's next fragment if that fragment has
arrived and none between was lost.

**Sequences.** A sequence begins with an episode, or with the step after another sequence if the episode
goes on. It ends with the episode, with its L-th step, or where a fragment was lost or the actor began anew.

**Stacks.** The index gathers a stack as a policy saw it, from a replay that holds each observation once. The
observations of a fragment begin with a stack's history: row ``t + j`` is plane j of the stack at step t.
Planes from before the episode are zeros. The history stores them as zeros; after an episode's end within the
fragment, one small number for each row counts them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.config.schema import MOST_IN_SEQUENCE, MOST_STEPS
from tianji_cli.roles.buffer.replay.memory import NONE, Indices, Links, ReplayMemory, Rows
from tianji_cli.wire.batches import BatchView
from tianji_cli.wire.fragment import FragmentLayout

TERMINATED: Final = 128
"""Bit in ``starts``: the last step of the sample terminated the episode."""

Flags = npt.NDArray[np.bool_]
Starts = npt.NDArray[np.uint8]


class SampleIndex(ABC):
    """Knows the samples of a replay; the place of a sample is that of its first step.

    Attributes:
        starts: a number for each step of each slot; 0 if no sample begins with the step.
        links: links between consecutive fragments of an actor.
        steps_given_up: steps that were evicted before they were part of a sample; None if each begins one.
    """

    steps_given_up: int | None = None

    def __init__(self, memory: ReplayMemory) -> None:
        ring = memory.ring
        specs = {spec.name: spec for spec in ring.layout.fields}
        self.starts: Starts = np.zeros(ring.slot_steps, np.uint8)
        self.links = Links(memory)
        self._ring, self._layout, self._headers = ring, ring.layout, memory.headers
        self._flags = [memory.field(specs[name], np.uint8) for name in ("mask", "terminated", "truncated")]
        self._rewards = Rows(memory, specs["reward"])

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """Arrays that a checkpoint saves, by name, with the number of items of a slot."""
        return {"spans": (self.starts, self._ring.steps_each)}

    @abstractmethod
    def accept(self, insertion: int) -> tuple[int, int | None]:
        """Find the samples that a fragment begins or completes.

        Returns:
            The number of steps that are experience, and the insertion index of the fragment whose samples can
            all be drawn from now on; None if samples become drawable one by one.
        """

    def evict(self, insertion: int) -> None:
        """Remove the samples that begin in a fragment."""
        starts = self.starts[self._ring.steps(insertion)]
        self._ring.drawable -= int(np.count_nonzero(starts))
        starts[:] = 0

    def restore(self, oldest: int, predecessors: npt.NDArray[np.int64]) -> None:
        """Register the fragments from ``oldest`` on, whose per-step numbers are in place; see ``Links``."""
        self.links.restore(oldest, predecessors)
        self._ring.drawable = int(np.count_nonzero(self.starts))

    @abstractmethod
    def gather(
        self, places: Indices, slots: Indices, rows: Indices, into: BatchView
    ) -> tuple[Indices, Indices, Indices]:
        """Write all but the agent's fields of the samples that begin at steps ``rows`` of ``slots``.

        Args:
            places: places of the first steps, ``[B]``.
            slots: slots of the first steps, ``[B]``.
            rows: t x N + n of the first steps, ``[B]``.
            into: the batch.

        Returns:
            Slots and rows of the steps whose fields the batch has, and places of the steps that it uses.
        """


MOST_STACKED = 255


class Stacks:
    """Gathers stacks of one field.

    Args:
        spec: the field; a stack has one row more than its history.

    Attributes:
        blank: for each row 0 to T of each slot, ``[slots * (T + 1) * N]``, the number of oldest planes of
            its stack that are from before the episode and not stored as zeros.
    """

    def __init__(self, memory: ReplayMemory, spec: FieldSpec) -> None:
        self._stack = spec.history + 1
        if self._stack > MOST_STACKED:
            raise ValueError(f"a stack of {self._stack} observations is none of at most {MOST_STACKED}")
        layout = memory.ring.layout
        self._num_envs = layout.num_envs
        self.rows_each = rows_each(layout)
        self.blank = np.zeros(memory.ring.slots * self.rows_each, np.uint8)
        self._rows = Rows(memory, spec)
        self._planes = np.arange(self._stack)

    def accept(self, slot: int, mask: npt.NDArray[np.bool_]) -> None:
        """Find the episode ends in a slot's fragment; ``mask [T, N]`` is True for steps of experience."""
        steps = len(mask)
        blank = np.zeros((steps + 1, self._num_envs), np.uint8)
        # A step that only resets an environment leads to the first observation of its next episode.
        for since in range(1, min(self._stack, steps + 1)):
            first = ~mask[: steps + 1 - since]
            np.maximum(blank[since:], first * np.uint8(self._stack - since), out=blank[since:])
        self.blank[slot * self.rows_each : (slot + 1) * self.rows_each] = blank.reshape(-1)

    def gather(self, slots: Indices, rows: Indices, into: npt.NDArray[np.generic]) -> None:
        """Copy the stacks at ``rows[B]`` (t x N + n) of ``slots[B]`` to ``into[B, S, ...]``."""
        every = rows[:, None] + self._planes * self._num_envs
        self._rows.gather(np.repeat(slots[:, None], self._stack, axis=1), every, into)
        blank = self.blank.take(slots * self.rows_each + rows)
        for sample in np.flatnonzero(blank).tolist():
            into[sample, : blank[sample]] = 0


def rows_each(layout: FragmentLayout) -> int:
    """Return the rows of observations in a fragment, with the one after the last step."""
    return (layout.steps + 1) * layout.num_envs


def blank_bytes(layout: FragmentLayout, slots: int) -> int:
    """Return the bytes of ``Stacks.blank``; 0 if a policy sees single observations."""
    (spec,) = (field for field in layout.fields if field.name == "observation")
    return slots * rows_each(layout) if spec.history else 0


LENGTH: Final = MOST_STEPS
"""Bit mask of the transition length in ``starts``."""


class Transitions(SampleIndex):
    """Knows the length of each step's transition, and gathers transitions.

    Args:
        n_step: n, the most steps of a transition.

    Attributes:
        starts: transition length of each step of each slot (0 if the step is no experience), plus
            ``TERMINATED`` if the last step of the transition terminated the episode.
        stacks: gathers stacks of observations; None if a policy sees single ones.
    """

    def __init__(self, memory: ReplayMemory, n_step: int, gamma: float) -> None:
        if not 1 <= n_step <= LENGTH:
            raise ValueError(f"a transition has 1 to {LENGTH} steps, not {n_step}")
        super().__init__(memory)
        specs = {spec.name: spec for spec in self._layout.fields}
        self._n_step = n_step
        self._going: dict[int, Flags] = {}  # By actor: its last step is experience and ends no episode.
        observation = specs["observation"]
        self.stacks = Stacks(memory, observation) if observation.history else None
        self._observations = self.stacks or Rows(memory, observation)
        self._sums = memory.field(specs["reward"])
        self._discounts = _discounts(gamma)

    @staticmethod
    def bookkeeping_bytes(layout: FragmentLayout, slots: int) -> int:
        """Return the bytes of the index of so many slots."""
        starts = slots * layout.steps * layout.num_envs
        return starts + Links.bookkeeping_bytes(slots) + blank_bytes(layout, slots)

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """See ``SampleIndex.by_slot``."""
        arrays = {**super().by_slot}
        if self.stacks is not None:
            arrays["blank"] = (self.stacks.blank, self.stacks.rows_each)
        return arrays

    def accept(self, insertion: int) -> tuple[int, int | None]:
        """Measure a fragment's transitions, and extend those of its predecessors that continue in it."""
        slot, steps = self._ring.slot(insertion), self._ring.steps(insertion)
        mask, terminated, truncated = (flag[slot] != 0 for flag in self._flags)
        ended = terminated | truncated
        rewards = self._sums[slot]
        prefixes = self._prefixes(rewards)
        starts = self._measured(mask, terminated, ended, rewards)
        self.starts[steps] = starts.reshape(-1)
        if self.stacks is not None:
            self.stacks.accept(slot, mask)
        actor, before = int(self._headers[slot]["actor"]), self.links.accept(insertion)
        if before != NONE:
            self._lengthen(before, self._going[actor], starts[0], prefixes)
        self._going[actor] = mask[-1] & ~ended[-1]
        samples = int(np.count_nonzero(mask))
        self._ring.drawable += samples
        return samples, insertion

    def gather(
        self, places: Indices, slots: Indices, rows: Indices, into: BatchView
    ) -> tuple[Indices, Indices, Indices]:
        """See ``SampleIndex.gather``; the agent's fields are those of the first step."""
        arrays = into.arrays
        starts = self.starts.take(places)
        self._discounts.take(starts, out=arrays["discount"], mode="clip")
        lengths = (starts & LENGTH).astype(np.intp)
        self._observations.gather(slots, rows, arrays["observation"])
        self._rewards.gather(slots, rows, arrays["reward"])
        lengths *= self._layout.num_envs
        lengths += rows
        observed = self._ring.steps_each + self._layout.num_envs
        self._observations.gather(*self._follow(slots, lengths, observed), arrays["next_observation"])
        return slots, rows, places

    def _measured(
        self, mask: Flags, terminated: Flags, ended: Flags, rewards: npt.NDArray[np.float32]
    ) -> Starts:
        """Return ``starts`` of a fragment's steps ``[T, N]``, as far as known without its successor.

        Args:
            mask: steps of experience, ``[T, N]`` as all arguments.
            terminated: flags of the environment.
            ended: terminated or truncated.
            rewards: overwritten by the discounted sum of each step's transition.
        """
        lengths = mask.astype(np.uint8)
        last_terminated = mask & terminated
        going = mask & ~ended
        sums = rewards.copy()
        for later in range(1, min(self._n_step, len(mask))):
            going = going[: len(mask) - later] & mask[later:]
            lengths[:-later] += going
            sums[:-later] += self._discounts[later] * rewards[later:] * going
            last_terminated[:-later] |= going & terminated[later:]
            going &= ~ended[later:]
        lengths += last_terminated * np.uint8(TERMINATED)
        rewards[...] = sums
        return lengths

    def _prefixes(self, rewards: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Discount and sum the first 0, 1, 2, ... of a fragment's rewards ``[T, N]``: ``[m + 1, N]``."""
        most = min(self._n_step - 1, len(rewards))
        prefixes = np.zeros((most + 1, rewards.shape[1]), np.float32)
        np.cumsum(self._discounts[:most, None] * rewards[:most], axis=0, out=prefixes[1:])
        return prefixes

    def _lengthen(self, before: int, going: Flags, first: Starts, prefixes: npt.NDArray[np.float32]) -> None:
        """Continue the transitions that reached the end of a fragment in the next one.

        Args:
            before: insertion index of the fragment whose end the transitions reached.
            going: environments whose episode continues, ``[N]``.
            first: ``starts`` of the next fragment's first row, ``[N]``.
            prefixes: discounted sums of the next fragment's first rewards.
        """
        steps, envs = self._layout.steps, self._layout.num_envs
        more, terminates = first & LENGTH, first & TERMINATED
        earlier, behind = before, 0
        while behind < self._n_step - 1 and earlier >= self._ring.oldest:
            rows = min(steps, self._n_step - 1 - behind)
            starts = self.starts[self._ring.steps(earlier)].reshape(steps, envs)[steps - rows :]
            to_the_end = np.arange(behind + rows, behind, -1).astype(np.uint8)[:, None]
            lengths = to_the_end + more
            longer = np.minimum(lengths, self._n_step) + np.where(lengths <= self._n_step, terminates, 0)
            goes_on = (starts == to_the_end) & going
            added = np.minimum(more, self._n_step - to_the_end)
            gains = self._discounts[to_the_end] * prefixes[added, np.arange(envs)]
            sums = self._sums[self._ring.slot(earlier)][steps - rows :]
            np.add(sums, gains, out=sums, where=goes_on)
            np.copyto(starts, longer, "unsafe", goes_on)
            behind += steps
            earlier = int(self.links.predecessor[self._ring.slot(earlier)])

    def _follow(self, slots: Indices, rows: Indices, known: int) -> tuple[Indices, Indices]:
        """Turn rows behind the first ``known`` of a fragment into rows of the fragments that follow it."""
        beyond = rows >= known
        if not beyond.any():
            return slots, rows
        slots = slots.copy()
        while beyond.any():
            slots[beyond] = self.links.successor[slots[beyond]]
            rows[beyond] -= self._ring.steps_each
            beyond = rows >= known
        return slots, rows


def _discounts(gamma: float) -> npt.NDArray[np.float32]:
    """Return the discount of the next observation's value, by the number in ``starts``."""
    discounts = np.zeros(256, np.float32)
    discounts[:TERMINATED] = gamma ** np.arange(TERMINATED)
    return discounts


BEGINS: Final = 1
"""Bit in ``starts``: a sequence begins with the step."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Open:
    """The incomplete sequences of an actor, one in each environment.

    Attributes:
        begin: key of the first step, ``[N]``.
        length: steps so far, ``[N]``; 0 if no sequence has begun.
    """

    begin: Numbers
    length: Numbers


@dataclass(frozen=True)
class _Stretches:
    """Stretches: consecutive steps of one episode within a fragment, all experience. ``[S]`` each.

    Attributes:
        column: n of the environment.
        row: t of the first step.
        steps: number of steps.
        closed: the episode ends with the stretch, as far as the fragment shows.
        terminated: the last step terminated the episode.
    """

    column: Numbers
    row: Numbers
    steps: Numbers
    closed: Flags
    terminated: Flags

    @classmethod
    def of(cls, mask: Flags, terminated: Flags, truncated: Flags) -> _Stretches:
        """Find the stretches in a fragment's flags, ``[T, N]``."""
        going, terminal = mask.T, (terminated & mask).T
        ended = terminal | (truncated & mask).T
        first, last = going.copy(), ended.copy()
        first[:, 1:] &= ~going[:, :-1] | ended[:, :-1]
        last[:, :-1] |= going[:, :-1] & ~going[:, 1:]
        last[:, -1] = going[:, -1]
        begins, ends = np.flatnonzero(first), np.flatnonzero(last)
        steps = len(mask)
        column, row = np.divmod(begins, steps)
        closed = ended.reshape(-1)[ends] | (ends % steps != steps - 1)
        return cls(column, row, ends - begins + 1, closed, terminal.reshape(-1)[ends])


class Sequences(SampleIndex):
    """Knows the beginnings and lengths of sequences, and gathers them.

    Args:
        steps: L, the most steps of a sequence.

    Attributes:
        starts: for each step of each slot, ``BEGINS`` if a sequence begins with it, plus ``TERMINATED`` if
            the last step of the sequence terminated the episode.
        lengths: steps of the sequence that begins with each step.
        steps_given_up: steps of sequences whose first step was evicted before the sequence ended.

    Raises:
        ValueError: L is out of range, or fragments hold stacks of observations.
    """

    def __init__(self, memory: ReplayMemory, steps: int) -> None:
        if not 1 <= steps <= MOST_IN_SEQUENCE:
            raise ValueError(f"a sequence has 1 to {MOST_IN_SEQUENCE} steps, not {steps}")
        super().__init__(memory)
        (observation,) = (spec for spec in self._layout.fields if spec.name == "observation")
        if observation.history:
            raise ValueError("sequences are of single observations, and fragments hold stacks of them")
        self.lengths = np.zeros(self._ring.slot_steps, np.uint16)
        self.steps_given_up: int = 0
        self._most = steps
        self._numbers = np.arange(steps + 1)
        self._observations = Rows(memory, observation)
        self._open: dict[int, _Open] = {}

    @staticmethod
    def bookkeeping_bytes(layout: FragmentLayout, slots: int) -> int:
        """Return the bytes of the index of so many slots."""
        return slots * layout.steps * layout.num_envs * 3 + Links.bookkeeping_bytes(slots)

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """See ``SampleIndex.by_slot``."""
        return {**super().by_slot, "lengths": (self.lengths, self._ring.steps_each)}

    def accept(self, insertion: int) -> tuple[int, int | None]:
        """Complete the sequences that end in a fragment, or before it because it does not continue them."""
        slot = self._ring.slot(insertion)
        mask, terminated, truncated = (flag[slot] != 0 for flag in self._flags)
        actor, goes_on = int(self._headers[slot]["actor"]), self.links.accept(insertion) != NONE
        before = self._open.get(actor) or self._nothing()
        cut = before.length > 0
        if goes_on:
            cut &= ~mask[0]
        self._mark(before.begin[cut], before.length[cut], np.zeros(int(cut.sum()), np.bool_))
        stretches = _Stretches.of(mask, terminated, truncated)
        self._open[actor] = self._grow(insertion, stretches, before if goes_on else self._nothing())
        return int(np.count_nonzero(mask)), None

    def gather(
        self, places: Indices, slots: Indices, rows: Indices, into: BatchView
    ) -> tuple[Indices, Indices, Indices]:
        """See ``SampleIndex.gather``; rows behind a sequence's last step repeat that step."""
        arrays, each = into.arrays, self._ring.steps_each
        lengths = self.lengths.take(places).astype(np.intp)
        arrays["length"][:] = lengths
        np.not_equal(self.starts.take(places) & TERMINATED, 0, out=arrays["terminated"])
        beyond = self._numbers >= lengths[:, None]
        steps = np.minimum(self._numbers, lengths[:, None] - 1)
        steps *= self._layout.num_envs
        steps += rows[:, None]
        hops, within = np.divmod(steps, each)
        chains = self.links.chains(slots, int(hops.max()))
        every = chains[hops, np.arange(slots.size)[:, None]]
        # The row after a step is in the same fragment, even after a fragment's last step.
        self._observations.gather(every, within + beyond * self._layout.num_envs, arrays["observation"])
        every, within = every[:, :-1], within[:, :-1]
        self._rewards.gather(every, within, arrays["reward"])
        return every, within, (every * each + within)[~beyond[:, :-1]]

    def _nothing(self) -> _Open:
        nothing = np.zeros(self._layout.num_envs, np.int64)
        return _Open(nothing, nothing)

    def _grow(self, insertion: int, stretches: _Stretches, before: _Open) -> _Open:
        """Append a fragment's stretches to the open sequences, and make samples of complete ones.

        Returns:
            The sequences that are open after the fragment.
        """
        most, num_envs, column = self._most, self._layout.num_envs, stretches.column
        own = insertion * self._ring.steps_each + stretches.row * num_envs + column
        carried = np.where(stretches.row == 0, before.length[column], 0)
        total = carried + stretches.steps
        pieces = -(-total // most)
        of = np.repeat(np.arange(total.size), pieces)
        earlier = (np.arange(of.size) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * most
        length = np.minimum(total[of] - earlier, most)
        later = own[of] + (earlier - carried[of]) * num_envs
        begin = np.where((earlier == 0) & (carried[of] > 0), before.begin[column[of]], later)
        is_last = earlier + length == total[of]
        complete = (length == most) | stretches.closed[of]
        self._mark(begin[complete], length[complete], (is_last & stretches.terminated[of])[complete])
        after = _Open(np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64))
        columns = column[of][~complete]
        after.begin[columns], after.length[columns] = begin[~complete], length[~complete]
        return after

    def _mark(self, begin: Numbers, length: Numbers, terminated: Flags) -> None:
        """Make samples of complete sequences; give up those whose first step has been evicted."""
        held = begin >= self._ring.oldest * self._ring.steps_each
        places = begin[held] % self._ring.slot_steps
        self.starts[places] = np.where(terminated[held], BEGINS | TERMINATED, BEGINS)
        self.lengths[places] = length[held]
        self._ring.drawable += places.size
        self.steps_given_up += int(length[~held].sum())

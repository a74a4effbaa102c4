"""The samples in a ring of fragments: n-step transitions or sequences, with stacks of observations.

**Transitions.** Environments are reset on the step after an end, and that step is no experience (its mask
is off). So the observation after a step is always the next row, and that of an episode's last step is its
true last one. A transition of step (t, n) goes on for up to n steps of the same environment, stops after a
step that ends the episode, and continues in the same actor's next fragment if that has arrived and none
between was lost.

**Sequences.** A sequence begins with an episode, or with the step after another sequence if the episode
goes on. It ends with the episode, with its L-th step, or where a fragment was lost or the actor began anew.

**Stacks.** A stack is gathered as a policy saw it, from a replay that holds each observation once. The
observations of a fragment begin with a stack's history: row ``t + j`` is plane j of what was seen at step
t. Planes from before the episode are zeros. Those of the history are stored as zeros; of what came after an
end within the fragment, one small number a row says how many planes they are.
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
from tianji_cli.wire.batches import BatchArrays
from tianji_cli.wire.fragment import FragmentLayout

TERMINATED: Final = 128
"""Bit in ``starts``: the last step terminated the episode."""

Flags = npt.NDArray[np.bool_]
Starts = npt.NDArray[np.uint8]


class SampleIndex(ABC):
    """Knows the samples of a replay; each has its place at its first step.

    Attributes:
        starts: of each step of each slot; 0: no sample begins with it.
        links: which fragments go on from one another.
        steps_given_up: steps that were evicted before they were part of a sample; None where each begins one.
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
        """Arrays with a place for each slot, by name, and how many items a slot has: what is saved."""
        return {"spans": (self.starts, self._ring.steps_each)}

    @property
    def nbytes(self) -> int:
        """Size of what is kept beside the fragments."""
        return self.links.nbytes + sum(array.nbytes for array, _ in self.by_slot.values())

    @abstractmethod
    def accept(self, insertion: int) -> tuple[int, int | None]:
        """Find the samples that a fragment begins or completes.

        Returns:
            How many steps are experience; and the insertion of the fragment whose samples can all be drawn
            from now on, None where they come one by one.
        """

    def evict(self, insertion: int) -> None:
        """Let no sample begin in a fragment any more."""
        starts = self.starts[self._ring.steps(insertion)]
        self._ring.drawable -= int(np.count_nonzero(starts))
        starts[:] = 0

    def restore(self, oldest: int, predecessors: npt.NDArray[np.int64]) -> None:
        """Know the fragments from number ``oldest`` on, whose numbers are in their places; see ``Links``."""
        self.links.restore(oldest, predecessors)
        self._ring.drawable = int(np.count_nonzero(self.starts))

    @abstractmethod
    def gather(
        self, places: Indices, slots: Indices, rows: Indices, into: BatchArrays
    ) -> tuple[Indices, Indices, Indices]:
        """Write all but the agent's fields of the samples that begin at steps ``rows`` of ``slots``.

        Args:
            places: of their first steps, ``[B]``.
            slots: where these lie, ``[B]``.
            rows: t x N + n, ``[B]``.
            into: the batch.

        Returns:
            Slots and rows of the steps whose fields the batch has, and places of the steps that are used.
        """


MOST_STACKED = 255


class Stacks:
    """Gathers stacks of one field.

    Args:
        spec: which field; its history says how many rows make a stack.

    Attributes:
        blank: of each row 0 to T of each slot, ``[slots * (T + 1) * N]``: how many planes of what was seen
            there, the oldest, are from before the episode and not stored as zeros.
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
        """Find the ends in a slot's fragment; ``mask [T, N]`` is True for steps of experience."""
        steps = len(mask)
        blank = np.zeros((steps + 1, self._num_envs), np.uint8)
        # What only resets an environment leads to the first observation of its next episode.
        for since in range(1, min(self._stack, steps + 1)):
            first = ~mask[: steps + 1 - since]
            np.maximum(blank[since:], first * np.uint8(self._stack - since), out=blank[since:])
        self.blank[slot * self.rows_each : (slot + 1) * self.rows_each] = blank.reshape(-1)

    def gather(self, slots: Indices, rows: Indices, into: npt.NDArray[np.generic]) -> None:
        """Copy what was seen at ``rows[B]`` (t x N + n) of each of ``slots[B]`` to ``into[B, S, ...]``."""
        every = rows[:, None] + self._planes * self._num_envs
        self._rows.gather(np.repeat(slots[:, None], self._stack, axis=1), every, into)
        blank = self.blank.take(slots * self.rows_each + rows)
        for sample in np.flatnonzero(blank).tolist():
            into[sample, : blank[sample]] = 0


def rows_each(layout: FragmentLayout) -> int:
    """Rows of observations in a fragment, the one after the last step included."""
    return (layout.steps + 1) * layout.num_envs


def blank_bytes(layout: FragmentLayout, slots: int) -> int:
    """Size of what is kept beside the fragments: nothing where a policy sees single observations."""
    (spec,) = (field for field in layout.fields if field.name == "observation")
    return slots * rows_each(layout) if spec.history else 0


LENGTH: Final = MOST_STEPS
"""Bits in ``starts`` for the transition length."""


class Transitions(SampleIndex):
    """Knows how long each step's transition is, and gathers transitions.

    Args:
        n_step: n, steps of a transition at most.

    Attributes:
        starts: of each step of each slot: its transition length (0: the step is no experience),
            plus ``TERMINATED`` if the last of them terminated the episode.
        stacks: gathers observations where a policy sees stacks of them; None: it sees single ones.
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
        """Size of what is kept beside so many fragments."""
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
        """Measure a fragment's transitions, and those of its predecessors that now go on in it."""
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
        self, places: Indices, slots: Indices, rows: Indices, into: BatchArrays
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
        """Starts of a fragment's steps ``[T, N]``, as far as they are known without its successor.

        Args:
            mask: ``[T, N]``, as are the others.
            terminated: the environment's.
            ended: terminated or truncated.
            rewards: become the discounted sums of each step's transition.
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
        """Discounted sums of the first 0, 1, 2, ... of a fragment's rewards ``[T, N]``: ``[m + 1, N]``."""
        most = min(self._n_step - 1, len(rewards))
        prefixes = np.zeros((most + 1, rewards.shape[1]), np.float32)
        np.cumsum(self._discounts[:most, None] * rewards[:most], axis=0, out=prefixes[1:])
        return prefixes

    def _lengthen(self, before: int, going: Flags, first: Starts, prefixes: npt.NDArray[np.float32]) -> None:
        """Let transitions that reached the end of what was known go on in the next fragment.

        Args:
            before: insertion of the fragment that they reached the end of.
            going: where they did, ``[N]``.
            first: ``starts`` of the next one's first row, ``[N]``.
            prefixes: sums of its first rewards.
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
    """Discount of what follows, by the number in ``starts``."""
    discounts = np.zeros(256, np.float32)
    discounts[:TERMINATED] = gamma ** np.arange(TERMINATED)
    return discounts


BEGINS: Final = 1
"""Bit in ``starts``: a sequence begins with a step."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Open:
    """The sequences that an actor has begun, one in each environment.

    Attributes:
        begin: key of the first step, ``[N]``.
        length: steps so far, ``[N]``; 0: nothing was begun.
    """

    begin: Numbers
    length: Numbers


@dataclass(frozen=True)
class _Stretches:
    """Steps in a row of one environment within a fragment, all experience, of one episode. ``[S]`` each.

    Attributes:
        column: n, which environment's.
        row: t of the first step.
        steps: how many.
        closed: the episode does not go on after them, as far as it is known.
        terminated: it was terminated by the last of them.
    """

    column: Numbers
    row: Numbers
    steps: Numbers
    closed: Flags
    terminated: Flags

    @classmethod
    def of(cls, mask: Flags, terminated: Flags, truncated: Flags) -> _Stretches:
        """Find them in a fragment's flags, ``[T, N]``."""
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
    """Knows where sequences begin and how long they are, and gathers them.

    Args:
        steps: L, steps of a sequence at most.

    Attributes:
        starts: of each step of each slot: ``BEGINS`` if a sequence begins with it, plus ``TERMINATED`` if its
            last step terminated the episode.
        lengths: steps of the sequence that begins there.
        steps_given_up: of sequences whose first step was evicted before they ended.

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
        """Size of what is kept beside so many fragments."""
        return slots * layout.steps * layout.num_envs * 3 + Links.bookkeeping_bytes(slots)

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """See ``SampleIndex.by_slot``."""
        return {**super().by_slot, "lengths": (self.lengths, self._ring.steps_each)}

    def accept(self, insertion: int) -> tuple[int, int | None]:
        """Make samples of the sequences that end in a fragment, or before it since it does not go on."""
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
        self, places: Indices, slots: Indices, rows: Indices, into: BatchArrays
    ) -> tuple[Indices, Indices, Indices]:
        """See ``SampleIndex.gather``; what is behind a sequence's last step repeats that."""
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
        # The row after a step is in the same fragment: the last step of one has what it led to behind it.
        self._observations.gather(every, within + beyond * self._layout.num_envs, arrays["observation"])
        every, within = every[:, :-1], within[:, :-1]
        self._rewards.gather(every, within, arrays["reward"])
        return every, within, (every * each + within)[~beyond[:, :-1]]

    def _nothing(self) -> _Open:
        nothing = np.zeros(self._layout.num_envs, np.int64)
        return _Open(nothing, nothing)

    def _grow(self, insertion: int, stretches: _Stretches, before: _Open) -> _Open:
        """Append a fragment's stretches to what was open before it, and make samples of what is complete.

        Returns:
            What is open after it.
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
        """Make samples of sequences; those whose beginning was evicted meanwhile are given up."""
        held = begin >= self._ring.oldest * self._ring.steps_each
        places = begin[held] % self._ring.slot_steps
        self.starts[places] = np.where(terminated[held], BEGINS | TERMINATED, BEGINS)
        self.lengths[places] = length[held]
        self._ring.drawable += places.size
        self.steps_given_up += int(length[~held].sum())

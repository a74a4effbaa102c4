"""Whole episodes in a ring of fragments: sequences of steps, however many fragments they lie in.

A sequence begins with an episode, or with the step after another sequence if the episode goes on. It ends
with the episode, with its L-th step, or where a fragment was lost or the actor began anew. It is a sample
from then on, at the place of its first step, until that step's fragment is evicted; as fragments are
evicted in the order in which they came, the others that it lies in are held as long. One whose first step was
evicted before it ended never is a sample. What an actor is in the middle of is no sample yet, and will be
none in a replay that is restored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.buffer.replay.links import NONE, Links
from tianji_cli.roles.buffer.replay.memory import Indices, ReplayMemory, Rows
from tianji_cli.roles.buffer.replay.sample_index import TERMINATED, Flags, SampleIndex
from tianji_cli.wire.batches import BatchArrays
from tianji_cli.wire.fragment import FragmentLayout

BEGINS: Final = 1
"""Bit of a span that says that a sequence begins with a step."""

MOST_STEPS: Final = 65_535
"""Of a sequence: its length has two bytes."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Open:
    """What an actor is in the middle of in each environment.

    Attributes:
        begin: handle of the first step, ``[N]``.
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
        closed: the episode does not go on after them, as far as anybody knows.
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
        memory: the fragments.
        steps: L, steps of a sequence at most.

    Attributes:
        spans: of each step of each slot: ``BEGINS`` if a sequence begins with it, plus ``TERMINATED`` if its
            last step terminated the episode.
        lengths: steps of the sequence that begins there.
        steps_given_up: of sequences whose first step was evicted before they ended.

    Raises:
        ValueError: L is out of range, or fragments hold stacks of observations.
    """

    def __init__(self, memory: ReplayMemory, steps: int) -> None:
        if not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"a sequence has 1 to {MOST_STEPS} steps, not {steps}")
        super().__init__(memory)
        (observation,) = (spec for spec in self._layout.fields if spec.name == "observation")
        if observation.history:
            raise ValueError("sequences are of single observations, and fragments hold stacks of them")
        self.lengths = np.zeros(self._ring.span, np.uint16)
        self.steps_given_up = 0
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

    def accept(self, birth: int) -> int:
        """Make samples of the sequences that end in a fragment, or before it since it does not go on."""
        slot = self._ring.slot(birth)
        mask, terminated, truncated = (flag[slot] != 0 for flag in self._flags)
        actor, goes_on = int(self._headers[slot]["actor"]), self.links.accept(birth) != NONE
        before = self._open.get(actor) or self._nothing()
        cut = before.length > 0
        if goes_on:
            cut &= ~mask[0]
        self._mark(before.begin[cut], before.length[cut], np.zeros(int(cut.sum()), np.bool_))
        stretches = _Stretches.of(mask, terminated, truncated)
        self._open[actor] = self._grow(birth, stretches, before if goes_on else self._nothing())
        return int(np.count_nonzero(mask))

    def gather(
        self, places: Indices, slots: Indices, rows: Indices, into: BatchArrays
    ) -> tuple[Indices, Indices, Indices]:
        """See ``SampleIndex.gather``; what is behind a sequence's last step repeats that."""
        arrays, each = into.arrays, self._ring.steps_each
        lengths = self.lengths.take(places).astype(np.intp)
        arrays["length"][:] = lengths
        np.not_equal(self.spans.take(places) & TERMINATED, 0, out=arrays["terminated"])
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

    def _grow(self, birth: int, stretches: _Stretches, before: _Open) -> _Open:
        """Append a fragment's stretches to what was open before it, and make samples of what is complete.

        Returns:
            What is open after it.
        """
        most, num_envs, column = self._most, self._layout.num_envs, stretches.column
        own = birth * self._ring.steps_each + stretches.row * num_envs + column
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
        places = begin[held] % self._ring.span
        self.spans[places] = np.where(terminated[held], BEGINS | TERMINATED, BEGINS)
        self.lengths[places] = length[held]
        self._ring.drawable += places.size
        self.steps_given_up += int(length[~held].sum())

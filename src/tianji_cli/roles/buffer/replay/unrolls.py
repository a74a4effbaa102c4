"""Unrolls: consecutive steps of one environment, across the ends of episodes, for recurrent networks.

An unroll consists of whole consecutive fragments of one actor, because a fragment records the network's state
before its first step. So each environment of each fragment begins an unroll, which is complete once its last
fragment has come, and overlaps with the unrolls of the following fragments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.config.schema import Unroll
from tianji_cli.roles.buffer.replay.memory import NONE, Indices, Links, ReplayMemory, Rows
from tianji_cli.roles.buffer.replay.samples import SampleIndex
from tianji_cli.wire.batches import BatchView
from tianji_cli.wire.fragment import FragmentLayout

EXPERIENCE: Final = 1
"""Bit in ``flags``: the step is experience, and does not only reset its environment."""
TERMINATED: Final = 2
"""Bit in ``flags``: the step terminated its episode."""


class Unrolls(SampleIndex):
    """Knows the fragments that begin unrolls, and gathers unrolls.

    Args:
        unroll: steps of an unroll.

    Attributes:
        starts: for each step of each slot, 1 if an unroll begins with it.
        flags: for each step of each slot, ``EXPERIENCE`` and ``TERMINATED``.
        is_part: for each slot, whether its fragment is, or was, part of a complete unroll.
        steps_given_up: steps of fragments that were evicted without being part of one.

    Raises:
        ValueError: unrolls are no whole fragments, or fragments hold stacks of observations.
    """

    def __init__(self, memory: ReplayMemory, unroll: Unroll) -> None:
        super().__init__(memory)
        steps = self._layout.steps
        if unroll.learnt < 1 or unroll.steps % steps or unroll.burn_in % steps:
            raise ValueError(f"{unroll} does not consist of whole fragments of {steps} steps")
        specs = {spec.name: spec for spec in self._layout.fields}
        if specs["observation"].history:
            raise ValueError("unrolls are of single observations, and fragments hold stacks of them")
        self.flags = np.zeros(self._ring.slot_steps, np.uint8)
        self.is_part = np.zeros(self._ring.slots, np.uint8)
        self.steps_given_up: int = 0
        self._fragments = unroll.steps // steps
        self._burn_in = unroll.burn_in
        self._observations = Rows(memory, specs["observation"])
        self._once = {spec.name: Rows(memory, spec) for spec in self._layout.fields if spec.once}
        row, t = np.divmod(np.arange(unroll.steps + 1), steps)
        row[-1], t[-1] = self._fragments - 1, steps  # The last fragment has the observation after it.
        self._hops, self._rows = row, t * self._layout.num_envs

    @staticmethod
    def bookkeeping_bytes(layout: FragmentLayout, slots: int) -> int:
        """Return the bytes of the index of so many slots."""
        return slots * (layout.steps * layout.num_envs * 2 + 1) + Links.bookkeeping_bytes(slots)

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """See ``SampleIndex.by_slot``."""
        return {**super().by_slot, "flags": (self.flags, self._ring.steps_each), "parts": (self.is_part, 1)}

    def accept(self, insertion: int) -> tuple[int, int | None]:
        """See ``SampleIndex.accept``; a fragment completes the unrolls that an earlier one began."""
        slot, steps = self._ring.slot(insertion), self._ring.steps(insertion)
        mask, terminated, _ = (flag[slot] != 0 for flag in self._flags)
        self.flags[steps] = (mask * EXPERIENCE + (terminated & mask) * TERMINATED).reshape(-1)
        self.links.accept(insertion)
        self.is_part[slot] = False
        samples, first = int(np.count_nonzero(mask)), self._first_of(insertion)
        if first is None:
            return samples, None
        begins = self._ring.steps(first).start
        self.is_part[self.links.chains(np.array([self._ring.slot(first)]), self._fragments - 1)] = True
        self.starts[begins : begins + self._layout.num_envs] = 1
        self._ring.drawable += self._layout.num_envs
        return samples, first

    def evict(self, insertion: int) -> None:
        """See ``SampleIndex.evict``; this also counts steps that were never part of a sample."""
        if not self.is_part[self._ring.slot(insertion)]:
            self.steps_given_up += int(np.count_nonzero(self.flags[self._ring.steps(insertion)] & EXPERIENCE))
        super().evict(insertion)

    def _first_of(self, last: int) -> int | None:
        """Find the first fragment of the unrolls that end with this one; None if it is not in the replay."""
        first = last
        for _ in range(self._fragments - 1):
            first = int(self.links.predecessor[self._ring.slot(first)])
            if first == NONE or first < self._ring.oldest:
                return None
        return first

    def gather(
        self,
        places: Indices,  # noqa: ARG002 - all unrolls are alike
        slots: Indices,
        rows: Indices,
        into: BatchView,
    ) -> tuple[Indices, Indices, Indices]:
        """See ``SampleIndex.gather``; this also writes the fields that are recorded once."""
        arrays, each = into.arrays, self._ring.steps_each
        every = self.links.chains(slots, self._fragments - 1)[self._hops].T
        within = rows[:, None] + self._rows
        self._observations.gather(every, within, arrays["observation"])
        every, within = every[:, :-1], within[:, :-1]
        self._rewards.gather(every, within, arrays["reward"])
        steps = every * each + within
        flags = self.flags.take(steps)
        np.not_equal(flags & EXPERIENCE, 0, out=arrays["mask"])
        np.not_equal(flags & TERMINATED, 0, out=arrays["terminated"])
        for name, recorded in self._once.items():
            if f"fields/{name}" in arrays:
                recorded.gather(slots, rows, arrays[f"fields/{name}"])
        learnt = slice(self._burn_in, None)
        return every, within, steps[:, learnt][arrays["mask"][:, learnt]]

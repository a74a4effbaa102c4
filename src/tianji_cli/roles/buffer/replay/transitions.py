"""n-step transitions in a ring of fragments, whose observations are stored once.

Environments are reset on the step after an end, and that step is no experience (its mask is off). So the
observation after a step is always the next row, and that of an episode's last step is its true last one.
A transition of step (t, n) goes on for up to n steps of the same environment, stops after a step that ends
the episode, and continues in the same actor's next fragment if that has arrived and none between was lost.
Lengths and discounted sums of rewards are computed once, when a fragment is accepted, and not each of the
many times that a step is drawn: the sums take the rewards' place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.buffer.replay.links import NONE, Links
from tianji_cli.roles.buffer.replay.memory import Indices, ReplayMemory, Rows
from tianji_cli.roles.buffer.replay.sample_index import TERMINATED, Flags, SampleIndex, Spans
from tianji_cli.roles.buffer.replay.stacks import Stacks, blank_bytes
from tianji_cli.wire.batches import BatchArrays
from tianji_cli.wire.fragment import FragmentLayout

LENGTH: Final = 127
"""Bits of a span for the number of steps."""


class Transitions(SampleIndex):
    """Knows how long each step's transition is, and gathers transitions.

    Args:
        memory: the fragments.
        n_step: n, steps of a transition at most.
        gamma: discount of one step.

    Attributes:
        spans: of each step of each slot: how many steps its transition has (0: the step is no experience),
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
        spans = slots * layout.steps * layout.num_envs
        return spans + Links.bookkeeping_bytes(slots) + blank_bytes(layout, slots)

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """See ``SampleIndex.by_slot``."""
        arrays = {**super().by_slot}
        if self.stacks is not None:
            arrays["blank"] = (self.stacks.blank, self.stacks.rows_each)
        return arrays

    def accept(self, birth: int) -> int:
        """Measure a fragment's transitions, and those of its predecessors that now go on in it."""
        slot, steps = self._ring.slot(birth), self._ring.steps(birth)
        mask, terminated, truncated = (flag[slot] != 0 for flag in self._flags)
        ended = terminated | truncated
        rewards = self._sums[slot]
        prefixes = self._prefixes(rewards)
        spans = self._measured(mask, terminated, ended, rewards)
        self.spans[steps] = spans.reshape(-1)
        if self.stacks is not None:
            self.stacks.accept(slot, mask)
        actor, before = int(self._headers[slot]["actor"]), self.links.accept(birth)
        if before != NONE:
            self._lengthen(before, self._going[actor], spans[0], prefixes)
        self._going[actor] = mask[-1] & ~ended[-1]
        samples = int(np.count_nonzero(mask))
        self._ring.drawable += samples
        return samples

    def gather(
        self, places: Indices, slots: Indices, rows: Indices, into: BatchArrays
    ) -> tuple[Indices, Indices, Indices]:
        """See ``SampleIndex.gather``; the agent's fields are those of the first step."""
        arrays = into.arrays
        spans = self.spans.take(places)
        self._discounts.take(spans, out=arrays["discount"], mode="clip")
        lengths = (spans & LENGTH).astype(np.intp)
        self._observations.gather(slots, rows, arrays["observation"])
        self._rewards.gather(slots, rows, arrays["reward"])
        lengths *= self._layout.num_envs
        lengths += rows
        observed = self._ring.steps_each + self._layout.num_envs
        self._observations.gather(*self._follow(slots, lengths, observed), arrays["next_observation"])
        return slots, rows, places

    def _measured(
        self, mask: Flags, terminated: Flags, ended: Flags, rewards: npt.NDArray[np.float32]
    ) -> Spans:
        """Spans of a fragment's steps ``[T, N]``, as far as they are known without its successor.

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

    def _lengthen(self, before: int, going: Flags, first: Spans, prefixes: npt.NDArray[np.float32]) -> None:
        """Let transitions that reached the end of what was known go on in the next fragment.

        Args:
            before: birth of the fragment that they reached the end of.
            going: where they did, ``[N]``.
            first: spans of the next one's first row, ``[N]``.
            prefixes: sums of its first rewards.
        """
        steps, envs = self._layout.steps, self._layout.num_envs
        more, terminates = first & LENGTH, first & TERMINATED
        earlier, behind = before, 0
        while behind < self._n_step - 1 and earlier >= self._ring.oldest:
            rows = min(steps, self._n_step - 1 - behind)
            spans = self.spans[self._ring.steps(earlier)].reshape(steps, envs)[steps - rows :]
            to_the_end = np.arange(behind + rows, behind, -1).astype(np.uint8)[:, None]
            lengths = to_the_end + more
            longer = np.minimum(lengths, self._n_step) + np.where(lengths <= self._n_step, terminates, 0)
            goes_on = (spans == to_the_end) & going
            added = np.minimum(more, self._n_step - to_the_end)
            gains = self._discounts[to_the_end] * prefixes[added, np.arange(envs)]
            sums = self._sums[self._ring.slot(earlier)][steps - rows :]
            np.add(sums, gains, out=sums, where=goes_on)
            np.copyto(spans, longer, "unsafe", goes_on)
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
    """Discount of what follows, by span."""
    discounts = np.zeros(256, np.float32)
    discounts[:TERMINATED] = gamma ** np.arange(TERMINATED)
    return discounts

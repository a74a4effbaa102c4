"""Stacks of observations, as a policy saw them, gathered from a replay that holds each of them once.

The observations of a fragment begin with a stack's history: row ``t + j`` is plane j of what was seen at
step t. Planes from before the episode are zeros. Those of the history are stored as zeros; of what came
after an end within the fragment, one small number a row says how many planes they are.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.roles.buffer.replay.memory import Indices, ReplayMemory, Rows
from tianji_cli.wire.fragment import FragmentLayout

MOST_STACKED = 255


class Stacks:
    """Gathers stacks of one field.

    Args:
        memory: where from.
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
        """Take note of the ends in a slot's fragment; ``mask [T, N]`` says which steps are experience."""
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
    """Count the rows of a fragment at which something was seen, the one after the last step included."""
    return (layout.steps + 1) * layout.num_envs


def blank_bytes(layout: FragmentLayout, slots: int) -> int:
    """Size of what is kept beside the fragments: nothing where a policy sees single observations."""
    (spec,) = (field for field in layout.fields if field.name == "observation")
    return slots * rows_each(layout) if spec.history else 0

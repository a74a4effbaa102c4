"""What of the fragments in a replay can be drawn, and where in them it lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.buffer.replay.links import Links
from tianji_cli.roles.buffer.replay.memory import Indices, ReplayMemory, Rows
from tianji_cli.wire.batches import BatchArrays

TERMINATED: Final = 128
"""Bit of a span that says that the last step terminated the episode."""

Flags = npt.NDArray[np.bool_]
Spans = npt.NDArray[np.uint8]


class SampleIndex(ABC):
    """Knows the samples of a replay; each has its place at its first step.

    Args:
        memory: the fragments.

    Attributes:
        spans: of each step of each slot; 0: no sample begins with it.
        links: which fragments go on from one another.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        ring = memory.ring
        specs = {spec.name: spec for spec in ring.layout.fields}
        self.spans: Spans = np.zeros(ring.span, np.uint8)
        self.links = Links(memory)
        self._ring, self._layout, self._headers = ring, ring.layout, memory.headers
        self._flags = [memory.field(specs[name], np.uint8) for name in ("mask", "terminated", "truncated")]
        self._rewards = Rows(memory, specs["reward"])

    @property
    def by_slot(self) -> Mapping[str, tuple[npt.NDArray[Any], int]]:
        """Arrays with a place for each slot, by name, and how many items a slot has: what is saved."""
        return {"spans": (self.spans, self._ring.steps_each)}

    @property
    def nbytes(self) -> int:
        """Size of what is kept beside the fragments."""
        return self.links.nbytes + sum(array.nbytes for array, _ in self.by_slot.values())

    @abstractmethod
    def accept(self, birth: int) -> int:
        """Take note of a fragment, and of what it makes of those before it; returns its samples."""

    def evict(self, birth: int) -> None:
        """Let no sample begin in a fragment any more."""
        spans = self.spans[self._ring.steps(birth)]
        self._ring.drawable -= int(np.count_nonzero(spans))
        spans[:] = 0

    def restore(self, oldest: int, predecessors: npt.NDArray[np.int64]) -> None:
        """Know the fragments from birth ``oldest`` on, whose numbers are in their places; see ``Links``."""
        self.links.restore(oldest, predecessors)
        self._ring.drawable = int(np.count_nonzero(self.spans))

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

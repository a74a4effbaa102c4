"""Which fragments of a replay go on from one another: those of one actor, with none lost between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.buffer.replay.memory import Indices, ReplayMemory

NONE: Final = -1


@dataclass(frozen=True)
class _Latest:
    """What came last from an actor."""

    incarnation: int
    sequence: int
    birth: int

    def is_followed_by(self, incarnation: int, sequence: int, oldest: int) -> bool:
        """Say whether that fragment goes on where this one, if it is still held, ends."""
        return (incarnation, sequence - 1) == (self.incarnation, self.sequence) and self.birth >= oldest


class Links:
    """Links each fragment to the one before it and the one after it.

    Args:
        memory: the fragments.

    Attributes:
        successor: slot of the fragment that goes on where a slot's fragment ends; it means something only
            where there is one.
        predecessor: birth of the fragment that a slot's fragment goes on from, or ``NONE``.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self.successor = np.zeros(memory.ring.slots, np.intp)
        self.predecessor = np.full(memory.ring.slots, NONE, np.int64)
        self._ring, self._headers = memory.ring, memory.headers
        self._latest: dict[int, _Latest] = {}

    @staticmethod
    def bookkeeping_bytes(slots: int) -> int:
        """Size of what is kept beside so many fragments."""
        return slots * 16

    @property
    def nbytes(self) -> int:
        """Size of what is kept beside the fragments."""
        return self.successor.nbytes + self.predecessor.nbytes

    def accept(self, birth: int) -> int:
        """Link a fragment to the one that it goes on from; returns that one's birth, or ``NONE``."""
        slot = self._ring.slot(birth)
        header = self._headers[slot]
        actor, incarnation, sequence = (int(header[name]) for name in ("actor", "incarnation", "sequence"))
        before = self._latest.get(actor)
        self._latest[actor] = _Latest(incarnation, sequence, birth)
        self.predecessor[slot] = NONE
        if before is None or not before.is_followed_by(incarnation, sequence, self._ring.oldest):
            return NONE
        self.successor[self._ring.slot(before.birth)] = slot
        self.predecessor[slot] = before.birth
        return before.birth

    def restore(self, oldest: int, predecessors: npt.NDArray[np.int64]) -> None:
        """Link fragments from birth ``oldest`` on to those that they go on from.

        Args:
            oldest: birth of the first.
            predecessors: what each goes on from, counted from ``oldest``, or ``NONE``.

        Raises:
            ValueError: one goes on from a fragment that is not older, or that another goes on from.
        """
        links = np.flatnonzero(predecessors != NONE)
        earlier = predecessors[links]
        if ((earlier < 0) | (earlier >= links)).any() or np.unique(earlier).size < earlier.size:
            raise ValueError("fragments go on from fragments that are not before them")
        slots = (oldest + np.arange(len(predecessors))) % self._ring.slots
        self.predecessor[slots[links]] = oldest + earlier
        self.successor[slots[earlier]] = slots[links]

    def chains(self, slots: Indices, hops: int) -> Indices:
        """List the slots after each of ``slots [B]``, itself first: ``[hops + 1, B]``.

        What follows the last fragment of a chain is the slot of any.
        """
        chains = np.empty((hops + 1, slots.size), np.intp)
        chains[0] = slots
        for hop in range(hops):
            self.successor.take(chains[hop], out=chains[hop + 1], mode="clip")
        return chains

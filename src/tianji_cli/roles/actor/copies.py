"""Copies of an actor's fragments for the roles of the user's own that receive them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from tianji_transports.core import Full, Loan, Transport


@dataclass(frozen=True)
class Destination:
    """One receiver of copies.

    Attributes:
        role: its name.
        dest: its rank.
        channel: the channel that it probes.
    """

    role: str
    dest: int
    channel: str


class Copies:
    """Memory for the copies of one fragment, asked for before the fragment is begun.

    A receiver that is behind so holds its actors back as the buffer does: before the first step, when nothing
    is there yet that could be lost or counted twice.

    Args:
        transport: the endpoint of the actor's process.
        destinations: who gets a copy.
        nbytes: size of a fragment.

    Attributes:
        waited_s: seconds that were spent waiting for each that was behind, by role.
    """

    def __init__(self, transport: Transport, destinations: Sequence[Destination], nbytes: int) -> None:
        self._transport = transport
        self._destinations = destinations
        self._nbytes = nbytes
        self._loans: list[Loan] = []
        self._behind = ""
        self._since = 0.0
        self.waited_s: dict[str, float] = {}

    def ask(self) -> bool:
        """Get memory for all copies; False while a receiver is behind: ask again, what was got is kept."""
        self._count_waiting()
        for to in self._destinations[len(self._loans) :]:
            loan = self._transport.loan(to.dest, to.channel, self._nbytes)
            if isinstance(loan, Full):
                self._behind, self._since = to.role, time.monotonic()
                return False
            self._loans.append(loan)
        return True

    def push(self, memory: memoryview) -> None:
        """Send a copy of a full fragment to everyone; ``ask`` said yes."""
        for loan in self._loans:
            loan.memory[:] = memory
            self._transport.push(loan)
        self._loans.clear()

    def _count_waiting(self) -> None:
        if self._behind:
            waited_s = time.monotonic() - self._since
            self.waited_s[self._behind] = self.waited_s.get(self._behind, 0.0) + waited_s
            self._behind = ""

    def abandon(self) -> None:
        """Give the memory back: there will be no fragment."""
        for loan in self._loans:
            loan.abandon()
        self._loans.clear()

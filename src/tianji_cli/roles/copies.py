"""Copies of an actor's fragments for the roles of the user's own that receive them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tianji_transports.core import Full, Loan, Transport


@dataclass(frozen=True)
class Destination:
    """One receiver of copies.

    Attributes:
        dest: its rank.
        channel: the channel that it probes.
    """

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
    """

    def __init__(self, transport: Transport, destinations: Sequence[Destination], nbytes: int) -> None:
        self._transport = transport
        self._destinations = destinations
        self._nbytes = nbytes
        self._loans: list[Loan] = []

    def ask(self) -> bool:
        """Get memory for all copies; False while a receiver is behind: ask again, what was got is kept."""
        for to in self._destinations[len(self._loans) :]:
            loan = self._transport.loan(to.dest, to.channel, self._nbytes)
            if isinstance(loan, Full):
                return False
            self._loans.append(loan)
        return True

    def push(self, memory: memoryview) -> None:
        """Send a copy of a full fragment to everyone; ``ask`` said yes."""
        for loan in self._loans:
            loan.memory[:] = memory
            self._transport.push(loan)
        self._loans.clear()

    def abandon(self) -> None:
        """Give the memory back: there will be no fragment."""
        for loan in self._loans:
            loan.abandon()
        self._loans.clear()

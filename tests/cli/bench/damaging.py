"""Engines that damage what they carry, for the real command: ``--backend cli.bench.damaging:LosesZmq``.

Its partner processes import them by name.
"""

from __future__ import annotations

from tianji_cli.bench.comm import SAMPLES
from tianji_cli.bench.contents import WORD
from tianji_cli.bench.trial import LEAD
from tianji_transports.core import Loan, Transport
from tianji_transports.mpi import MpiTransport
from tianji_transports.shm import ShmTransport
from tianji_transports.ucx import UcxTransport
from tianji_transports.zmq import ZmqTransport

DAMAGED = 15
"""Number of the message, from 0, that is spoilt."""


class _Damages(Transport):
    """Does something else than to push message DAMAGED."""

    carried = 0

    def push(self, loan: Loan) -> None:
        number, self.carried = self.carried, self.carried + 1
        if number == DAMAGED:
            self.damage(loan)
        else:
            super().push(loan)

    def damage(self, loan: Loan) -> None:
        raise NotImplementedError


class _Flips(_Damages):
    def damage(self, loan: Loan) -> None:
        loan.memory[loan.memory.nbytes // 2] ^= 1
        super().push(loan)


class _Loses(_Damages):
    def damage(self, loan: Loan) -> None:
        loan.abandon()


class _Doubles(_Damages):
    def damage(self, loan: Loan) -> None:
        content = bytes(loan.memory)
        super().push(loan)
        while not (second := self.loan(LEAD, SAMPLES, len(content))):
            self.wait(0.1)
        second.memory[:] = content
        super().push(second)


class _Swaps(Transport):
    """Exchanges the contents of message DAMAGED and of the next one."""

    carried = 0
    held: Loan | None = None

    def push(self, loan: Loan) -> None:
        number, self.carried = self.carried, self.carried + 1
        if number == DAMAGED:
            self.held = loan
            return
        if self.held is not None:
            first, self.held = self.held, None
            content = bytes(first.memory)
            first.memory[:] = loan.memory
            loan.memory[:] = content
            super().push(first)
        super().push(loan)


class FlipsShm(_Flips, ShmTransport):
    """Alters a bit in the middle."""


class FlipsZmq(_Flips, ZmqTransport):
    """Alters a bit in the middle."""


class FlipsMpi(_Flips, MpiTransport):
    """Alters a bit in the middle."""


class FlipsUcx(_Flips, UcxTransport):
    """Alters a bit in the middle."""


class FlipsBetween(_Damages, ShmTransport):
    """Alters a byte that only a thorough run looks at."""

    def damage(self, loan: Loan) -> None:
        loan.memory[loan.memory.nbytes // 2 + WORD] ^= 1
        super().push(loan)


class LosesShm(_Loses, ShmTransport):
    """Drops a message."""


class LosesZmq(_Loses, ZmqTransport):
    """Drops a message."""


class DoublesShm(_Doubles, ShmTransport):
    """Sends a message twice."""


class DoublesZmq(_Doubles, ZmqTransport):
    """Sends a message twice."""


class SwapsShm(_Swaps, ShmTransport):
    """Exchanges two messages."""


class SwapsZmq(_Swaps, ZmqTransport):
    """Exchanges two messages."""

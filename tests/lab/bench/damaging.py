"""Engines that damage what they carry: ``--backend lab.bench.damaging:LosesZmq``, or one side of a trial.

Partner processes import them by name.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from tianji_lab.bench.comm import SAMPLES
from tianji_lab.bench.contents import CLOCK, WORD
from tianji_lab.bench.experiment import LEAD
from tianji_transports.core import Full, Loan, Transport
from tianji_transports.mpi.transport import MpiTransport
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.ucx.transport import UcxTransport
from tianji_transports.zmq.transport import ZmqTransport

DAMAGED = 14
"""Number, from 0, of the message or version that is spoilt: neither first nor last of a window."""


class _Damages(Transport):
    """Does something else than to push message DAMAGED."""

    carried = 0

    def push(self, loan: Loan) -> None:
        if self.is_next():
            self.damage(loan)
        else:
            super().push(loan)

    def is_next(self) -> bool:
        self.carried += 1
        return self.carried == DAMAGED + 1

    def damage(self, loan: Loan) -> None:
        raise NotImplementedError


class _Flips(_Damages):
    """Alters a bit in the middle of one message, or of one version."""

    def damage(self, loan: Loan) -> None:
        self.alter(loan.memory)
        super().push(loan)

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        if self.is_next():
            payload = memoryview(bytearray(payload))
            self.alter(payload)
        super().publish(slot, payload, version)

    def alter(self, memory: memoryview) -> None:
        memory[memory.nbytes // 2] ^= 1


class _Loses(_Damages):
    """Drops one message, or one version."""

    def damage(self, loan: Loan) -> None:
        loan.abandon()

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        if not self.is_next():
            super().publish(slot, payload, version)


class FlipsShm(_Flips, ShmTransport):
    """Alters a bit in the middle."""


class FlipsMpi(_Flips, MpiTransport):
    """Alters a bit in the middle."""


class FlipsUcx(_Flips, UcxTransport):
    """Alters a bit in the middle."""


class FlipsBetween(_Flips, ShmTransport):
    """Alters a byte that only a thorough run looks at."""

    def alter(self, memory: memoryview) -> None:
        memory[memory.nbytes // 2 + WORD] ^= 1


class FlipsClock(_Flips, ShmTransport):
    """Alters the word where other messages carry a clock."""

    def alter(self, memory: memoryview) -> None:
        memory[CLOCK * WORD] ^= 1


class FlipsLast(_Flips, ShmTransport):
    """Alters the last byte."""

    def alter(self, memory: memoryview) -> None:
        memory[-1] ^= 1


class LosesShm(_Loses, ShmTransport):
    """Drops a message."""


class LosesZmq(_Loses, ZmqTransport):
    """Drops a message."""


class Shortens(ShmTransport):
    """Sends the first half of a message."""

    def loan(self, dest: int, channel: str, nbytes: int) -> Loan | Full:
        damaged = self.counters.pushes == DAMAGED
        return super().loan(dest, channel, nbytes // 2 if damaged else nbytes)


class Misnumbers(ShmTransport):
    """Says that one version is a later one."""

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        super().publish(slot, payload, version + (version % (1 << 32) == DAMAGED))


class DoublesShm(_Damages, ShmTransport):
    """Sends a message twice."""

    def damage(self, loan: Loan) -> None:
        content = bytes(loan.memory)
        super().push(loan)
        while not (second := self.loan(LEAD, SAMPLES, len(content))):
            self.wait(0.1)
        second.memory[:] = content
        super().push(second)


class SwapsZmq(_Damages, ZmqTransport):
    """Exchanges the contents of message DAMAGED and of the next one."""

    held: Loan | None = None

    def damage(self, loan: Loan) -> None:
        self.held = loan

    def push(self, loan: Loan) -> None:
        if self.held is not None:
            first, self.held = self.held, None
            content = bytes(first.memory)
            first.memory[:] = loan.memory
            loan.memory[:] = content
            super().push(first)
        super().push(loan)


class InterruptsShm(ShmTransport):
    """Has the user interrupt the leading process when its endpoint has just been made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.rank == LEAD:
            os.kill(os.getpid(), signal.SIGINT)

"""How a learner deals a round out to its followers: one message that says what comes, then their shares.

A round is dealt to all followers or to none: memory for all of it is there before the first message is
pushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tianji_algos.core import Embryo
from tianji_cli.plan.graph import DEALS, SHARES
from tianji_cli.wire.records import Record, RecordLayout
from tianji_transports.core import Full, Loan, Transport

HEADER: Final = RecordLayout(
    0x544A444C,  # "TJDL"
    (
        ("shares", "<u8"),
        ("env_steps", "<u8"),
        ("version", "<u8"),
        ("synchronise", "<u4"),
        ("publishes", "<u4"),
    ),
)
"""What is sent before the shares of a round."""


@dataclass(frozen=True, slots=True)
class Deal:
    """What learner and followers do together next.

    Attributes:
        env_steps: seen so far, for what is scheduled over training.
        version: of the policy that was published last.
        shares: messages on ``SHARES`` that belong to it.
        synchronise: the learner's parameters are not those of the last update: all take them over first.
        publishes: the policy is published after it.
    """

    env_steps: int
    version: int
    shares: int
    synchronise: bool
    publishes: bool

    def write(self, memory: memoryview, job: int) -> None:
        """Write it as a record."""
        record = Record(HEADER, memory)
        record.stamp(job, self.shares, self.env_steps, self.version, self.synchronise, self.publishes)

    @classmethod
    def read(cls, memory: memoryview, job: int) -> Deal | str:
        """Read what ``write`` wrote; returns an error string if it is none of this job."""
        record = HEADER.read(memory, job)
        if isinstance(record, str):
            return record
        said = record.header
        env_steps, version, shares = (int(said[name]) for name in ("env_steps", "version", "shares"))
        return cls(env_steps, version, shares, bool(said["synchronise"]), bool(said["publishes"]))


class Scatter:
    """The learner's end of what it deals.

    Args:
        transport: the endpoint of the learner's process.
        followers: their ranks, in the order of their numbers.
        job: the job's number.
        shares: messages that each follower gets of a round; the channel's window is at most one more.
        nbytes: size of each.

    Attributes:
        learners: how many there are, this one included.
        job: the job's number.
        shares: messages that each follower gets of a round.
    """

    def __init__(
        self, transport: Transport, followers: Sequence[int], job: int, shares: int, nbytes: int
    ) -> None:
        self.learners = len(followers) + 1
        self.job = job
        self.shares = shares
        self._transport = transport
        self._nbytes = nbytes
        self._followers = tuple(followers)
        self._calls: list[Loan] = []
        self._hands: list[list[Loan]] = [[] for _ in followers]

    def hands(self) -> list[list[memoryview]] | None:
        """Get memory for the shares of each follower, to be filled; None while one has no room for it.

        What was lent before that is kept until the next call.
        """
        for rank, hand in zip(self._followers, self._hands, strict=True):
            while len(hand) < self.shares:
                loan = self._transport.loan(rank, SHARES, self._nbytes)
                if isinstance(loan, Full):
                    return None
                hand.append(loan)
        for rank in self._followers[len(self._calls) :]:
            loan = self._transport.loan(rank, DEALS, HEADER.nbytes)
            if isinstance(loan, Full):
                return None
            self._calls.append(loan)
        return [[loan.memory for loan in hand] for hand in self._hands]

    def push(self, deal: Deal) -> None:
        """Send what ``hands`` gave, filled."""
        for call, hand in zip(self._calls, self._hands, strict=True):
            deal.write(call.memory, self.job)
            self._transport.push(call)
            for loan in hand:
                self._transport.push(loan)
            hand.clear()
        self._calls.clear()

    @property
    def is_claimed(self) -> bool:
        """Whether all that was pushed needs no more work of this endpoint to arrive.

        Some engines send only while they are asked something. A learner that waited for its followers'
        gradients meanwhile would wait for ever; so it sleeps at the transport until the shares are claimed.
        """
        if self._transport.capabilities.progresses:
            return True
        for rank, hand in zip(self._followers, self._hands, strict=True):
            while self._transport.unconfirmed(rank, SHARES):
                # A refused loan is what a claim ends a sleep for; any other serves the next round.
                loan = self._transport.loan(rank, SHARES, self._nbytes)
                if isinstance(loan, Full):
                    return False
                if len(hand) < self.shares:
                    hand.append(loan)
                else:
                    loan.abandon()
        return True

    def abandon(self) -> None:
        """Give back what was lent for a round that is not to be."""
        for loans in (self._calls, *self._hands):
            while loans:
                loans.pop().abandon()


def tensors_in_step(embryo: Embryo) -> list[torch.Tensor]:
    """List what the learners of a group have in common and an average over groups may replace, in place."""
    return [*embryo.model.parameters(), *embryo.model.buffers(), *embryo.averaged_state()]

"""How a learner scatters what updates are made of: a header that says what comes, then a follower's shards.

A round is scattered to all followers or to none: memory for all of it is there before the first message is
pushed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from tianji_algos.core import Embryo
from tianji_cli.plan.graph import HEADERS, SHARDS
from tianji_cli.wire.records import Record, RecordLayout
from tianji_transports.core import Full, Loan, Transport

LAYOUT: Final = RecordLayout(
    0x544A444C,  # "TJDL"
    (
        ("shards", "<u8"),
        ("env_steps", "<u8"),
        ("version", "<u8"),
        ("synchronise", "<u4"),
        ("publishes", "<u4"),
    ),
)
"""What is sent before the shards of a round."""


@dataclass(frozen=True, slots=True)
class RoundHeader:
    """What learner and followers do together next.

    Attributes:
        env_steps: seen so far, for what is scheduled over training.
        version: of the policy that was published last.
        shards: messages on ``SHARDS`` that belong to it.
        synchronise: the learner's parameters are not those of the last update: all take them over first.
        publishes: the policy is published after it.
    """

    env_steps: int
    version: int
    shards: int
    synchronise: bool
    publishes: bool

    def write(self, memory: memoryview, job: int) -> None:
        """Write it as a record."""
        record = Record(LAYOUT, memory)
        record.stamp(job, self.shards, self.env_steps, self.version, self.synchronise, self.publishes)

    @classmethod
    def read(cls, memory: memoryview, job: int) -> RoundHeader | str:
        """Read what ``write`` wrote; returns an error string if it is none of this job."""
        record = LAYOUT.read(memory, job)
        if isinstance(record, str):
            return record
        said = record.header
        env_steps, version, shards = (int(said[name]) for name in ("env_steps", "version", "shards"))
        return cls(env_steps, version, shards, bool(said["synchronise"]), bool(said["publishes"]))


class Scatter:
    """The learner's end of the channels to its followers.

    Args:
        transport: the endpoint of the learner's process.
        followers: their ranks, in the order of their numbers.
        job: the job's number.
        shards: messages that each follower gets of a round; the channel's window is at most one more.
        nbytes: size of each.

    Attributes:
        learners: how many there are, this one included.
        job: the job's number.
        shards: messages that each follower gets of a round.
    """

    def __init__(
        self, transport: Transport, followers: Sequence[int], job: int, shards: int, nbytes: int
    ) -> None:
        self.learners = len(followers) + 1
        self.job = job
        self.shards = shards
        self._transport = transport
        self._nbytes = nbytes
        self._followers = tuple(followers)
        self._headers: list[Loan] = []
        self._shards: list[list[Loan]] = [[] for _ in followers]

    def loans(self) -> list[list[memoryview]] | None:
        """Get memory for the shards of each follower, to be filled; None while one has no room for it.

        What was lent before that is kept until the next call.
        """
        for rank, shards in zip(self._followers, self._shards, strict=True):
            while len(shards) < self.shards:
                loan = self._transport.loan(rank, SHARDS, self._nbytes)
                if isinstance(loan, Full):
                    return None
                shards.append(loan)
        for rank in self._followers[len(self._headers) :]:
            loan = self._transport.loan(rank, HEADERS, LAYOUT.nbytes)
            if isinstance(loan, Full):
                return None
            self._headers.append(loan)
        return [[loan.memory for loan in shards] for shards in self._shards]

    def push(self, header: RoundHeader) -> None:
        """Send what ``loans`` gave, filled."""
        for first, shards in zip(self._headers, self._shards, strict=True):
            header.write(first.memory, self.job)
            self._transport.push(first)
            for loan in shards:
                self._transport.push(loan)
            shards.clear()
        self._headers.clear()

    @property
    def is_claimed(self) -> bool:
        """Whether all that was pushed needs no more work of this endpoint to arrive.

        Some engines send only while they are asked something. A learner that waited for its followers'
        gradients meanwhile would wait for ever; so it sleeps at the transport until the shards are claimed.
        """
        if self._transport.capabilities.progresses:
            return True
        for rank, shards in zip(self._followers, self._shards, strict=True):
            while self._transport.unconfirmed(rank, SHARDS):
                # A refused loan is what a claim ends a sleep for; any other serves the next round.
                loan = self._transport.loan(rank, SHARDS, self._nbytes)
                if isinstance(loan, Full):
                    return False
                if len(shards) < self.shards:
                    shards.append(loan)
                else:
                    loan.abandon()
        return True

    def abandon(self) -> None:
        """Give back what was lent for a round that is not to be."""
        for loans in (self._headers, *self._shards):
            while loans:
                loans.pop().abandon()


def tensors_in_step(embryo: Embryo) -> list[torch.Tensor]:
    """List what the learners of a group have in common and an average over groups may replace, in place."""
    return [*embryo.model.parameters(), *embryo.model.buffers(), *embryo.averaged_state()]

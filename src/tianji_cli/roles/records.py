"""Records of user roles: the ends of the channels and slots that a config names under ``[graph]``.

A sender writes a channel's record into the memory that the transport sends, and a receiver reads it where it
has arrived. Of a slot only the newest record counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.wire.records import Array, Record, RecordLayout
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import FULL, Claim, Full, Loan, Transport

Fields = Mapping[str, npt.NDArray[Any]]

MAGIC: Final = 0x544A5552
"""``TJUR``: a record of a user's own."""


def record_layout(fields: Sequence[FieldSpec]) -> RecordLayout:
    """Lay out a record: where it is in its sender's sequence, and its fields."""
    arrays = tuple(Array(one.name, one.dtype, one.shape) for one in fields)
    return RecordLayout(MAGIC, (("incarnation", "<u4"), ("sequence", "<u8")), arrays)


@dataclass(frozen=True)
class Draft:
    """A record that is being written; exactly one of ``UserRole.push`` and ``abandon`` ends it.

    Attributes:
        fields: writable arrays; they may have numbers of an earlier record in them.
    """

    fields: Fields
    record: Record
    loans: Sequence[Loan]

    def abandon(self) -> None:
        """Give the memory back: there will be no record."""
        for loan in self.loans:
            loan.abandon()


class ChannelSender:
    """Sends the records of a channel to each of its receivers.

    Args:
        receivers: ranks that get a copy of every record.

    Attributes:
        sent: records that were pushed.
    """

    def __init__(
        self, transport: Transport, channel: str, layout: RecordLayout, receivers: Sequence[int], job: int
    ) -> None:
        self.sent = 0
        self._transport = transport
        self._channel = channel
        self._layout = layout
        self._receivers = receivers
        self._job = job

    def loan(self) -> Draft | Full:
        """Ask for memory for a record and its copies; FULL while a receiver is a window of them behind."""
        loans: list[Loan] = []
        for rank in self._receivers:
            loan = self._transport.loan(rank, self._channel, self._layout.nbytes)
            if isinstance(loan, Full):
                for earlier in loans:
                    earlier.abandon()
                return FULL
            loans.append(loan)
        record = Record(self._layout, loans[0].memory)
        return Draft(record.arrays, record, loans)

    def forward(self, received: Received) -> bool:
        """Send a copy of a record that has come; return False if a receiver is a window behind."""
        draft = self.loan()
        if isinstance(draft, Full):
            return False
        draft.record.memory[:] = received.memory
        self.push(draft)
        return True

    def push(self, draft: Draft) -> None:
        """Send a record. Never waits."""
        draft.record.stamp(self._job, self._transport.incarnation, self.sent)
        first, *copies = draft.loans
        for loan in copies:
            loan.memory[:] = first.memory
        for loan in draft.loans:
            self._transport.push(loan)
        self.sent += 1


@dataclass(frozen=True)
class Received:
    """A record that has come; valid until the next ``probe`` of its channel.

    Attributes:
        fields: read-only arrays.
        sender: rank of the process that sent it.
        memory: all of it as bytes.
    """

    fields: Fields
    sender: int
    memory: memoryview


class ChannelReceiver:
    """Receives the records of a channel; those of one sender come in their order.

    Attributes:
        received: records that were claimed.
        lost: records that a sender has sent and that never came.
        rejected: messages that are no records of this channel.
        last: the record that ``probe`` has returned; None if there was none.
    """

    def __init__(
        self, transport: Transport, channel: str, layout: RecordLayout, job: int, rejected: Rejected
    ) -> None:
        self.received = self.lost = 0
        self._transport = transport
        self._channel = channel
        self._layout = layout
        self._job = job
        self._rejected = rejected
        self._next: dict[tuple[int, int], int] = {}
        self._claim: Claim | None = None
        self.last: Received | None = None

    def probe(self) -> Received | None:
        """Claim the next record, and let go of the last one; None if there is none. Never waits."""
        if self._claim is not None:
            self._claim.release()
            self._claim = self.last = None
        while (claim := self._transport.probe(self._channel)) is not None:
            record = self._layout.read(claim.view(), self._job)
            why = record if isinstance(record, str) else self._follow(claim.source, record)
            if why is None:
                assert isinstance(record, Record)
                self._claim, self.last = claim, Received(record.arrays, claim.source, record.memory)
                return self.last
            self._rejected.add(claim, why)
            claim.release()
        return None

    def _follow(self, source: int, record: Record) -> str | None:
        """Count a record, and those that are missing before it; returns why it is none of this channel's."""
        incarnation, sequence = int(record.header["incarnation"]), int(record.header["sequence"])
        expected = self._next.get((source, incarnation), 0)
        if sequence < expected:
            return f"it is number {sequence} where {expected} is next"
        self._next[source, incarnation] = sequence + 1
        self.lost += sequence - expected
        self.received += 1
        return None


class SlotWriter:
    """Publishes the record of a slot: readers see the newest one only."""

    def __init__(self, transport: Transport, slot: str, layout: RecordLayout, job: int) -> None:
        self._transport = transport
        self._slot = slot
        self._job = job
        self._record = Record(layout, memoryview(bytearray(layout.nbytes)))
        self._version = 0

    def publish(self, fields: Mapping[str, npt.ArrayLike]) -> int:
        """Publish a record of all fields; returns its version, one more than the last.

        Raises:
            ValueError: a field is missing, is none of the record's, or has another shape.
        """
        if fields.keys() != self._record.arrays.keys():
            wanted = ", ".join(self._record.arrays)
            raise ValueError(f"a record of {self._slot} has {wanted}, not {', '.join(fields)}")
        for name, values in fields.items():
            if np.shape(values) != self._record.arrays[name].shape:
                shape = self._record.arrays[name].shape
                raise ValueError(f"{name} of {self._slot} has shape {shape}, not {np.shape(values)}")
            self._record.arrays[name][...] = values
        self._version += 1
        self._record.stamp(self._job, self._transport.incarnation, self._version)
        self._transport.publish(self._slot, self._record.memory, self._version)
        return self._version


@dataclass(frozen=True)
class Latest:
    """A copy of the newest record of a slot.

    Attributes:
        version: newer records have higher numbers; the first is 1.
    """

    version: int
    fields: Fields


class SlotReader:
    """Looks at the newest record of a slot."""

    def __init__(self, transport: Transport, slot: str, layout: RecordLayout) -> None:
        self._transport = transport
        self._slot = slot
        self._layout = layout

    def latest(self, newer_than: int) -> Latest | None:
        """Copy the newest record if it is newer than a version; None otherwise. Never waits."""
        claim = self._transport.latest(self._slot, newer_than=newer_than)
        if claim is None:
            return None
        try:
            views = self._layout.views(claim.view())
            return Latest(claim.version, {name: array.copy() for name, array in views.items()})
        finally:
            claim.release()


@dataclass(frozen=True)
class Ports:
    """The ends of a role's channels and slots, by their names in the config."""

    senders: dict[str, ChannelSender]
    receivers: dict[str, ChannelReceiver]
    writers: dict[str, SlotWriter]
    readers: dict[str, SlotReader]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Records sent, received and lost, by channel."""
        counts: dict[str, dict[str, int]] = {}
        for name, sender in self.senders.items():
            counts.setdefault(name, {})["sent"] = sender.sent
        for name, receiver in self.receivers.items():
            counts.setdefault(name, {}).update(received=receiver.received, lost=receiver.lost)
        return counts

"""The ends of the channels and slots that a config names under ``[graph]``, as user roles have them.

A sender writes a channel's record into the memory that the transport sends, and a receiver reads it where it
has arrived; what it forwards is copied once. Only the newest record of a slot counts.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.records import Array, Record, RecordLayout
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import FULL, Claim, Full, Loan, Transport

Fields = Mapping[str, npt.NDArray[Any]]

MAGIC: Final = 0x544A5552
"""``TJUR``: a record of a user's own."""


def record_layout(fields: Sequence[FieldSpec]) -> RecordLayout:
    """Lay out a record: where it is in its sender's sequence, and its fields.

    Raises:
        ValueError: two fields have one name, or a field is no array of a fixed shape.
    """
    names = [one.name for one in fields]
    for one in fields:
        if names.count(one.name) > 1:
            raise ValueError(f"two fields are called {one.name!r}")
        if np.dtype(one.dtype).hasobject:
            raise ValueError(f"{one.name!r} holds objects, which no other process can read")
        if one.bootstrap or one.history or one.once:
            raise ValueError(
                f"{one.name!r} has rows of steps, as fields of fragments have; a record has none"
            )
    arrays = tuple(Array(one.name, one.dtype, one.shape) for one in fields)
    layout = RecordLayout(MAGIC, (("incarnation", "<u4"), ("sequence", "<u8")), arrays)
    layout.views(memoryview(bytearray(layout.nbytes)))  # Raises if a shape or dtype is none.
    return layout


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


@dataclass(frozen=True)
class Received:
    """A record or a fragment that has come; valid until the next ``probe`` of its channel.

    Attributes:
        fields: read-only arrays.
        sender: rank of the process that sent it.
        memory: all of it as bytes.
        claimed_ns: time of ``time.monotonic_ns`` at which it was claimed.
    """

    fields: Fields
    sender: int
    memory: memoryview
    claimed_ns: int = field(default_factory=time.monotonic_ns)


Change = Callable[[Fields], None]
"""Changes the fields of a copy before it is sent on."""


class Outlet(ABC):
    """Sends what a role has to send over a channel, to each of its receivers.

    Args:
        nbytes: size of a message.
        receivers: ranks that get a copy of every message.

    Attributes:
        sent: messages that were pushed.
    """

    def __init__(self, transport: Transport, channel: str, nbytes: int, receivers: Sequence[int]) -> None:
        self.sent = 0
        self._transport = transport
        self._channel = channel
        self._nbytes = nbytes
        self._receivers = receivers

    def forward(self, received: Received, change: Change | None) -> bool:
        """Send a copy of a message that has come, with changes; return False if a receiver is behind."""
        loans = self._ask()
        if not loans:
            return False
        loans[0].memory[:] = received.memory
        fields = self._readdress(loans[0].memory, received)
        if change is not None:
            change(fields)
        self._send(loans)
        return True

    @abstractmethod
    def _readdress(self, copy: memoryview, received: Received) -> Fields:
        """Write into the header of a copy what this hop says of it; return its fields."""

    @property
    def unclaimed(self) -> int:
        """Messages that a receiver has not claimed, over all receivers."""
        return sum(self._transport.unconfirmed(rank, self._channel) for rank in self._receivers)

    def _ask(self) -> list[Loan]:
        """Ask for memory at each receiver; return an empty list, and keep none, if one is behind."""
        loans: list[Loan] = []
        for rank in self._receivers:
            loan = self._transport.loan(rank, self._channel, self._nbytes)
            if isinstance(loan, Full):
                for earlier in loans:
                    earlier.abandon()
                return []
            loans.append(loan)
        return loans

    def _send(self, loans: Sequence[Loan]) -> None:
        """Push the first message, and a copy of it to each further receiver."""
        first, *copies = loans
        for loan in copies:
            loan.memory[:] = first.memory
        for loan in loans:
            self._transport.push(loan)
        self.sent += 1


class RecordOutlet(Outlet):
    """Sends records of a user's own, each with its place in the sequence."""

    def __init__(
        self, transport: Transport, channel: str, layout: RecordLayout, receivers: Sequence[int], job: int
    ) -> None:
        super().__init__(transport, channel, layout.nbytes, receivers)
        self._layout = layout
        self._job = job

    def loan(self) -> Draft | Full:
        """Ask for memory for a record; FULL while a receiver has a window of them unclaimed."""
        loans = self._ask()
        if not loans:
            return FULL
        record = Record(self._layout, loans[0].memory)
        return Draft(record.arrays, record, loans)

    def push(self, draft: Draft) -> None:
        """Send a record. Never waits."""
        draft.record.stamp(self._job, self._transport.incarnation, self.sent)
        self._send(draft.loans)

    def _readdress(self, copy: memoryview, received: Received) -> Fields:  # noqa: ARG002 - it is this role's now
        record = Record(self._layout, copy)
        record.stamp(self._job, self._transport.incarnation, self.sent)
        return record.arrays


class FragmentOutlet(Outlet):
    """Sends fragments on to the next role of their path: they stay their actors', under the same numbers."""

    def __init__(
        self, transport: Transport, channel: str, layout: FragmentLayout, receivers: Sequence[int]
    ) -> None:
        super().__init__(transport, channel, layout.nbytes, receivers)
        self._layout = layout

    def _readdress(self, copy: memoryview, received: Received) -> Fields:
        fragment = Fragment(self._layout, copy)
        fragment.header["age_ns"] += time.monotonic_ns() - received.claimed_ns
        return fragment.fields


class Inlet(ABC):
    """Receives the messages of a channel; those of one sender come in their order.

    Attributes:
        received: messages that were claimed.
        last: the message that ``probe`` has returned, until it is released; None if there was none.
    """

    def __init__(self, transport: Transport, channel: str) -> None:
        self.received = 0
        self.last: Received | None = None
        self._transport = transport
        self._channel = channel
        self._claim: Claim | None = None

    def probe(self) -> Received | None:
        """Claim the next message, and let go of the last one; None if there is none. Never waits."""
        self.release()
        while (claim := self._transport.probe(self._channel)) is not None:
            self.last = self._read(claim)
            if self.last is not None:
                self.received += 1
                self._claim = claim
                return self.last
            claim.release()
        return None

    def release(self) -> None:
        """Let go of the last message."""
        if self._claim is not None:
            self._claim.release()
            self._claim = self.last = None

    @abstractmethod
    def _read(self, claim: Claim) -> Received | None:
        """View a message; returns None, and counts it as rejected, if it is none of this channel's."""


class RecordInlet(Inlet):
    """Receives records of a user's own.

    Attributes:
        lost: records that a sender has sent before others that came, and that never came.
    """

    def __init__(
        self, transport: Transport, channel: str, layout: RecordLayout, job: int, rejected: Rejected
    ) -> None:
        super().__init__(transport, channel)
        self._layout = layout
        self._job = job
        self._rejected = rejected
        self.lost = 0
        self._next: dict[tuple[int, int], int] = {}

    def _read(self, claim: Claim) -> Received | None:
        record = self._layout.read(claim.view(), self._job)
        if isinstance(record, Record):
            source = claim.source, int(record.header["incarnation"])
            sequence, expected = int(record.header["sequence"]), self._next.get(source, 0)
            if sequence >= expected:
                self._next[source] = sequence + 1
                self.lost += sequence - expected
                return Received(record.arrays, claim.source, record.memory)
            record = f"it is number {sequence} where {expected} is next"
        self._rejected.add(claim, record)
        return None


class FragmentInlet(Inlet):
    """Receives the fragments of the actors before a role in their path.

    Args:
        validator: knows these actors; the buffer behind counts what is lost.
    """

    def __init__(
        self, transport: Transport, channel: str, layout: FragmentLayout, validator: FragmentValidator
    ) -> None:
        super().__init__(transport, channel)
        self._layout = layout
        self._validator = validator

    def _read(self, claim: Claim) -> Received | None:
        if not self._validator.has_its_size(claim):
            return None
        fragment = Fragment(self._layout, claim.view())
        if self._validator.admit(claim, fragment) is None:
            return None
        return Received(fragment.fields, claim.source, fragment.memory)


class SlotWriter:
    """Publishes the record of a slot: readers see the newest one only."""

    def __init__(self, transport: Transport, slot: str, layout: RecordLayout, job: int) -> None:
        self._transport = transport
        self._slot = slot
        self._job = job
        self._record = Record(layout, memoryview(bytearray(layout.nbytes)))
        # A writer that was started again goes on behind the versions of the one before.
        self._version = transport.incarnation << 32

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

    outlets: dict[str, Outlet]
    inlets: dict[str, Inlet]
    writers: dict[str, SlotWriter]
    readers: dict[str, SlotReader]

    @property
    def unclaimed(self) -> int:
        """Messages that were sent, and that their receivers have not claimed."""
        return sum(outlet.unclaimed for outlet in self.outlets.values())

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Messages sent, not yet claimed and received, and records that were lost, by channel."""
        counts: dict[str, dict[str, int]] = {}
        for name, outlet in self.outlets.items():
            counts.setdefault(name, {})["sent"] = outlet.sent
            if unclaimed := outlet.unclaimed:
                counts[name]["unclaimed"] = unclaimed
        for name, inlet in self.inlets.items():
            counts.setdefault(name, {})["received"] = inlet.received
            if isinstance(inlet, RecordInlet):
                counts[name]["lost"] = inlet.lost
        return counts

"""The ends of the channels and slots that a config names under ``[graph]``, as user roles have them.

A sender writes a channel's record into the memory that the transport sends, and a receiver reads it where it
has arrived; what it forwards is copied once. Only the newest record of a slot counts.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.fields import FieldSpec
from tianji_cli.files.counters import ProductionPage
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.records import Array, Record, RecordLayout
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import FULL, Claim, Full, Loan, Transport
from tianji_transports.errors import PeerLostError

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
    """A record or a fragment that has come; valid until it is let go of, by ``probe`` or ``forward``.

    Attributes:
        fields: read-only arrays.
        sender: rank of the process that sent it.
        record: all of it.
        claimed_ns: time of ``time.monotonic_ns`` at which it was claimed.
    """

    fields: Fields
    sender: int
    record: Record
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
        self._receivers = list(receivers)

    def forward(self, inlet: Inlet, change: Change | None) -> bool:
        """Send a copy of an inlet's first message, with changes; return False if a receiver is behind."""
        loans = self._ask()
        if not loans:
            return False
        assert inlet.first is not None
        fields = self._copy(inlet.first, loans[0].memory)
        if change is not None:
            change(fields)
        inlet.sent_on()  # Before it goes, as ``ProductionPage.push`` wants it.
        self._send(loans)
        return True

    @abstractmethod
    def _copy(self, received: Received, into: memoryview) -> Fields:
        """Copy a message, with what this hop says of it in its header; return the copy's fields."""

    def loan(self) -> Draft | Full:
        """Ask for memory for a message; FULL while a receiver has a window of them unclaimed.

        Raises:
            RuntimeError: the role only sends on what others make.
        """
        raise RuntimeError(f"other roles make what goes over {self._channel}: forward sends it on")

    def push(self, draft: Draft) -> None:
        """Send a message that ``loan`` gave. Never waits."""
        raise NotImplementedError

    @property
    def counts(self) -> dict[str, int]:
        """Counts of messages, for the report."""
        return {"sent": self.sent} | ({"unclaimed": left} if (left := self.unclaimed) else {})

    @property
    def unclaimed(self) -> int:
        """Messages that a receiver has not claimed, over all receivers."""
        return sum(self._transport.unconfirmed(rank, self._channel) for rank in self._receivers)

    def _ask(self) -> list[Loan]:
        """Ask for memory at each receiver; return an empty list, and keep none, if one is behind."""
        loans: list[Loan] = []
        for rank in tuple(self._receivers):
            loan = self._loan(rank)
            if isinstance(loan, Full):
                for earlier in loans:
                    earlier.abandon()
                return []
            loans += [] if loan is None else [loan]
        return loans

    def _loan(self, rank: int) -> Loan | Full | None:
        """Ask a receiver for memory; returns None, and forgets it, if it is gone and does not come again."""
        try:
            return self._transport.loan(rank, self._channel, self._nbytes)
        except PeerLostError:
            self._receivers.remove(rank)
            return None

    def _send(self, loans: Sequence[Loan]) -> None:
        """Push the first message, and a copy of it to each further receiver."""
        first, *copies = loans
        for loan in copies:
            loan.memory[:] = first.memory
        for loan in loans:
            with suppress(PeerLostError):  # It has gone since the loan, and the run goes on without it.
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

    def _copy(self, received: Received, into: memoryview) -> Fields:
        into[:] = received.record.memory
        record = Record(self._layout, into)
        record.stamp(self._job, self._transport.incarnation, self.sent)
        return record.arrays


class CreditOutlet(RecordOutlet):
    """Sends each record to one of its receivers: the one that has fewest of them unclaimed."""

    def _ask(self) -> list[Loan]:
        """Ask for memory at the receiver with most room; return an empty list if all are behind."""
        waiting = {rank: self._transport.unconfirmed(rank, self._channel) for rank in self._receivers}
        for rank in sorted(waiting, key=waiting.__getitem__):
            loan = self._loan(rank)
            if loan is not None and not isinstance(loan, Full):
                return [loan]
        return []


class FragmentOutlet(Outlet):
    """Sends fragments on to the next role of their path: they stay their actors', under the same numbers."""

    def __init__(
        self, transport: Transport, channel: str, layout: FragmentLayout, receivers: Sequence[int], job: int
    ) -> None:
        super().__init__(transport, channel, layout.nbytes, receivers)
        self._layout = layout
        self._job = job

    def _copy(self, received: Received, into: memoryview) -> Fields:
        fragment = Fragment(self._layout, into)
        if int(received.record.header["layout"]) == self._layout.fingerprint:
            into[:] = received.record.memory
        else:
            header = received.record.header
            fragment.stamp(self._job, *(int(header[name]) for name, _ in self._layout.record.numbers))
            for name, field in fragment.fields.items():
                field[...] = received.fields.get(name, 0)
        fragment.header["age_ns"] += time.monotonic_ns() - received.claimed_ns
        return fragment.fields


class UnwrittenFields(Fields):
    """Fields of a fragment that a source makes.

    Attributes:
        left: names of the fields that it has not asked for yet.
    """

    def __init__(self, fields: Fields) -> None:
        self.left = set(fields)
        self._fields = fields

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a field, to be written."""
        self.left.discard(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the fields."""
        return iter(self._fields)

    def __len__(self) -> int:
        """Return the number of fields."""
        return len(self._fields)


class SourceOutlet(FragmentOutlet):
    """Sends fragments that a role makes itself.

    Args:
        number: number that they carry in place of an actor's.
        page: counts the samples that all processes of this role's place have made.
    """

    def __init__(
        self,
        transport: Transport,
        channel: str,
        layout: FragmentLayout,
        receivers: Sequence[int],
        job: int,
        number: int,
        page: ProductionPage,
    ) -> None:
        super().__init__(transport, channel, layout, receivers, job)
        self._number = number
        self._page = page
        self._made_before = page.finished

    def loan(self) -> Draft | Full:
        """Ask for memory for a fragment; FULL while the receiver has a window of them unclaimed."""
        loans = self._ask()
        if not loans:
            return FULL
        fragment = Fragment(self._layout, loans[0].memory)
        return Draft(UnwrittenFields(fragment.fields), fragment, loans)

    def push(self, draft: Draft) -> None:
        """Send a fragment. Never waits.

        Raises:
            ValueError: one of its fields was not written; a policy would learn from an earlier fragment's.
        """
        assert isinstance(draft.record, Fragment)
        assert isinstance(draft.fields, UnwrittenFields)
        if draft.fields.left:
            draft.abandon()
            raise ValueError(f"a fragment lacks {', '.join(sorted(draft.fields.left))}: write every field")
        samples = int(np.count_nonzero(draft.fields["mask"]))
        draft.record.begin(
            job=self._job,
            actor=self._number,
            incarnation=self._transport.incarnation,
            sequence=self.sent,
            before=self._page.finished - self._made_before,
            version=0,
        )
        draft.record.header["samples"] = samples
        self._page.count(samples)
        self._page.push()
        self._send(draft.loans)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of fragments, and of the samples in them and in those of a process that was killed."""
        return super().counts | {"made": self._page.finished}


class BatchOutlet(Outlet):
    """Sends batches on to the next role of their path."""

    def __init__(
        self, transport: Transport, channel: str, layout: RecordLayout, receivers: Sequence[int]
    ) -> None:
        super().__init__(transport, channel, layout.nbytes, receivers)
        self._layout = layout

    def _copy(self, received: Received, into: memoryview) -> Fields:
        into[:] = received.record.memory
        return self._layout.views(into)


class Inlet(ABC):
    """Receives the messages of a channel; those of one sender come in their order.

    Args:
        holds: messages that it may hold beside the one that came last.

    Attributes:
        received: messages that were claimed.
    """

    def __init__(self, transport: Transport, channel: str, holds: int = 0) -> None:
        self.received = 0
        self._transport = transport
        self._channel = channel
        self._holds = holds
        self._held: deque[tuple[Received, Claim]] = deque()

    @property
    def first(self) -> Received | None:
        """The message to send on next: of those that it holds, the one that came first."""
        return self._held[0][0] if self._held else None

    def probe(self) -> Received | None:
        """Claim the next message; None if there is none. Never waits.

        If it may hold no other, it lets go of the one before.

        Raises:
            RuntimeError: it holds as many as it may.
        """
        if not self._holds:
            self._leave()
        elif len(self._held) > self._holds:
            raise RuntimeError(
                f"{len(self._held)} messages of {self._channel!r} are held, and the role's class says "
                f"holds = {self._holds}: forward or drop one before the next probe, or say more"
            )
        while (claim := self._transport.probe(self._channel)) is not None:
            received = self._read(claim)
            if received is not None:
                self.received += 1
                self._held.append((received, claim))
                return received
            claim.release()
        return None

    def release(self) -> None:
        """Let go of the first message."""
        if self._held:
            self._held.popleft()[1].release()

    def _leave(self) -> None:
        """Let go of the first message, which has not been sent on."""
        self.release()

    @abstractmethod
    def _read(self, claim: Claim) -> Received | None:
        """View a message; returns None, and counts it as rejected, if it is none of this channel's."""

    def sent_on(self) -> None:
        """Let go of the first message, which goes to the next role of its path."""
        self.release()

    def fence(self, rank: int, counts_from: int) -> None:  # noqa: B027 - actors send fragments alone
        """Reject the messages of a rank's incarnations before one."""

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of messages, for the report."""
        return {"received": self.received}


class BatchInlet(Inlet):
    """Receives messages of one layout: batches, before a role in their path."""

    def __init__(
        self, transport: Transport, channel: str, layout: RecordLayout, job: int, rejected: Rejected
    ) -> None:
        super().__init__(transport, channel)
        self._layout = layout
        self._job = job
        self._rejected = rejected

    def _read(self, claim: Claim) -> Received | None:
        record = self._layout.read(claim.view(), self._job)
        refusal = self._refusal(record, claim.source) if isinstance(record, Record) else record
        if refusal is None:
            assert isinstance(record, Record)
            return Received(record.arrays, claim.source, record)
        self._rejected.add(claim, refusal)
        return None

    def _refusal(self, record: Record, sender: int) -> str | None:  # noqa: ARG002 - batches have no order
        """Return why a message of the right layout is refused; None if it is not."""
        return None


class RecordInlet(BatchInlet):
    """Receives records of a user's own, those of each sender in their order.

    Args:
        gets_all: each sender sends all its records here, so that a number that is missing is one lost.

    Attributes:
        lost: records that a sender has sent before others that came, and that never came.
    """

    def __init__(
        self,
        transport: Transport,
        channel: str,
        layout: RecordLayout,
        job: int,
        rejected: Rejected,
        *,
        gets_all: bool = True,
    ) -> None:
        super().__init__(transport, channel, layout, job, rejected)
        self._gets_all = gets_all
        self.lost = 0
        self._next: dict[tuple[int, int], int] = {}

    def _refusal(self, record: Record, sender: int) -> str | None:
        source = sender, int(record.header["incarnation"])
        sequence = int(record.header["sequence"])
        # A role that was started again goes on where the one before has ended.
        expected = self._next.get(source, sequence if self._transport.incarnation else 0)
        if sequence < expected:
            return f"it is number {sequence} where {expected} is next"
        self._next[source] = sequence + 1
        self.lost += sequence - expected if self._gets_all else 0
        return None

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of messages, and of those that were lost."""
        return super().counts | {"lost": self.lost}


class FragmentInlet(Inlet):
    """Receives the fragments of the actors before a role in their path.

    Args:
        validator: knows these actors; the buffer behind counts what is lost.
        pages: count what becomes of the samples of each actor, and survive the process; none for copies.
    """

    def __init__(
        self,
        transport: Transport,
        channel: str,
        layout: FragmentLayout,
        validator: FragmentValidator,
        pages: Mapping[int, ProductionPage] = MappingProxyType({}),
        holds: int = 0,
    ) -> None:
        super().__init__(transport, channel, holds)
        self._layout = layout
        self._validator = validator
        self._pages = pages
        # Pages know how many a process before this one has dropped, and its reasons have died with it.
        self._reasons = Counter({"reason not reported": sum(page.dropped for page in pages.values())})
        for page in pages.values():
            page.lose()  # What that process had in hand.

    def drop(self, reason: str) -> None:
        """Let go of the first fragment, which is not to be sent on, and count its samples."""
        actor, samples = self._of_first
        self._reasons[reason] += samples
        self._pages[actor].drop(samples)
        self.release()

    def fence(self, rank: int, counts_from: int) -> None:
        """Reject the fragments of a rank's incarnations before one."""
        self._validator.fence(rank, counts_from)

    def sent_on(self) -> None:
        """Let go of the first fragment, which goes to the next role of its path."""
        actor, samples = self._of_first
        self._pages[actor].push(samples)
        self.release()

    def _leave(self) -> None:
        if self._held and self._pages:
            actor, samples = self._of_first
            self._pages[actor].lose(samples)
        self.release()

    @property
    def _of_first(self) -> tuple[int, int]:
        """Actor and samples of the first fragment."""
        fragment = self._held[0][0].record
        assert isinstance(fragment, Fragment)
        return fragment.source[0], int(fragment.header["samples"])

    @property
    def counts(self) -> dict[str, Any]:
        """Counts of fragments, and of the samples in those that the role left out, by reason."""
        dropped = dict(+self._reasons)
        return super().counts | ({"dropped": dropped} if dropped else {})

    def _read(self, claim: Claim) -> Received | None:
        if not self._validator.has_its_size(claim):
            return None
        fragment = Fragment(self._layout, claim.view())
        if self._validator.admit(claim, fragment) is None:
            return None
        if (page := self._pages.get(fragment.source[0])) is not None:
            page.claim(fragment.source[1], int(fragment.header["samples"]))
        return Received(fragment.fields, claim.source, fragment)


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
        record: all of it.
    """

    version: int
    fields: Fields
    record: Record


class SlotReader:
    """Looks at the newest record of a slot.

    Args:
        record: views memory as a record of the slot.
    """

    def __init__(self, transport: Transport, slot: str, record: Callable[[memoryview], Record]) -> None:
        self._transport = transport
        self._slot = slot
        self._record = record

    def latest(self, newer_than: int) -> Latest | None:
        """Copy the newest record if it is newer than a version; None otherwise. Never waits."""
        claim = self._transport.latest(self._slot, newer_than=newer_than)
        if claim is None:
            return None
        try:
            record = self._record(memoryview(bytearray(claim.view())))
            return Latest(claim.version, record.arrays, record)
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
    def counts(self) -> dict[str, dict[str, Any]]:
        """Counts of messages that were sent and received, by channel."""
        counts: dict[str, dict[str, Any]] = {}
        for name, outlet in self.outlets.items():
            counts[name] = dict(outlet.counts)
        for name, inlet in self.inlets.items():
            counts.setdefault(name, {}).update(inlet.counts)
        return counts

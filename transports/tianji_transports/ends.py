"""The ends of what an endpoint sends, receives and reads, and the memory that goes through them.

``Outlet`` and ``Inlet`` are the two ends of one (sender, channel, receiver); an engine derives from them
and says what becomes of memory that is given back. The counting is done by ``endpoint``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from tianji_transports.core import Claim, Loan
from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.wiring import Channel, Slot


def flat_bytes(memory: memoryview) -> memoryview:
    """See contiguous memory as bytes."""
    return memory if memory.format == "B" and memory.ndim == 1 else memory.cast("B")


@dataclass(eq=False)
class Outlet:
    """The sender's end: ``pushed - confirmed`` messages are unclaimed, ``loaned`` more are being filled.

    Attributes:
        dest: rank of the receiver.
        channel: what is sent.
        present: the receiver is there to take messages.
        lost: the receiver is dead and no newer one has come.
        refused: the last ``loan`` answered FULL, so a credit is worth waking for.
        pushed: messages pushed by this endpoint.
        confirmed: those of them that need no credit any more: claimed, or void.
        loaned: loans that are neither pushed nor abandoned.
        void: messages that a dead receiver never claimed.
    """

    dest: int
    channel: Channel
    present: bool = False
    lost: bool = False
    refused: bool = False
    pushed: int = 0
    confirmed: int = 0
    loaned: int = 0
    void: int = 0

    def __post_init__(self) -> None:
        """Keep what every loan reads one attribute away."""
        self.max_bytes = self.channel.max_bytes
        self.window = self.channel.window

    def has_credit(self) -> bool:
        """Whether one more loan may be given."""
        return self.present and self.pushed - self.confirmed + self.loaned < self.window

    def write_off(self) -> None:
        """Count what a dead receiver had not claimed as void; its credit is free for the next one."""
        self.void += self.pushed - self.confirmed
        self.confirmed = self.pushed

    def take_back(self, handle: Any) -> None:
        """Get the memory of an abandoned loan back."""
        raise NotImplementedError


@dataclass(eq=False)
class Inlet:
    """The receiver's end: ``arrived - claimed`` messages of one sender can be claimed.

    Attributes:
        source: rank of the sender.
        channel: what is received.
        arrived: messages that this endpoint knows to be there or to have been there.
        claimed: those of them that were claimed.
        asked: the sender was probed by name since the last news.
        reported: ``arrived`` when ``wait`` last had news.
    """

    source: int
    channel: Channel
    arrived: int = 0
    claimed: int = 0
    asked: bool = False
    reported: int = 0

    def __post_init__(self) -> None:
        """Leave the inbox to the collector of a channel's inlets."""
        self.inbox: Inbox[Any] | None = None

    def reclaim(self, handle: Any) -> None:  # noqa: ARG002 - engines extend it
        """Get the memory of a released claim back; engines extend it."""
        assert self.inbox is not None
        self.inbox.held -= 1


OutletT = TypeVar("OutletT", bound=Outlet)
InletT = TypeVar("InletT", bound=Inlet)
SlotViewT = TypeVar("SlotViewT", bound="SlotView")


@dataclass(eq=False)
class Inbox(Generic[InletT]):
    """A channel that this endpoint receives.

    Attributes:
        channel: what is received.
        inlets: one a sender.
        turn: where the next probe of ANY begins.
        held: claims not yet released.
        asked: ANY was probed since the last news.
    """

    channel: Channel
    inlets: list[InletT]
    turn: int = 0
    held: int = 0
    asked: bool = False
    by_source: dict[int, InletT] = field(init=False)

    def __post_init__(self) -> None:
        """Index the inlets and keep what every probe reads one attribute away."""
        self.by_source = {inlet.source: inlet for inlet in self.inlets}
        self.borrow = self.channel.borrow
        for inlet in self.inlets:
            inlet.inbox = self


@dataclass(eq=False)
class SlotView:
    """A slot that this endpoint reads.

    Attributes:
        slot: what is read.
        version: newest version known to exist.
        seen: newest version claimed or asked about.
        reported: ``version`` when ``wait`` last had news.
        asked: ``latest`` was called since the last news.
        held: its one claim is not yet released.
    """

    slot: Slot
    version: int = -1
    seen: int = -1
    reported: int = -1
    asked: bool = False
    held: bool = False

    def reclaim(self, handle: Any) -> None:  # noqa: ARG002 - engines extend it
        """Get the memory of a released claim back; engines extend it."""
        self.held = False


class Lender(Protocol):
    """What gets a claim's memory back: an inlet or a slot view."""

    def reclaim(self, handle: Any) -> None:
        """Take back what ``handle`` stands for."""


class HeldLoan(Loan, Generic[OutletT]):
    """Memory of an outlet; ``handle`` is the engine's name for it."""

    __slots__ = ("ended", "handle", "memory", "outlet")

    def __init__(self, outlet: OutletT, memory: memoryview, handle: Any) -> None:
        self.memory = memory
        self.outlet = outlet
        self.handle = handle
        self.ended = False

    def abandon(self) -> None:
        """Give the memory back unsent; harmless after ``push`` or when repeated."""
        if not self.ended:
            self.ended = True
            self.outlet.loaned -= 1
            self.outlet.take_back(self.handle)


class HeldClaim(Claim):
    """Memory of a message or of a slot's value, lent by ``lender`` until released."""

    __slots__ = ("_handle", "_lender", "_memory", "nbytes", "source", "version")

    def __init__(
        self, lender: Lender, handle: Any, memory: memoryview, source: int, version: int = 0
    ) -> None:
        self.source = source
        self.nbytes = memory.nbytes
        self.version = version
        self._lender: Lender | None = lender
        self._handle = handle
        self._memory = memory

    def view(self) -> memoryview:
        """Borrow the payload without a copy, read-only, until ``release``."""
        if self._lender is None:
            raise TransportError("this claim was released: its memory may hold another message already")
        memory = self._memory
        return memory if memory.readonly else memory.toreadonly()

    def take(self, into: memoryview) -> int:
        """Copy the payload into ``into`` and release it."""
        nbytes = self.nbytes
        if into.nbytes < nbytes:
            raise MessageTooLargeError(f"a message of {nbytes} bytes does not fit into {into.nbytes}")
        flat_bytes(into)[:nbytes] = self.view()
        self.release()
        return nbytes

    def release(self) -> None:
        """Give the memory back; harmless when repeated."""
        lender, self._lender = self._lender, None
        if lender is not None:
            lender.reclaim(self._handle)

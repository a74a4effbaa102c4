"""Base of all engines: access to channels, window accounting, counters and rules of waking.

``Outlet`` and ``Inlet`` are the two ends of one (sender, channel, receiver), ``SlotView`` the reading end of
a slot; ``Endpoint`` counts what goes through them. An engine derives from all four, and fills in the hooks at
the end of ``Endpoint``. ``wait_for_news`` and ``drain`` let one endpoint sleep, or several of one thread.
"""

from __future__ import annotations

import mmap
import select
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from tianji_transports.core import ANY, FULL, Claim, CloseReport, EngineOptions, Full, Loan, Transport
from tianji_transports.errors import MessageTooLargeError, PeerLostError, TransportError
from tianji_transports.wiring import Channel, Slot, Wiring

CLOSE_POLL_S: Final = 0.05
"""Seconds between two looks at the credits while ``close`` drains."""


def page_memory(nbytes: int) -> memoryview:
    """Allocate page-aligned memory for repeated use: only the first use faults its pages in."""
    return memoryview(mmap.mmap(-1, max(1, nbytes)))


def flat_bytes(memory: memoryview) -> memoryview:
    """View contiguous memory as bytes."""
    return memory if memory.format == "B" and memory.ndim == 1 else memory.cast("B")


@dataclass(eq=False)
class Outlet:
    """The sender's end: ``pushed - confirmed`` messages are unclaimed, ``loaned`` more are being filled.

    Attributes:
        dest: rank of the receiver.
        channel: channel that it sends.
        present: the receiver is there to take messages.
        lost: the receiver is dead and no newer one has come.
        refused: the last ``loan`` answered FULL, so a credit is worth waking for.
        pushed: messages pushed by this endpoint.
        confirmed: pushes that need no credit any more: claimed, or void.
        loaned: loans that are neither pushed nor abandoned.
        void: messages that a dead receiver never claimed.
        free: memory for loans, where the engine has its own.
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
    free: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Copy the limits that every loan reads to the outlet itself."""
        self.max_bytes = self.channel.max_bytes
        self.window = self.channel.window

    def has_credit(self) -> bool:
        """Whether one more loan may be given."""
        return self.present and self.pushed - self.confirmed + self.loaned < self.window

    def write_off(self) -> None:
        """Count a dead receiver's unclaimed messages as void; the next receiver gets their credit."""
        self.void += self.pushed - self.confirmed
        self.confirmed = self.pushed

    def take_back(self, handle: Any) -> None:
        """Get the memory of an abandoned loan back."""
        self.free.append(handle)


@dataclass(eq=False)
class Inlet:
    """The receiver's end: ``arrived - claimed`` messages of one sender can be claimed.

    Attributes:
        source: rank of the sender.
        channel: channel that it receives.
        arrived: messages that are known to have arrived, claimed ones included.
        claimed: messages that were claimed.
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
        """Start without an inbox; ``Inbox`` sets it."""
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
        channel: channel that it receives.
        inlets: one for each sender.
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
        """Index the inlets by source, and copy the borrow limit, which every probe reads."""
        self.by_source = {inlet.source: inlet for inlet in self.inlets}
        self.borrow = self.channel.borrow
        for inlet in self.inlets:
            inlet.inbox = self


@dataclass(eq=False)
class SlotView:
    """A slot that this endpoint reads.

    Attributes:
        slot: slot that it reads.
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


@dataclass(eq=False)
class StoredSlotView(SlotView):
    """A slot whose values arrive in reused memory of this endpoint.

    Attributes:
        handle: the engine's name for the memory of the newest value.
        payload: the newest value.
        lent: the memory that a claim holds.
        free: memory for the next values.
    """

    handle: Any = None
    payload: memoryview = field(default_factory=lambda: memoryview(b""))
    lent: Any = None
    free: list[Any] = field(default_factory=list)

    def replace(self, version: int, handle: Any, payload: memoryview) -> None:
        """Put a newer value in the place of the last one."""
        if self.handle is not None and self.handle is not self.lent:
            self.free.append(self.handle)
        self.version, self.handle, self.payload = version, handle, payload

    def claim(self, newer_than: int) -> HeldClaim | None:
        """Lend the newest value if it is newer."""
        if self.version <= newer_than:
            return None
        self.lent = self.handle
        return HeldClaim(self, self.handle, self.payload, self.slot.writer, self.version)

    def reclaim(self, handle: Any) -> None:
        """Get the memory of a released value back."""
        super().reclaim(handle)
        self.lent = None
        if handle is not self.handle:
            self.free.append(handle)


Lender = Inlet | SlotView
"""The owner of a claim's memory."""


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


class Endpoint(Transport, Generic[OutletT, InletT, SlotViewT]):
    """A transport whose engine supplies memory, delivery and a doorbell; the accounting is here.

    Subclasses build their outlets, inlets and slot views through ``_make_outlet``, ``_make_inlet`` and
    ``_make_slot_view``, which ``_open`` calls for everything in the wiring that this rank is part of.

    Attributes:
        spin_s: seconds that ``wait`` polls before it sleeps, if the caller claimed or pushed something since
            the last wait: a wake-up costs both sides a system call.
    """

    spin_s: ClassVar[float] = 0.0

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._outlets: dict[tuple[int, str], OutletT] = {}
        self._inboxes: dict[str, Inbox[InletT]] = {}
        self._written: dict[str, Slot] = {}
        self._versions: dict[str, int] = {}
        self._read: dict[str, SlotViewT] = {}
        self._moved = False
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Refuse a wiring that asks for more than the engine's capabilities."""
        limit, most = self.capabilities.max_bytes, self.capabilities.max_borrowed
        sized: list[Channel | Slot] = [*self.wiring.channels, *self.wiring.slots]
        for stream in sized:
            if stream.max_bytes > limit:
                raise MessageTooLargeError(
                    f"{stream.name!r} has up to {stream.max_bytes} bytes; {type(self).__name__} moves {limit}"
                )
        for channel in self.wiring.channels:
            if most and channel.borrow > most:
                raise TransportError(
                    f"{channel.name!r} borrows {channel.borrow} claims; {type(self).__name__} lends {most}"
                )

    def _open(self) -> None:
        """Build this rank's ends of the wiring."""
        for channel in self.wiring.channels:
            if channel.receiver == self.rank:
                inlets = [self._make_inlet(channel, source) for source in channel.senders]
                self._inboxes[channel.name] = Inbox(channel, inlets)
            if self.rank in channel.senders:
                self._outlets[channel.receiver, channel.name] = self._make_outlet(channel)
        for slot in self.wiring.slots:
            if slot.writer == self.rank:
                self._written[slot.name] = slot
            if self.rank in slot.readers:
                self._read[slot.name] = self._make_slot_view(slot)

    # -- sending ---------------------------------------------------------------------------------------

    def loan(self, dest: int, channel: str, nbytes: int) -> Loan | Full:
        """Ask for memory to fill, or FULL; see ``Transport.loan``."""
        outlet = self._outlets.get((dest, channel))
        if outlet is None:
            raise self._error(f"rank {self.rank} does not send {channel!r} to rank {dest}")
        if nbytes > outlet.max_bytes:
            raise MessageTooLargeError(
                f"{nbytes} bytes asked of {channel!r}, whose messages have at most {outlet.max_bytes}"
            )
        self._refresh(outlet)
        if outlet.lost:
            raise PeerLostError(f"rank {dest}, which receives {channel!r}, is dead")
        if not outlet.has_credit():
            outlet.refused = True
            self.counters.refusals += 1
            return FULL
        outlet.refused = False
        loan = self._allocate(outlet, nbytes)
        outlet.loaned += 1
        return loan

    def push(self, loan: Loan) -> None:
        """Send a filled loan; see ``Transport.push``."""
        if self._report is not None or not isinstance(loan, HeldLoan) or loan.ended:
            raise self._error("this loan was pushed or abandoned before")
        outlet = loan.outlet
        if outlet.lost:
            loan.abandon()
            raise PeerLostError(f"rank {outlet.dest}, which receives {outlet.channel.name!r}, is dead")
        loan.ended = True
        outlet.loaned -= 1
        outlet.pushed += 1
        self._moved = True
        self._send(loan)
        counters = self.counters
        counters.pushes += 1
        counters.pushed_bytes += loan.memory.nbytes

    def unconfirmed(self, dest: int, channel: str) -> int:
        """Count the pushes to a receiver that it has not claimed yet."""
        outlet = self._outlets.get((dest, channel))
        if outlet is None:
            raise self._error(f"rank {self.rank} does not send {channel!r} to rank {dest}")
        self._refresh(outlet)
        return outlet.pushed - outlet.confirmed

    def peer_lost(self, rank: int) -> None:
        """Handle the death of a peer; callers do so before they restart the peer."""
        for outlet in self._outlets.values():
            if outlet.dest == rank:
                self._refresh(outlet)
                outlet.lost = True
                outlet.write_off()

    # -- receiving -------------------------------------------------------------------------------------

    def probe(self, channel: str, source: int = ANY) -> Claim | None:
        """Claim the next message, if there is one; see ``Transport.probe``."""
        inbox = self._inboxes.get(channel)
        if inbox is None:
            raise self._error(f"rank {self.rank} does not receive {channel!r}")
        if inbox.held >= inbox.borrow:
            raise TransportError(
                f"all {inbox.borrow} claims that the wiring allows on {channel!r} are held: release one first"
            )
        claim: HeldClaim | None
        if source == ANY:
            inbox.asked = True
            claim = self._claim_any(inbox)
        else:
            inlet = inbox.by_source.get(source)
            if inlet is None:
                raise TransportError(f"rank {source} does not send {channel!r} to rank {self.rank}")
            inlet.asked = True
            claim = self._claim(inlet)
        counters = self.counters
        if claim is None:
            counters.misses += 1
            return None
        inbox.held += 1
        self._moved = True
        counters.claims += 1
        counters.claimed_bytes += claim.nbytes
        return claim

    def _claim_any(self, inbox: Inbox[InletT]) -> HeldClaim | None:
        """Ask every sender in turn, beginning after the one served last."""
        inlets, count = inbox.inlets, len(inbox.inlets)
        if count == 1:
            return self._claim(inlets[0])
        for step in range(count):
            index = (inbox.turn + step) % count
            claim = self._claim(inlets[index])
            if claim is not None:
                inbox.turn = index + 1
                return claim
        return None

    def held(self, channel: str) -> int:
        """Count the claims of a channel that are not released."""
        inbox = self._inboxes.get(channel)
        if inbox is None:
            raise self._error(f"rank {self.rank} does not receive {channel!r}")
        return inbox.held

    # -- slots -----------------------------------------------------------------------------------------

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        """Replace a slot's value; see ``Transport.publish``."""
        if slot not in self._written:
            raise self._error(f"rank {self.rank} does not write slot {slot!r}")
        if payload.nbytes > self._written[slot].max_bytes:
            raise MessageTooLargeError(
                f"{payload.nbytes} bytes for slot {slot!r}, which holds {self._written[slot].max_bytes}"
            )
        if version <= self._versions.get(slot, -1):
            raise TransportError(
                f"slot {slot!r} is at version {self._versions[slot]}; {version} is not newer"
            )
        self._publish(self._written[slot], flat_bytes(payload), version)
        self._versions[slot] = version
        self.counters.publishes += 1

    def latest(self, slot: str, newer_than: int = -1) -> Claim | None:
        """Claim a slot's newest value if it is newer; see ``Transport.latest``."""
        view = self._read.get(slot)
        if view is None:
            raise self._error(f"rank {self.rank} does not read slot {slot!r}")
        if view.held:
            raise TransportError(f"a value of slot {slot!r} is held: release it first")
        view.asked = True
        view.seen = max(view.seen, newer_than)
        claim = self._newest(view, newer_than)
        if claim is not None:
            self._moved = view.held = True
            view.seen = max(view.seen, claim.version)
        return claim

    # -- waiting ---------------------------------------------------------------------------------------

    def wait(self, timeout_s: float, also: Sequence[int] = ()) -> bool:
        """Sleep until there is news; see ``Transport.wait``.

        If the caller claims and pushes nothing between two waits, the second does not wake for news that
        the first reported and the caller did not ask for since (no probe of that channel, no ``latest``
        of that slot): a receiver that leaves a channel alone, as back-pressure on its senders, sleeps.
        """
        if self._report is not None:
            raise self._error("wait")
        return wait_for_news((self,), timeout_s, also)

    def bells(self) -> Sequence[int]:
        """Descriptors that become readable when a peer rings while this endpoint is armed.

        Another endpoint of the same thread can then sleep for both. Empty where ``capabilities.rings`` is
        false.
        """
        return ()

    def _news(self) -> bool:
        """Look for a message, a value or a credit worth waking for; remember it as reported."""
        self._look()
        found = self._has_news()
        self._moved = False
        if found:
            for inbox in self._inboxes.values():
                inbox.asked = False
                for inlet in inbox.inlets:
                    inlet.asked, inlet.reported = False, inlet.arrived
            for view in self._read.values():
                view.asked, view.reported = False, view.version
            for outlet in self._outlets.values():
                outlet.refused = outlet.refused and not outlet.has_credit()
        return found

    def _has_news(self) -> bool:
        moved = self._moved
        for inbox in self._inboxes.values():
            asked = moved or inbox.asked
            for inlet in inbox.inlets:
                if inlet.arrived != inlet.claimed and (
                    asked or inlet.asked or inlet.arrived != inlet.reported
                ):
                    return True
        for view in self._read.values():
            if view.version > view.seen and (moved or view.asked or view.version != view.reported):
                return True
        return any(outlet.refused and outlet.has_credit() for outlet in self._outlets.values())

    # -- the end ---------------------------------------------------------------------------------------

    def close(self, drain_s: float = 0.0) -> CloseReport:
        """Drain for at most ``drain_s``, then free everything; see ``Transport.close``."""
        if self._report is not None:
            return self._report
        drain((self,), drain_s)
        self._look()
        unconfirmed = {
            (outlet.dest, outlet.channel.name): outlet.pushed - outlet.confirmed + outlet.void
            for outlet in self._outlets.values()
        }
        unclaimed = {
            (inlet.source, inbox.channel.name): inlet.arrived - inlet.claimed
            for inbox in self._inboxes.values()
            for inlet in inbox.inlets
        }
        self._report = CloseReport(
            +Counter(unconfirmed), +Counter(unclaimed), self.counters
        )  # Without zeros.
        try:
            self._free()
        finally:
            self._outlets.clear()
            self._inboxes.clear()
            self._written.clear()
            self._read.clear()
        return self._report

    def _all_claimed(self) -> bool:
        """Whether every push is claimed."""
        for outlet in self._outlets.values():
            self._refresh(outlet)
            if outlet.pushed != outlet.confirmed:
                return False
        return True

    # -- hooks for engines -----------------------------------------------------------------------------

    @abstractmethod
    def _make_outlet(self, channel: Channel) -> OutletT:
        """Open the sending end of ``channel``."""

    @abstractmethod
    def _make_inlet(self, channel: Channel, source: int) -> InletT:
        """Open the receiving end of ``channel`` for one sender."""

    @abstractmethod
    def _make_slot_view(self, slot: Slot) -> SlotViewT:
        """Open the reading end of ``slot``."""

    @abstractmethod
    def _refresh(self, outlet: OutletT) -> None:
        """Bring ``confirmed`` and ``present`` up to date; clear ``lost`` if a newer receiver is there."""

    @abstractmethod
    def _allocate(self, outlet: OutletT, nbytes: int) -> HeldLoan[OutletT]:
        """Lend memory, reused where possible."""

    @abstractmethod
    def _send(self, loan: HeldLoan[OutletT]) -> None:
        """Deliver a message, which ``outlet.pushed`` counts already; ring the receiver if it sleeps."""

    @abstractmethod
    def _claim(self, inlet: InletT) -> HeldClaim | None:
        """Take the next message of one sender and let that sender know."""

    @abstractmethod
    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        """Copy the value to where readers find it and ring them if they sleep."""

    @abstractmethod
    def _newest(self, view: SlotViewT, newer_than: int) -> HeldClaim | None:
        """Claim the newest value if it is newer."""

    @abstractmethod
    def _look(self) -> None:
        """Bring ``arrived``, ``version``, ``confirmed`` and ``present`` of everything up to date."""

    def _arm(self, armed: bool) -> bool:  # noqa: ARG002 - engines whose doorbell is always on need nothing
        """Make peers ring for every message, credit and value from now on (or no longer).

        Returns:
            Whether peers did not ring before.
        """
        return False

    @abstractmethod
    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        """Sleep until rung or until ``also`` is readable; not at all if rung since the endpoint was armed.

        Returns:
            True if a descriptor in ``also`` is readable.
        """

    @abstractmethod
    def _free(self) -> None:
        """Free everything that the engine holds."""


AnyEndpoint = Endpoint[Any, Any, Any]


def readable(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Sleep until one of the descriptors is readable; returns which are."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(timeout_s * 1000)}


def wait_for_news(endpoints: Sequence[AnyEndpoint], timeout_s: float, also: Sequence[int]) -> bool:
    """Sleep until one of the endpoints has news or ``also`` is readable; see ``Transport.wait``.

    Args:
        endpoints: endpoints of one thread; the first sleeps with the bells of the others beside its own.
    """
    moved = any(endpoint._moved for endpoint in endpoints)
    for endpoint in endpoints:
        endpoint._moved = moved  # A claim from one engine may have left messages of another alone.
    if _news(endpoints):
        return True
    now = time.monotonic()
    deadline = now + timeout_s
    if moved:
        spun = now + min(timeout_s, max(endpoint.spin_s for endpoint in endpoints))
        while time.monotonic() < spun:
            if _news(endpoints):
                return True
    while True:
        if _rest(endpoints, deadline, also) or _news(endpoints):
            return True
        if time.monotonic() >= deadline:
            return False


def drain(endpoints: Sequence[AnyEndpoint], drain_s: float) -> None:
    """Sleep until every push of the endpoints is claimed, or the time is over."""
    deadline = time.monotonic() + drain_s
    while not _all_claimed(endpoints):
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return
        try:
            _arm(endpoints)
            if not _all_claimed(endpoints):
                _sleep(endpoints, min(remaining, CLOSE_POLL_S), ())
        finally:
            _disarm(endpoints)


def _news(endpoints: Sequence[AnyEndpoint]) -> bool:
    # Ask all of them, without a short circuit: each must remember the news that it reported.
    return True in [endpoint._news() for endpoint in endpoints]


def _all_claimed(endpoints: Sequence[AnyEndpoint]) -> bool:
    return all(endpoint._all_claimed() for endpoint in endpoints)


def _arm(endpoints: Sequence[AnyEndpoint]) -> bool:
    return True in [endpoint._arm(True) for endpoint in endpoints]


def _disarm(endpoints: Sequence[AnyEndpoint]) -> None:
    for endpoint in endpoints:
        endpoint._arm(False)


def _rest(endpoints: Sequence[AnyEndpoint], deadline: float, also: Sequence[int]) -> bool:
    """Sleep once; returns whether there is news, or a descriptor in ``also`` is readable."""
    try:
        # A push before the endpoint was armed did not ring: look again before sleeping.
        if _arm(endpoints) and _news(endpoints):
            return True
        return _sleep(endpoints, max(0.0, deadline - time.monotonic()), also)
    finally:
        _disarm(endpoints)


def _sleep(endpoints: Sequence[AnyEndpoint], timeout_s: float, also: Sequence[int]) -> bool:
    """Sleep at the first endpoint; returns whether a descriptor in ``also`` is readable."""
    first, *others = endpoints
    if not others:
        return first._sleep(timeout_s, also)
    bells = [bell for other in others for bell in other.bells()]
    if not first._sleep(timeout_s, [*also, *bells]):
        return False
    for other in others:
        other._sleep(0.0, ())  # clears its rings
    return bool(also) and bool(readable(also, 0.0))

"""What all engines share: who may use which channel, window accounting, counters, rules of waking.

An engine derives from ``Endpoint`` and fills in the hooks at its end; what it keeps per channel and slot
derives from the classes of ``ends``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Generic

from tianji_transports.core import ANY, FULL, Claim, CloseReport, EngineOptions, Full, Loan, Transport
from tianji_transports.ends import (
    HeldClaim,
    HeldLoan,
    Inbox,
    InletT,
    OutletT,
    SlotViewT,
    flat_bytes,
)
from tianji_transports.errors import (
    MessageTooLargeError,
    PeerLostError,
    TransportClosedError,
    TransportError,
)
from tianji_transports.waiting import drain, wait_for_news
from tianji_transports.wiring import Channel, Slot, Wiring


class Endpoint(Transport, Generic[OutletT, InletT, SlotViewT]):
    """A transport whose engine supplies memory, delivery and a doorbell; the accounting is here.

    Subclasses build their outlets, inlets and slot views through ``_make_outlet``, ``_make_inlet`` and
    ``_make_slot_view``, which ``_open`` calls for everything in the wiring that this rank is part of.

    Attributes:
        spin_s: how long ``wait`` looks again and again before it sleeps, if the caller claimed or pushed
            something since the last wait: to be woken costs both sides a system call.
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
        self._report: CloseReport | None = None
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
            raise self._refusal(f"rank {self.rank} does not send {channel!r} to rank {dest}")
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
        """Send what was filled; see ``Transport.push``."""
        if self._report is not None or not isinstance(loan, HeldLoan) or loan.ended:
            raise self._refusal("this loan was pushed or abandoned before")
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
            raise self._refusal(f"rank {self.rank} does not send {channel!r} to rank {dest}")
        self._refresh(outlet)
        return outlet.pushed - outlet.confirmed

    def peer_lost(self, rank: int) -> None:
        """Be told that a peer is dead. Tell it before the peer is restarted."""
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
            raise self._refusal(f"rank {self.rank} does not receive {channel!r}")
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
            raise self._refusal(f"rank {self.rank} does not receive {channel!r}")
        return inbox.held

    # -- slots -----------------------------------------------------------------------------------------

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        """Replace a slot's value; see ``Transport.publish``."""
        if slot not in self._written:
            raise self._refusal(f"rank {self.rank} does not write slot {slot!r}")
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
            raise self._refusal(f"rank {self.rank} does not read slot {slot!r}")
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

        A caller that claims and pushes nothing between two waits is not woken again by what the first
        one reported and it then did not even ask for (no probe of that channel, no look at that slot):
        a receiver that leaves a channel alone, to hold its senders back, sleeps.
        """
        if self._report is not None:
            raise self._refusal("wait")
        return wait_for_news((self,), timeout_s, also)

    def bells(self) -> Sequence[int]:
        """Descriptors that become readable when a peer rings while this endpoint is armed.

        Another endpoint of the same thread then can sleep for both; none where ``capabilities.rings`` is
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

    def _settled(self) -> bool:
        """Whether every push is claimed."""
        for outlet in self._outlets.values():
            self._refresh(outlet)
            if outlet.pushed != outlet.confirmed:
                return False
        return True

    def _refusal(self, reason: str) -> TransportError:
        """The error for a wrong call: closed, or ``reason``."""
        if self._report is not None:
            return TransportClosedError(f"the endpoint of rank {self.rank} is closed")
        return TransportError(f"{reason} in job {self.wiring.job!r}")

    # -- what an engine fills in -----------------------------------------------------------------------

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
        """Lend memory that was used before, wherever that is possible."""

    @abstractmethod
    def _send(self, loan: HeldLoan[OutletT]) -> None:
        """Deliver; ``outlet.pushed`` counts this message already. Ring the receiver if it sleeps."""

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
        """Have peers ring for every message, credit and value from now on (or no longer).

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
        """Give everything back to the system."""

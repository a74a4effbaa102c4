"""Credits as messages: a receiver tells each sender how many of its pushes are claimed.

Engines whose peers share no memory derive from ``CreditEndpoint``. The engine sends and receives;
``CreditEndpoint`` counts claims and decides when a credit is due. One life of a sender begins with HELLO,
which holds the number of earlier pushes; a credit says up to which push all are claimed.

A receiver sends a credit after half a window of claims, which keeps its sender going. It credits fewer when
it finds nothing more to claim, sleeps or drains: the sender may be waiting then. A prompt engine credits the
last message of a queue with its claim, since a receiver may not call its endpoint again for long.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from tianji_transports.core import EngineOptions
from tianji_transports.endpoint import Endpoint, HeldClaim, Inbox, Inlet, Outlet, SlotViewT
from tianji_transports.wiring import Wiring


@dataclass(eq=False)
class CreditOutlet(Outlet):
    """The sender's end of a channel.

    Attributes:
        index: index of the channel in the wiring.
        session: life of the receiver whose answers count; -1 before the first.
    """

    index: int = field(kw_only=True)
    session: int = -1


@dataclass(eq=False)
class Life:
    """One life of a sender, as its receiver sees it.

    Attributes:
        inlet: receiving end of the sender's channel.
        session: number that tells the lives apart.
        route: where its credits go, as the engine names it.
        arrived: number of the last push that has arrived, or begun to.
        begun: ``arrived`` without the messages of this life; equal to ``arrived`` while none has come.
        claimed: number of the last push that was claimed.
        credited: number of the last credit that was sent.
    """

    inlet: CreditInlet
    session: int
    route: Any
    arrived: int

    def __post_init__(self) -> None:
        """Count everything before HELLO as claimed."""
        self.begun = self.claimed = self.credited = self.arrived


@dataclass(eq=False)
class CreditInlet(Inlet):
    """The receiver's end of a channel.

    Attributes:
        index: index of the channel in the wiring.
        queue: messages to claim: the life, the number of the push, its memory, the engine's handle.
        lives: lives of the sender by the engine's key, the oldest first.
    """

    index: int = field(kw_only=True)
    queue: deque[tuple[Any, int, memoryview, Any]] = field(default_factory=deque)
    lives: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copy the limits that every message reads; half a window of credit always keeps a sender going."""
        super().__post_init__()
        self.max_bytes = self.channel.max_bytes
        self.window = self.channel.window
        self.batch = max(1, self.channel.window // 2)


CreditOutletT = TypeVar("CreditOutletT", bound=CreditOutlet)
CreditInletT = TypeVar("CreditInletT", bound=CreditInlet)
LifeT = TypeVar("LifeT", bound=Life)


class CreditEndpoint(
    Endpoint[CreditOutletT, CreditInletT, SlotViewT],
    Generic[CreditOutletT, CreditInletT, SlotViewT, LifeT],
):
    """An endpoint that decides when a credit is due; its engine carries messages and credits.

    Attributes:
        prompt: the endpoint credits a claim that empties a queue at once.
    """

    prompt: ClassVar[bool] = False

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._inlet_of: dict[tuple[int, int], CreditInletT] = {}
        self._outlet_of: dict[tuple[int, int], CreditOutletT] = {}
        self._addresses: dict[int, str] = {}
        self._owed: set[LifeT] = set()

    def _open(self) -> None:
        """Build this rank's ends of the wiring, and map them by (index of the channel, rank of the peer)."""
        super()._open()
        for inbox in self._inboxes.values():
            self._inlet_of.update({(inlet.index, inlet.source): inlet for inlet in inbox.inlets})
        self._outlet_of.update({(outlet.index, outlet.dest): outlet for outlet in self._outlets.values()})

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where peers are; a new address of a known rank means that it was restarted."""
        if self._report is not None:
            raise self._error("connect")
        for rank, address in addresses.items():
            outlets = [outlet for outlet in self._outlets.values() if outlet.dest == rank]
            views = [view for view in self._read.values() if view.slot.writer == rank]
            if (outlets or views) and self._addresses.get(rank) != address:
                self._reach(rank, address, outlets, views)
                self._addresses[rank] = address

    # -- receiving -------------------------------------------------------------------------------------

    def _claim(self, inlet: CreditInletT) -> HeldClaim | None:
        queue = inlet.queue
        if not queue:
            self._receive()
            if not queue:
                self._settle()
                return None
        life, number, memory, handle = queue.popleft()
        inlet.claimed += 1
        life.claimed = number
        if number - life.credited >= inlet.batch or (not queue and self.prompt):
            self._credit(life)
        else:
            self._owed.add(life)
        return HeldClaim(inlet, handle, memory, inlet.source)

    def _claim_any(self, inbox: Inbox[CreditInletT]) -> HeldClaim | None:
        """Claim from the senders in turn, after one look for all of them."""
        inlets, count = inbox.inlets, len(inbox.inlets)
        if count == 1:
            return self._claim(inlets[0])
        if not any(inlet.queue for inlet in inlets):
            self._receive()
        for step in range(inbox.turn, inbox.turn + count):
            inlet = inlets[step % count]
            if inlet.queue:
                inbox.turn = step % count + 1
                return self._claim(inlet)
        self._settle()
        return None

    def _all_claimed(self) -> bool:
        self._settle()  # While this endpoint drains, its senders may wait for credits as well.
        return super()._all_claimed()

    def _settle(self) -> None:
        """Send every credit that is owed."""
        while self._owed:
            self._credit(self._owed.pop())

    def _credit(self, life: LifeT) -> None:
        if life.credited != life.claimed:
            life.credited = life.claimed
            self._send_credit(life)

    # -- hooks for engines -----------------------------------------------------------------------------

    @abstractmethod
    def _reach(
        self, rank: int, address: str, outlets: Sequence[CreditOutletT], views: Sequence[SlotViewT]
    ) -> None:
        """Connect to a rank at its new address, for the channels that it receives and its slots."""

    @abstractmethod
    def _receive(self) -> None:
        """Queue everything that has arrived."""

    @abstractmethod
    def _send_credit(self, life: LifeT) -> None:
        """Send ``life.claimed`` to a sender; does nothing if the sender is gone."""

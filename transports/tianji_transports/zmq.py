"""The engine for several hosts: ZMQ over TCP, zero-copy frames, CURVE off loopback.

An endpoint has one ROUTER that everybody who sends to it connects to, one DEALER for each rank that it sends
to or reads slots of, and one PUB or SUB for each of its slots. Frames are described in ``zmq_frames``.
The memory of a loan is ZMQ's until the receiver's credit says that it has claimed what was in it.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import secrets
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import zmq

from tianji_transports.core import Capabilities, EngineOptions
from tianji_transports.endpoint import Endpoint
from tianji_transports.ends import HeldClaim, HeldLoan, Inlet, Outlet, SlotView
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Channel, Slot, Wiring
from tianji_transports.zmq_frames import (
    LINE,
    Header,
    Kind,
    control_frame,
    digest,
    read_header,
    write_header,
)
from tianji_transports.zmq_sockets import MORE, NOBLOCK, Sockets, readable

SHARED_BYTES = 64 * 1024
"""Frames from this size on are sent without a copy."""
JOIN_FIRST_S = 0.02
"""Pause after the first JOIN, doubled each time: a subscription takes effect unseen."""
AGAIN_S = 1.0
"""Pause between two HELLOs or JOINs in the long run: a reconnection may have swallowed one, or its answer."""


@dataclass(eq=False)
class Buffer:
    """Memory for a header and a payload, and the ZMQ frame over as much of it as was sent last.

    A frame that is sent again only counts one reference more. A new one for every message would have
    pyzmq's collector thread woken for every message.
    """

    memory: memoryview
    frame: zmq.Frame | None = None

    def framed(self, nbytes: int) -> zmq.Frame | memoryview:
        """The first ``nbytes`` as what is cheapest to send: small ones are copied."""
        if nbytes < SHARED_BYTES:
            return self.memory[:nbytes]
        if self.frame is None or len(self.frame) != nbytes:
            self.frame = zmq.Frame(self.memory[:nbytes], copy=False)
        return self.frame


@dataclass(eq=False)
class ZmqOutlet(Outlet):
    """The sender's end.

    Attributes:
        index: of the channel in the wiring.
        free: memory for loans.
        flying: memory that ZMQ may still read, with the number of its push.
        session: the receiver's life that answered HELLO, 0 before.
        hello_at: when to say HELLO next, while nobody answers.
    """

    index: int = field(kw_only=True)
    free: list[Buffer] = field(default_factory=list)
    flying: deque[tuple[int, Buffer]] = field(default_factory=deque)
    session: int = 0
    hello_at: float = 0.0

    def take_back(self, handle: Buffer) -> None:
        """Return an unsent message's memory."""
        self.free.append(handle)

    def credit(self, number: int) -> None:
        """Learn that every push up to ``number`` was claimed: its memory is ours again."""
        if self.confirmed < number <= self.pushed:
            self.confirmed = number
            while self.flying and self.flying[0][0] <= number:
                self.free.append(self.flying.popleft()[1])


@dataclass(eq=False)
class Life:
    """One life of a sender, as its receiver sees it: the last push that arrived and the last one claimed."""

    identity: bytes
    arrived: int
    claimed: int


@dataclass(eq=False)
class ZmqInlet(Inlet):
    """The receiver's end; ``queue`` holds what arrived: whose, its number, its frame."""

    index: int = field(kw_only=True)
    queue: deque[tuple[Life, int, memoryview]] = field(default_factory=deque)
    lives: dict[bytes, Life] = field(default_factory=dict)


@dataclass(eq=False)
class ZmqSlotView(SlotView):
    """The reading end of a slot: its newest value, and when to ask next whether that is so."""

    index: int = field(kw_only=True)
    value: memoryview | None = None
    pause_s: float = JOIN_FIRST_S
    join_at: float = 0.0


class ZmqTransport(Endpoint[ZmqOutlet, ZmqInlet, ZmqSlotView]):
    """An endpoint of the ZMQ engine."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        cross_host=True, lends=True, max_borrowed=0, peer_restart=True, max_bytes=1 << 32
    )

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._digest = digest(wiring)
        self._session = secrets.randbits(63) + 1
        self._values: dict[int, bytearray] = {}
        written = [index for index, slot in enumerate(wiring.slots) if slot.writer == rank]
        self._sockets = Sockets(wiring, rank, self._session, self.options, written)
        try:
            self._open()
            loops = any(outlet.dest == rank for outlet in self._outlets.values())
            if loops or any(view.slot.writer == rank for view in self._read.values()):
                self.connect({rank: self.address})
        except BaseException:
            self._sockets.close()
            raise

    @property
    def address(self) -> str:
        """Where peers reach this endpoint: its ROUTER, then the PUB of each slot that it writes."""
        return self._sockets.address

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where peers are; a new address of a known rank means that it was restarted."""
        if self._report is not None:
            raise self._refusal("connect")
        for rank, address in addresses.items():
            outlets = [outlet for outlet in self._outlets.values() if outlet.dest == rank]
            views = [view for view in self._read.values() if view.slot.writer == rank]
            if not (outlets or views) or self._sockets.knows(rank, address):
                continue
            self._sockets.connect(rank, address, [view.index for view in views])
            for outlet in outlets:
                outlet.present, outlet.hello_at = False, 0.0
                self._refresh(outlet)
            for view in views:
                view.pause_s, view.join_at = JOIN_FIRST_S, 0.0

    # -- opening ---------------------------------------------------------------------------------------

    def _make_outlet(self, channel: Channel) -> ZmqOutlet:
        return ZmqOutlet(channel.receiver, channel, index=self.wiring.channels.index(channel))

    def _make_inlet(self, channel: Channel, source: int) -> ZmqInlet:
        return ZmqInlet(source, channel, index=self.wiring.channels.index(channel))

    def _make_slot_view(self, slot: Slot) -> ZmqSlotView:
        return ZmqSlotView(slot, index=self.wiring.slots.index(slot))

    # -- sending ---------------------------------------------------------------------------------------

    def _header(self, kind: Kind, index: int, number: int, nbytes: int = 0) -> Header:
        return Header(self._digest, kind, index, self.rank, self._session, number, nbytes)

    def _control(self, kind: Kind, index: int, number: int) -> bytes:
        return control_frame(Header(self._digest, kind, index, self.rank, self._session, number, 0))

    def _tell(self, rank: int, kind: Kind, index: int, number: int) -> None:
        self._sockets.dealers[rank].send(self._control(kind, index, number), NOBLOCK)

    def _refresh(self, outlet: ZmqOutlet) -> None:
        dealer = self._sockets.dealers.get(outlet.dest)
        if dealer is None:
            return
        while readable(dealer):
            self._answered(outlet.dest, dealer.recv(NOBLOCK, copy=False).buffer)
        if not outlet.present and (now := time.monotonic()) >= outlet.hello_at:
            outlet.hello_at = now + AGAIN_S
            self._tell(outlet.dest, Kind.HELLO, outlet.index, outlet.pushed)

    def _answered(self, rank: int, frame: memoryview) -> None:
        """Take in what a receiver tells its sender."""
        header = read_header(frame, self._digest)
        outlet = None
        if header is not None and header.rank == rank and header.stream < len(self.wiring.channels):
            outlet = self._outlets.get((rank, self.wiring.channels[header.stream].name))
        if header is None or outlet is None or outlet.index != header.stream:
            self.counters.rejected += 1
        elif header.kind == Kind.WELCOME:
            self._welcomed(outlet, header.session)
        elif header.session != outlet.session:
            self.counters.rejected += 1
        elif header.kind == Kind.CREDIT:
            outlet.credit(header.number)
        elif header.kind == Kind.BYE:
            outlet.present = False
        else:
            self.counters.rejected += 1

    def _welcomed(self, outlet: ZmqOutlet, session: int) -> None:
        if outlet.session != session:
            outlet.write_off()
            # ZMQ may still hold what went to the earlier life: that memory is not used again.
            outlet.flying.clear()
            outlet.session = session
        outlet.present = True
        outlet.lost = False

    def _allocate(self, outlet: ZmqOutlet, nbytes: int) -> HeldLoan[ZmqOutlet]:
        if outlet.free:
            buffer = outlet.free.pop()
        else:
            buffer = Buffer(memoryview(mmap.mmap(-1, LINE + outlet.max_bytes)))
        return HeldLoan(outlet, buffer.memory[LINE : LINE + nbytes], buffer)

    def _send(self, loan: HeldLoan[ZmqOutlet]) -> None:
        outlet, buffer, nbytes = loan.outlet, loan.handle, loan.memory.nbytes
        write_header(buffer.memory, self._header(Kind.DATA, outlet.index, outlet.pushed, nbytes))
        outlet.flying.append((outlet.pushed, buffer))
        frame = buffer.framed(LINE + nbytes)
        try:
            self._sockets.dealers[outlet.dest].send(frame, NOBLOCK, copy=frame is not buffer.frame)
        except zmq.ZMQError as error:
            raise TransportError(f"ZMQ cannot send to rank {outlet.dest}: {error}") from error

    # -- receiving -------------------------------------------------------------------------------------

    def _claim(self, inlet: ZmqInlet) -> HeldClaim | None:
        if not inlet.queue:
            self._receive()
            if not inlet.queue:
                return None
        life, number, frame = inlet.queue.popleft()
        inlet.claimed += 1
        life.claimed = number
        self._reply(life.identity, Kind.CREDIT, inlet.index, number)
        return HeldClaim(inlet, None, frame[LINE:], inlet.source)

    def _reply(self, identity: bytes, kind: Kind, index: int, number: int) -> None:
        # A sender that is gone needs no answer.
        with contextlib.suppress(zmq.ZMQError):
            self._sockets.router.send(identity, MORE | NOBLOCK)
            self._sockets.router.send(self._control(kind, index, number), NOBLOCK)

    def _receive(self) -> None:
        """Take in everything that the ROUTER has."""
        router = self._sockets.router
        self._sockets.authenticate()
        while readable(router):
            identity = router.recv(NOBLOCK)
            frame = router.recv(NOBLOCK, copy=False)
            if frame.more:
                router.recv_multipart(NOBLOCK)
            memory = frame.buffer
            header = None if frame.more else read_header(memory, self._digest)
            if header is None or not self._accept(header, identity, memory):
                self.counters.rejected += 1

    def _accept(self, header: Header, identity: bytes, frame: memoryview) -> bool:
        """Take in one frame of a sender or reader; say whether it made sense."""
        if header.kind == Kind.JOIN:
            return self._joined(header)
        inlet = self._inlet_of(header)
        if inlet is None:
            return False
        if header.kind == Kind.HELLO:
            inlet.lives[identity] = Life(identity, header.number, header.number)
            self._reply(identity, Kind.WELCOME, header.stream, header.number)
            return True
        life = inlet.lives.get(identity)
        if header.kind != Kind.DATA or life is None or header.nbytes > inlet.channel.max_bytes:
            return False
        if not life.arrived < header.number <= life.claimed + inlet.channel.window:
            return False
        life.arrived = header.number
        inlet.arrived += 1
        inlet.queue.append((life, header.number, frame))
        return True

    def _inlet_of(self, header: Header) -> ZmqInlet | None:
        if header.stream >= len(self.wiring.channels):
            return None
        inbox = self._inboxes.get(self.wiring.channels[header.stream].name)
        inlet = inbox.by_source.get(header.rank) if inbox is not None else None
        return inlet if inlet is not None and inlet.index == header.stream else None

    # -- slots -----------------------------------------------------------------------------------------

    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        index = self.wiring.slots.index(slot)
        value = self._values.setdefault(index, bytearray())
        if len(value) != LINE + payload.nbytes:
            value = self._values[index] = bytearray(LINE + payload.nbytes)
        write_header(value, self._header(Kind.VALUE, index, version + 1, payload.nbytes))
        value[LINE:] = payload
        self._sockets.publishers[index].send(value, NOBLOCK)

    def _joined(self, header: Header) -> bool:
        """Publish a value again if a reader lacks it."""
        publisher = self._sockets.publishers.get(header.stream)
        if publisher is None or header.rank not in self.wiring.slots[header.stream].readers:
            return False
        value = self._values.get(header.stream)
        if value is not None and self._versions[self.wiring.slots[header.stream].name] + 1 > header.number:
            publisher.send(value, NOBLOCK)
        return True

    def _newest(self, view: ZmqSlotView, newer_than: int) -> HeldClaim | None:
        self._update(view)
        if view.value is None or view.version <= newer_than:
            return None
        return HeldClaim(view, None, view.value[LINE:], view.slot.writer, view.version)

    def _update(self, view: ZmqSlotView) -> None:
        """Take in what the SUB has; ask for the value if it may have been missed."""
        subscriber = self._sockets.subscribers.get(view.index)
        if subscriber is None:
            return
        while readable(subscriber):
            frame = subscriber.recv(NOBLOCK, copy=False).buffer
            header = read_header(frame, self._digest)
            if header is None or header.kind != Kind.VALUE or header.stream != view.index:
                self.counters.rejected += 1
            elif header.number - 1 > view.version:
                view.version, view.value = header.number - 1, frame
        now = time.monotonic()
        if now >= view.join_at:
            view.join_at = now + view.pause_s
            view.pause_s = min(2 * view.pause_s, AGAIN_S)
            self._tell(view.slot.writer, Kind.JOIN, view.index, view.version + 1)

    # -- waiting ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        for outlet in self._outlets.values():
            self._refresh(outlet)
        self._receive()
        for view in self._read.values():
            self._update(view)

    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        sockets = self._sockets
        calls = [view.join_at for view in self._read.values() if view.index in sockets.subscribers]
        calls += [
            outlet.hello_at
            for outlet in self._outlets.values()
            if not outlet.present and outlet.dest in sockets.dealers
        ]
        until_call = max(0.0, min(calls, default=math.inf) - time.monotonic())
        return sockets.sleep(min(timeout_s, until_call), also)

    # -- the end ---------------------------------------------------------------------------------------

    def _free(self) -> None:
        for inbox in self._inboxes.values():
            for inlet in inbox.inlets:
                for life in inlet.lives.values():
                    self._reply(life.identity, Kind.BYE, inlet.index, 0)
        self._sockets.close()

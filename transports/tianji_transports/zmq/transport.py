"""The engine for several hosts: ZMQ over TCP, zero-copy frames, CURVE off loopback.

An endpoint has one ROUTER that all its senders connect to, one DEALER for each rank that it sends
to or reads slots of, and one PUB or SUB for each of its slots. ``frames`` describes the frames.
The memory of a loan belongs to ZMQ until a credit says that the receiver has claimed the message.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import time
from collections.abc import Sequence
from typing import ClassVar

import zmq

from tianji_transports.core import Capabilities, EngineOptions
from tianji_transports.credit import CreditEndpoint, Life
from tianji_transports.endpoint import HeldClaim, HeldLoan, page_memory
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Channel, Slot, Wiring, digest
from tianji_transports.zmq.door import NOBLOCK
from tianji_transports.zmq.ends import JOIN_FIRST_S, SHARED_BYTES, Buffer, ZmqInlet, ZmqOutlet, ZmqSlotView
from tianji_transports.zmq.frames import (
    LINE,
    Header,
    Kind,
    control_frame,
    read_fields,
    read_header,
    write_header,
)
from tianji_transports.zmq.sockets import MORE, RCVMORE, Sockets, readable

AGAIN_S = 1.0
"""Seconds between two HELLOs or JOINs in the long run: a reconnection may swallow one, or its answer."""
MOST_AT_ONCE = 1000
"""Frames that one look handles: a flood must not keep an endpoint from the rest of its work."""
DATA = int(Kind.DATA)
"""``Kind.DATA`` as a plain integer: every message compares and packs it."""
OTHER_JOB = "it is malformed, or of another job or wiring"


class ZmqTransport(CreditEndpoint[ZmqOutlet, ZmqInlet, ZmqSlotView, Life]):
    """An endpoint of the ZMQ engine."""

    prompt = True
    capabilities: ClassVar[Capabilities] = Capabilities(
        cross_host=True, lends=True, max_borrowed=0, peer_restart=True, max_bytes=1 << 32
    )

    @classmethod
    def libraries(cls) -> dict[str, str]:
        """Versions of pyzmq and libzmq."""
        return {"pyzmq": f"{zmq.__version__}, libzmq {zmq.zmq_version()}"}

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._digest = digest(wiring)
        self._session = secrets.randbits(63) + 1
        received = (channel.max_bytes for channel in wiring.channels if channel.receiver == rank)
        # ZMQ's own frame costs more than a small copy.
        self._copies = max(received, default=0) < SHARED_BYTES
        self._values: dict[int, bytearray] = {}
        self._sent_at: dict[int, float] = {}
        written = [index for index, slot in enumerate(wiring.slots) if slot.writer == rank]
        self._sockets = Sockets(wiring, rank, self._session, self.options, written)
        try:
            self._open()
            self.connect({rank: self.address})  # The rank may send to itself.
        except BaseException:
            self._sockets.close()
            raise

    @property
    def address(self) -> str:
        """Where peers reach this endpoint: its ROUTER, then the PUB of each slot that it writes."""
        return self._sockets.address

    def _reach(
        self, rank: int, address: str, outlets: Sequence[ZmqOutlet], views: Sequence[ZmqSlotView]
    ) -> None:
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

    def _control(self, kind: Kind, index: int, number: int) -> bytes:
        return control_frame(Header(self._digest, kind, index, self.rank, self._session, number, 0))

    def _send_control(self, rank: int, kind: Kind, index: int, number: int) -> None:
        with contextlib.suppress(zmq.Again):  # It is sent again after a while.
            self._sockets.dealers[rank].send(self._control(kind, index, number), NOBLOCK)

    def unconfirmed(self, dest: int, channel: str) -> int:
        """Count the pushes to a receiver that it has not claimed, after its latest answers."""
        self._read_answers(dest)
        return super().unconfirmed(dest, channel)

    def peer_lost(self, rank: int) -> None:
        """Handle the death of a peer; answers that it sent before are read first."""
        self._read_answers(rank)
        super().peer_lost(rank)

    def _all_claimed(self) -> bool:
        self._read_all_answers()
        return super()._all_claimed()

    def _refresh(self, outlet: ZmqOutlet) -> None:
        if outlet.present and not outlet.lost:
            # While half a window is left, the receiver's answers can wait; then a look now and then will do.
            used = outlet.pushed - outlet.confirmed + outlet.loaned
            if used >= outlet.window or (2 * used >= outlet.window and outlet.pushed % outlet.stride == 0):
                self._read_answers(outlet.dest)
            return
        self._read_answers(outlet.dest)
        if not outlet.present and outlet.dest in self._sockets.dealers:
            now = time.monotonic()
            if now >= outlet.hello_at:
                outlet.hello_at = now + AGAIN_S
                self._send_control(outlet.dest, Kind.HELLO, outlet.index, outlet.pushed)

    def _read_all_answers(self) -> None:
        for rank in self._sockets.dealers:
            self._read_answers(rank)

    def _read_answers(self, rank: int) -> None:
        """Handle the answers of a receiver."""
        dealer = self._sockets.dealers.get(rank)
        if dealer is None or self._report is not None:
            return
        self._admit()
        for _ in range(MOST_AT_ONCE):
            if not readable(dealer):
                return
            header = read_header(dealer.recv(NOBLOCK), self._digest)
            reason = OTHER_JOB if header is None else self._answered(rank, header)
            if reason is not None:
                self.counters.reject(f"of an answer of rank {rank}: {reason}")

    def _answered(self, rank: int, header: Header) -> str | None:
        """Handle one answer of a receiver; returns an error string if it is invalid."""
        outlet = self._outlet_of.get((header.stream, rank))
        if outlet is None or header.rank != rank:
            return "nothing is sent there"
        if not outlet.handle(header.kind, header.session, header.number):
            return f"no {outlet.channel.name!r} was sent to that life of it that it could be about"
        return None

    def _allocate(self, outlet: ZmqOutlet, nbytes: int) -> HeldLoan[ZmqOutlet]:
        new = not outlet.free
        buffer = Buffer(page_memory(LINE + outlet.max_bytes)) if new else outlet.free.pop()
        if buffer.nbytes != nbytes:
            buffer.size(nbytes)
        return HeldLoan(outlet, buffer.payload, buffer)

    def _send(self, loan: HeldLoan[ZmqOutlet]) -> None:
        outlet, buffer, nbytes = loan.outlet, loan.handle, loan.memory.nbytes
        number = outlet.pushed
        write_header(
            buffer.memory,
            (self._digest, DATA, outlet.index, self.rank, self._session, number, nbytes),
        )
        dealer = self._sockets.dealers[outlet.dest]
        try:
            if nbytes < SHARED_BYTES:
                dealer.send(buffer.framed, NOBLOCK)
                outlet.free.append(buffer)
            else:
                outlet.flying.append((number, buffer))
                dealer.send(buffer.shared(), NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            raise TransportError(f"ZMQ cannot send to rank {outlet.dest}: {error}") from error

    # -- receiving -------------------------------------------------------------------------------------

    def _send_credit(self, life: Life) -> None:
        self._reply(life.route, Kind.CREDIT, life.inlet.index, life.claimed)

    def _reply(self, identity: bytes, kind: Kind, index: int, number: int) -> bool:
        """Answer a sender; returns False if the sender is gone, and needs no answer."""
        try:
            self._sockets.router.send(identity, MORE | NOBLOCK)
            self._sockets.router.send(self._control(kind, index, number), NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _receive(self) -> None:
        """Read the ROUTER socket."""
        self._admit()
        router = self._sockets.router
        if not readable(router):
            return
        recv, copies = router.recv, self._copies
        with contextlib.suppress(zmq.Again):  # Asking before every message costs more than the one miss.
            for _ in range(MOST_AT_ONCE):
                identity = recv(NOBLOCK)
                if copies:
                    memory, more = memoryview(recv(NOBLOCK)), router.get(RCVMORE)
                else:
                    frame = recv(NOBLOCK, copy=False)
                    memory, more = frame.buffer, frame.more
                if more:
                    router.recv_multipart(NOBLOCK, copy=False)
                    reason: str | None = OTHER_JOB
                else:
                    reason = self._accept(identity, memory)
                if reason is not None:
                    self.counters.reject(reason)

    def _accept(self, identity: bytes, frame: memoryview) -> str | None:
        """Handle one frame of a sender or reader; returns an error string if it is invalid."""
        fields = read_fields(frame, self._digest)
        if fields is None:
            return OTHER_JOB
        _, kind, stream, rank, session, number, nbytes = fields
        if kind != DATA:
            return self._asked(identity, Header._make(fields))
        inlet = self._inlet_of.get((stream, rank))
        life = inlet.lives.get(identity) if inlet is not None else None
        if inlet is None or life is None or life.session != session:
            return "no sender on that channel, or an earlier life of one, sent it"
        # A sender that keeps to the window sends no more than that beyond the last claim.
        if nbytes > inlet.max_bytes or not life.arrived < number <= life.claimed + inlet.window:
            return f"rank {inlet.source} may not send that much on {inlet.channel.name!r}, or not this again"
        life.arrived = number
        inlet.arrived += 1
        inlet.queue.append((life, number, frame[LINE:], None))
        return None

    def _asked(self, identity: bytes, header: Header) -> str | None:
        """Answer the HELLO of a sender or the JOIN of a reader; returns an error string if it is invalid."""
        if header.kind == Kind.JOIN:
            return self._joined(header)
        inlet = self._inlet_of.get((header.stream, header.rank))
        if inlet is None or header.kind != Kind.HELLO:
            return "it is nothing that its rank may say here"

        def greet(whom: bytes) -> bool:
            return self._reply(whom, Kind.WELCOME, inlet.index, header.number)

        if not inlet.begin(identity, header.session, header.number, greet):
            return f"rank {inlet.source} began too often, or before what it had sent"
        greet(identity)
        return None

    # -- slots -----------------------------------------------------------------------------------------

    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        index = self.wiring.slots.index(slot)
        value = self._values.setdefault(index, bytearray())
        if len(value) != LINE + payload.nbytes:
            value = self._values[index] = bytearray(LINE + payload.nbytes)
        nbytes = payload.nbytes
        write_header(value, (self._digest, Kind.VALUE, index, self.rank, self._session, version + 1, nbytes))
        value[LINE:] = payload
        self._sent_at[index] = time.monotonic()
        self._sockets.publishers[index].send(value, NOBLOCK)

    def _joined(self, header: Header) -> str | None:
        """Publish a value again if a reader lacks it; returns an error string if the request is invalid."""
        index = header.stream
        publisher = self._sockets.publishers.get(index)
        if publisher is None or header.rank not in self.wiring.slots[index].readers:
            return "no process of that rank reads anything there"
        value, now = self._values.get(index), time.monotonic()
        if value is None or self._versions[self.wiring.slots[index].name] < header.number:
            return None
        # All readers get it at once. One that has had a value is subscribed: the newest is on its way, and
        # with hundreds of readers still takes a while. One that lacks it then asks again.
        pause_s = AGAIN_S if header.number else JOIN_FIRST_S / 2
        if now >= self._sent_at.get(index, -math.inf) + pause_s:
            self._sent_at[index] = now
            publisher.send(value, NOBLOCK)
        return None

    def _newest(self, view: ZmqSlotView, newer_than: int) -> HeldClaim | None:
        self._update(view)
        if view.value is None or view.version <= newer_than:
            return None
        return HeldClaim(view, None, view.value[LINE:], view.slot.writer, view.version)

    def _update(self, view: ZmqSlotView) -> None:
        """Read the SUB socket; request the value if one may have been missed."""
        subscriber = self._sockets.subscribers.get(view.index)
        if subscriber is None:
            return
        while readable(subscriber):
            frame = subscriber.recv(NOBLOCK, copy=False).buffer
            header = read_header(frame, self._digest)
            if header is None or not view.shows(header):
                self.counters.reject(f"of what came as slot {view.slot.name!r}: {OTHER_JOB}")
            elif header.number - 1 > view.version:
                view.version, view.value = header.number - 1, frame
        now = time.monotonic()
        if now >= view.join_at:
            view.join_at = now + view.pause_s
            view.pause_s = min(2 * view.pause_s, AGAIN_S)
            self._send_control(view.slot.writer, Kind.JOIN, view.index, view.version + 1)

    # -- waiting ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._read_all_answers()
        for outlet in self._outlets.values():
            self._refresh(outlet)
        self._receive()
        self._settle()
        for view in self._read.values():
            self._update(view)

    def _admit(self) -> None:
        """Answer requests to connect, and count rejected ones; endpoints that never wait do so, too."""
        for reason in self._sockets.rejected():
            self.counters.reject(f"of a connection {reason}")

    def undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """Keep strangers from taking descriptors; see ``Transport.undisturbed``."""
        return contextlib.nullcontext() if self._report is not None else self._sockets.door.shut()

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
        for inlet in self._inlet_of.values():
            for life in inlet.lives.values():
                self._reply(life.route, Kind.BYE, inlet.index, 0)
        self._sockets.close()

"""The engine for fast fabrics: UCX, whose tags name job, stream and sender of every message.

Inside a host UCX moves messages through shared memory, between hosts over RDMA or TCP.
``frames`` describes the messages, ``port`` an endpoint's workers. An endpoint receives a message into reused
memory as soon as it begins to arrive, so that nothing waits for a busy, suspended or dead sender.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tianji_transports.core import Capabilities, CloseReport, EngineOptions
from tianji_transports.credit import CreditEndpoint
from tianji_transports.endpoint import HeldClaim, HeldLoan
from tianji_transports.errors import TransportError
from tianji_transports.ucx.ends import Buffer, Publisher, UcxInlet, UcxLife, UcxOutlet, UcxSlotView
from tianji_transports.ucx.frames import LINE, NUMBER, Kind, job_bits, new_session, tag_of, tag_parts
from tianji_transports.ucx.library import describe
from tianji_transports.ucx.port import SMALL, Lane, Port, Tag, address_text, parse_address
from tianji_transports.wiring import Channel, Slot, Wiring

AT_ONCE = 64
"""Rounds in which UCX receives messages that are just arriving, a few messages or fragments each."""


class UcxTransport(CreditEndpoint[UcxOutlet, UcxInlet, UcxSlotView, UcxLife]):
    """An endpoint of the UCX engine."""

    spin_s = 100e-6
    capabilities: ClassVar[Capabilities] = Capabilities(
        cross_host=True, lends=True, max_borrowed=0, peer_restart=True, max_bytes=1 << 32, progresses=False
    )

    @classmethod
    def libraries(cls) -> dict[str, str]:
        """Versions of UCX and ucxx, and the transports that UCX has found here."""
        try:
            found = describe()
        except TransportError as error:
            return {"UCX": str(error)}
        return {
            "UCX": f"{found.version}, ucxx {found.ucxx}",
            "UCX inside a host": ", ".join(found.local) or "nothing but TCP",
            "UCX between hosts": ", ".join(found.remote) or "nothing",
        }

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._job = job_bits(wiring)
        self._session = new_session(incarnation)
        self._pools: dict[str, list[Buffer]] = {}
        self._lives: dict[int, UcxLife] = {}
        self._arriving: list[UcxLife] = []
        self._small, self._opening = Buffer(SMALL), Buffer(NUMBER.size)
        self._lanes: dict[tuple[int, int], Lane] = {}
        self._port = Port(self._job)
        self._publisher = Publisher(wiring, rank, self._port, lambda index: self._tag(Kind.VALUE, index))
        try:
            self._open()
            self._address = address_text(self._session, self._port.lobby.address)
            self.connect({rank: self._address})
        except BaseException:
            self._port.close()
            raise

    @property
    def address(self) -> str:
        """Where peers reach this endpoint: the address of its UCX worker, as text."""
        return self._address

    def _reach(
        self, rank: int, address: str, outlets: Sequence[UcxOutlet], views: Sequence[UcxSlotView]
    ) -> None:
        session, worker_address = parse_address(address, rank)
        endpoint = self._port.endpoint(rank, session, worker_address)
        self._port.forget(rank, session)
        for outlet in outlets:
            self._leave(outlet)
            outlet.session = session
            self._greet(endpoint, Kind.HELLO, outlet.index, outlet.pushed)
        for view in views:
            self._give_up(view)
            view.endpoint, view.session = endpoint, session
            self._greet(endpoint, Kind.JOIN, view.index, view.version + 1)

    def peer_lost(self, rank: int) -> None:
        """Handle the death of a peer; see ``Endpoint.peer_lost``."""
        super().peer_lost(rank)
        for source, session in [lane for lane in self._lanes if lane[0] == rank]:
            self._end(source, session)
        for outlet in self._outlets.values():
            if outlet.dest == rank:
                self._leave(outlet)
        self._publisher.peer_lost(rank)
        for view in self._read.values():
            if view.slot.writer == rank:
                self._give_up(view)
        self._addresses.pop(rank, None)
        self._port.forget(rank)

    def close(self, drain_s: float = 0.0) -> CloseReport:
        """Receive the messages that have come, so that the report counts them; see ``Transport.close``."""
        if self._report is None:
            for _ in range(AT_ONCE):
                self._receive()
        return super().close(drain_s)

    def _leave(self, outlet: UcxOutlet) -> None:
        """Disconnect from a life of the receiver; UCX keeps the messages that it has not sent yet."""
        outlet.reap()
        self._port.lobby.abandon(outlet.flying)
        outlet.flying.clear()
        self._port.bury(outlet.endpoint)
        if outlet.opening is not None:
            self._port.lobby.abandon([(outlet.opening, self._opening)])
        outlet.endpoint, outlet.opening, outlet.present = None, None, False

    def _give_up(self, view: UcxSlotView) -> None:
        """Disconnect from a life of the writer."""
        if view.coming is not None:
            self._port.lobby.abandon([view.coming[:2]])
        view.coming = view.endpoint = None

    # -- opening ---------------------------------------------------------------------------------------

    def _tag(self, kind: Kind, index: int) -> Any:
        return Tag(tag_of(self._job, kind, self._session, self.rank, index))

    def _make_outlet(self, channel: Channel) -> UcxOutlet:
        index = self.wiring.channels.index(channel)
        return UcxOutlet(channel.receiver, channel, index=index, tag=self._tag(Kind.DATA, index))

    def _make_inlet(self, channel: Channel, source: int) -> UcxInlet:
        index = self.wiring.channels.index(channel)
        return UcxInlet(source, channel, index=index, pool=self._pools.setdefault(channel.name, []))

    def _make_slot_view(self, slot: Slot) -> UcxSlotView:
        return UcxSlotView(slot, index=self.wiring.slots.index(slot))

    # -- sending ---------------------------------------------------------------------------------------

    def _send_number(self, endpoint: Any, kind: Kind, index: int, number: int) -> None:
        self._port.send_small(endpoint, self._tag(kind, index), NUMBER.pack(number))

    def _greet(self, endpoint: Any, kind: Kind, index: int, number: int) -> None:
        """Send a number and the address for answers."""
        self._port.send_small(
            endpoint, self._tag(kind, index), NUMBER.pack(number) + self._port.lobby.address
        )

    def _refresh(self, outlet: UcxOutlet) -> None:
        self._receive()
        if outlet.opening is not None:
            outlet.check_open()

    def _allocate(self, outlet: UcxOutlet, nbytes: int) -> HeldLoan[UcxOutlet]:
        outlet.reap()
        buffer = outlet.free.pop() if outlet.free else Buffer(outlet.max_bytes)
        return HeldLoan(outlet, buffer.part(nbytes), buffer)

    def _send(self, loan: HeldLoan[UcxOutlet]) -> None:
        outlet, buffer = loan.outlet, loan.handle
        try:
            request = outlet.endpoint.tag_send(buffer.array, outlet.tag)
        except RuntimeError as error:
            raise TransportError(f"UCX cannot send to rank {outlet.dest}: {error}") from error
        outlet.flying.append((request, buffer))

    # -- receiving -------------------------------------------------------------------------------------

    def _receive(self) -> None:
        """Receive everything that has arrived at any worker."""
        for lane in self._port.lanes:
            if lane.worker is not None:  # the lobby may have had news of a newer life
                self._take_in(lane)
        if self._arriving:
            self._arrivals()

    def _take_in(self, lane: Lane) -> None:
        """Receive everything that has arrived at one worker."""
        port, worker = self._port, lane.worker
        if worker.progress_once():
            port.moved()
        while (probe := worker.tag_probe(port.ours, port.mask, True)).matched:
            life = self._lives.get(probe.sender_tag.value)
            if not (self._data(life, lane, probe) if life is not None else self._control(lane, probe)):
                kind, _, rank, stream = tag_parts(probe.sender_tag.value)
                self.counters.reject(
                    f"{probe.length} bytes of kind {kind}, stream {stream}, rank {rank} are no message here"
                )

    def _data(self, life: UcxLife, lane: Lane, probe: Any) -> bool:
        """Begin to receive a message; returns whether it was valid."""
        inlet, nbytes, number = life.inlet, probe.length, life.arrived + 1
        if nbytes > inlet.max_bytes or number > life.claimed + inlet.window or life.lane is not lane:
            lane.drop(probe)
            return False
        life.arrived = number
        buffer = inlet.pool.pop() if inlet.pool else Buffer(inlet.max_bytes)
        request = lane.worker.tag_recv_with_handle(buffer.whole, probe)
        message = life, number, buffer.memory[:nbytes], buffer
        if not life.coming and request.completed:
            inlet.queue.append(message)
            inlet.arrived += 1
        else:
            life.coming.append((request, message))
            if life not in self._arriving:
                self._arriving.append(life)
        return True

    def _arrivals(self) -> None:
        """Queue complete messages after a few rounds: one that comes through shared memory is almost here."""
        for life in self._arriving:
            for _ in range(AT_ONCE):
                if not life.lane.worker.progress_once():
                    break
            life.arrivals()
        self._arriving = [life for life in self._arriving if life.coming]

    def _end(self, rank: int, session: int) -> None:
        """End a life of a sender: the rest of its incomplete messages will never come."""
        lane, lost = self._lanes.pop((rank, session)), []
        for _ in range(AT_ONCE):
            self._take_in(lane)
        for tag, life in list(self._lives.items()):
            if life.lane is lane:
                lost += life.end()
                del self._lives[tag]
        self._arriving = [life for life in self._arriving if life.coming]
        self._port.close_lane(lane, lost)

    def _control(self, lane: Lane, probe: Any) -> bool:
        """Handle any other message; returns whether it was valid."""
        kind, session, rank, stream = tag_parts(probe.sender_tag.value)
        if kind == Kind.VALUE:
            return self._value(lane, probe, session, rank, stream)
        nbytes = probe.length
        if nbytes < NUMBER.size or nbytes > SMALL or kind == Kind.DATA:
            lane.drop(probe)
            return False
        request = lane.worker.tag_recv_with_handle(self._small.whole, probe)
        if not request.completed:
            lane.abandon([(request, self._small)])
            self._small = Buffer(SMALL)
            return False
        (number,) = NUMBER.unpack_from(self._small.memory)
        address = bytes(self._small.memory[NUMBER.size : nbytes])
        if kind == Kind.HELLO:
            return self._hello(session, rank, stream, number, address)
        if kind in (Kind.JOIN, Kind.ACK):
            return self._publisher.joined(session, rank, stream, number, address)
        return self._answered(lane, Kind(kind), session, rank, stream, number, address)

    def _answered(
        self, lane: Lane, kind: Kind, session: int, rank: int, stream: int, number: int, address: bytes
    ) -> bool:
        """Handle a receiver's message to its sender, or the sender's first message in its lane."""
        if lane is not self._port.lobby:
            return self._lanes.get((rank, session)) is lane
        outlet = self._outlet_of.get((stream, rank))
        if outlet is None or session != outlet.session:
            return False
        if kind == Kind.WELCOME:
            try:
                outlet.endpoint = self._port.reach(rank, address)
            except TransportError:
                return False  # that life is over already
            outlet.write_off()
            outlet.opening = outlet.endpoint.tag_send(self._opening.whole, self._tag(kind, stream))
        elif kind == Kind.CREDIT:
            outlet.credit(number)
        else:
            outlet.present = False
        return True

    def _hello(self, session: int, rank: int, stream: int, number: int, address: bytes) -> bool:
        """Begin a life of a sender; returns whether its HELLO was valid."""
        inlet = self._inlet_of.get((stream, rank))
        if inlet is None or session in inlet.lives or not address:
            return False
        try:
            endpoint = self._port.endpoint(rank, session, address)
        except TransportError:
            return False  # that life is over already
        for earlier in [lane for lane in self._lanes if lane[0] == rank and lane[1] != session]:
            self._end(*earlier)
        self._port.forget(rank, session)
        lane = self._lanes.get((rank, session))
        if lane is None:
            lane = self._lanes[rank, session] = self._port.open_lane()
        life = UcxLife(inlet, session, endpoint, number, lane, self._tag(Kind.CREDIT, stream))
        inlet.lives[session] = life
        self._lives[tag_of(self._job, Kind.DATA, session, rank, stream)] = life
        self._port.send_small(endpoint, self._tag(Kind.WELCOME, stream), NUMBER.pack(number) + lane.address)
        return True

    # -- credits --------------------------------------------------------------------------------------

    def _send_credit(self, life: UcxLife) -> None:
        if life.route is not None:
            self._port.send_small(life.route, life.credit, NUMBER.pack(life.claimed))

    # -- slots -----------------------------------------------------------------------------------------

    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        self._publisher.publish(self.wiring.slots.index(slot), payload, version)
        self._receive()

    def _value(self, lane: Lane, probe: Any, session: int, rank: int, stream: int) -> bool:
        """Begin to receive a value; returns whether it was valid."""
        slots = self.wiring.slots
        view = self._read.get(slots[stream].name) if stream < len(slots) else None
        nbytes = probe.length
        if (
            view is None
            or rank != view.slot.writer
            or session != view.session
            or view.coming is not None
            or lane is not self._port.lobby
            or not LINE <= nbytes <= LINE + view.slot.max_bytes
        ):
            lane.drop(probe)
            return False
        buffer = view.free.pop() if view.free else Buffer(LINE + view.slot.max_bytes)
        view.coming = lane.worker.tag_recv_with_handle(buffer.whole, probe), buffer, nbytes
        self._received(view)
        return True

    def _received(self, view: UcxSlotView) -> None:
        """Check whether a value has arrived completely; ask for a newer one then."""
        if view.coming is None or not view.coming[0].completed:
            return
        _, buffer, nbytes = view.coming
        view.coming = None
        (number,) = NUMBER.unpack_from(buffer.memory)
        if number - 1 > view.version:
            view.replace(number - 1, buffer, buffer.memory[LINE:nbytes])
        else:
            view.free.append(buffer)
        self._send_number(view.endpoint, Kind.ACK, view.index, number)

    def _newest(self, view: UcxSlotView, newer_than: int) -> HeldClaim | None:
        self._receive()
        self._received(view)
        return view.claim(newer_than)

    # -- waiting ---------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._receive()
        for outlet in self._outlets.values():
            outlet.check_open()
        for view in self._read.values():
            self._received(view)
        self._settle()

    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        for lane in self._port.lanes:
            for _ in range(lane.drop_foreign(self._port.ours)):
                self.counters.reject("a message of another job")
        return self._port.sleep(timeout_s, also, self._in_flight())

    def _in_flight(self) -> bool:
        """Whether a send or a receive is incomplete."""
        coming = self._arriving or any(view.coming is not None for view in self._read.values())
        leaving = any(outlet.in_flight() for outlet in self._outlets.values())
        return bool(coming) or leaving or self._publisher.in_flight()

    # -- the end ---------------------------------------------------------------------------------------

    def _free(self) -> None:
        for life in self._lives.values():
            self._send_number(life.route, Kind.BYE, life.inlet.index, 0)
        # A claim or a loan that is still held must not keep UCX alive.
        for key in list(self._lanes):
            self._end(*key)
        for outlet in self._outlets.values():
            self._leave(outlet)
        for view in self._read.values():
            self._give_up(view)
        self._publisher.close()
        self._port.close()

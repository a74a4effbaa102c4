"""The engine for MPI jobs: synchronous sends, matched probes, and MPI moving the bytes into place.

A push is a synchronous send, which is over when the receiver has matched it and begun to receive: that is the
claim. A probe matches (``Improbe``), and taking the claim receives straight into the caller's memory.
Messages carry no header; ``ends`` has the tags that tell streams apart, and the protocol of slots.

MPI rings no bell and has no descriptor, so ``wait`` looks, naps, and naps longer while nothing comes.
``world`` begins and ends MPI. MPI trusts the fabric: so does this engine.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import ClassVar

from tianji_transports.core import Capabilities, EngineOptions
from tianji_transports.endpoint import Endpoint, HeldClaim, HeldLoan, Inbox
from tianji_transports.errors import TransportError
from tianji_transports.mpi.ends import (
    FRAME_BYTES,
    NO_CLAIM,
    NOWHERE,
    Buffer,
    Frame,
    Kind,
    MpiClaim,
    MpiInlet,
    MpiOutlet,
    MpiSlotHead,
    MpiSlotView,
    Port,
    Reader,
    Tags,
    format_address,
    lost,
    parse_address,
)
from tianji_transports.mpi.world import MPI, discard, initialise, largest_tag, leave, reap
from tianji_transports.wiring import Channel, Slot, Wiring

FIRST_NAP_S, LAST_NAP_S, NAP_GROWTH = 50e-6, 5e-3, 1.3
"""First and longest nap of ``wait``, and its growth: a nap is at most a quarter of the idle time."""
SELECTABLE = 1024
"""``select`` takes descriptors below this; it alone sleeps for less than a millisecond."""
BYTE, ANY_SOURCE = MPI.BYTE, MPI.ANY_SOURCE
LOOKS = 8
"""Looks before an answer of "nothing". A look that finds nothing lets MPI move data under way, which the next
one may find; and it costs a fraction of a call from Python."""
TEND_EVERY = 16
"""Probes and loans between two visits to the slots that this endpoint writes."""


class MpiTransport(Endpoint[MpiOutlet, MpiInlet, MpiSlotView]):
    """An endpoint of the MPI engine; its address is its process's rank in the MPI job."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        cross_host=True, lends=False, max_borrowed=0, peer_restart=False, max_bytes=1 << 40, progresses=False
    )

    @classmethod
    def libraries(cls) -> dict[str, str]:
        """Versions of mpi4py and of the MPI library below it."""
        library = MPI.Get_library_version().strip("\0 \n").splitlines()[0]
        return {"mpi4py": f"{metadata.version('mpi4py')}, {' '.join(library.split())}"}

    spin_s = 200e-6

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._world = initialise()
        self._process, self._processes = self._world.Get_rank(), self._world.Get_size()
        ranks = wiring.ranks
        if self._processes == 1 and len(ranks) > 1:
            raise TransportError(
                f"the job has {len(ranks)} ranks and MPI has one process: start it under mpiexec or srun "
                "(`tianji train` does that by itself)"
            )
        reap()
        self._tags = Tags(wiring, largest_tag())
        self._status = MPI.Status()
        self._improbe = self._world.Improbe
        self._ports: dict[str, Port] = {}
        self._heads: dict[str, MpiSlotHead] = {}
        self._slots = any(slot.writer == rank for slot in wiring.slots)
        self._fresh = NO_CLAIM
        self._nap_s = FIRST_NAP_S
        self._untended = 0
        self._open()
        for slot in self._written.values():
            index = wiring.slots.index(slot)
            readers = {reader: Reader(self._tags.value[index, reader]) for reader in slot.readers}
            self._heads[slot.name] = MpiSlotHead(slot, self._tags.join[index], readers)
        self.connect({rank: self.address})

    @property
    def address(self) -> str:
        """Where peers reach this endpoint."""
        return format_address(self._process)

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Learn where peers are, and tell senders and writers where this endpoint is."""
        if self._report is not None:
            raise self._error("connect")
        for rank, address in addresses.items():
            process = parse_address(address, self._processes)
            for inbox in self._inboxes.values():
                inlet = inbox.by_source.get(rank)
                if inlet is None or inlet.process == process:
                    continue
                if process in inlet.port.by_process:
                    other = inlet.port.by_process[process].source
                    raise TransportError(
                        f"ranks {other} and {rank} both send {inbox.channel.name!r} from process {process} "
                        "of the MPI job: they cannot be told apart"
                    )
                inlet.process = process
                inlet.port.by_process[process] = inlet
                self._send_frame(process, inlet.back, Kind.WELCOME)
            for view in self._read.values():
                if view.slot.writer == rank and view.process != process:
                    view.process = process
                    self._send_frame(process, view.join, Kind.WELCOME)

    # -- opening ---------------------------------------------------------------------------------------

    def _make_outlet(self, channel: Channel) -> MpiOutlet:
        index = self.wiring.channels.index(channel)
        tags = self._tags
        return MpiOutlet(channel.receiver, channel, tag=tags.data[index], back=tags.back[index, self.rank])

    def _make_inlet(self, channel: Channel, source: int) -> MpiInlet:
        index = self.wiring.channels.index(channel)
        port = self._ports.get(channel.name)
        if port is None:
            port = self._ports[channel.name] = Port(self._tags.data[index], channel.max_bytes)
        return MpiInlet(source, channel, port=port, back=self._tags.back[index, source])

    def _make_slot_view(self, slot: Slot) -> MpiSlotView:
        index = self.wiring.slots.index(slot)
        return MpiSlotView(slot, tag=self._tags.value[index, self.rank], join=self._tags.join[index])

    # -- frames ----------------------------------------------------------------------------------------

    def _send_frame(self, process: int, tag: int, kind: Kind, number: int = 0) -> None:
        frame = self._tags.frame(kind, self.rank, number)
        reap()
        # Synchronous, too: MPI cannot end with a frame under way, and only a synchronous send shows its end.
        leave(self._world.Issend([frame, MPI.BYTE], process, tag), frame)

    def _receive_frame(self, tag: int) -> tuple[int, Frame] | None:
        """Receive the next frame of a tag, with the process that it came from; drops malformed ones."""
        status = self._status
        while (message := self._improbe(ANY_SOURCE, tag, status)) is not None:
            nbytes, process = status.Get_count(BYTE), status.Get_source()
            memory = bytearray(max(nbytes, FRAME_BYTES))
            message.Recv([memory, MPI.BYTE])
            frame = self._tags.read_frame(memory, nbytes)
            if frame is not None:
                return process, frame
            self.counters.reject(f"{nbytes} bytes of process {process} are no frame of this job")
        return None

    # -- sending ---------------------------------------------------------------------------------------

    def _refresh(self, outlet: MpiOutlet) -> None:
        if self._slots or self._fresh.message is not None:
            self._tend()
        try:
            flying = outlet.flying
            while flying and flying[0].test():
                outlet.free.append(flying.popleft())
                outlet.confirmed += outlet.present
            if outlet.pushed - outlet.confirmed + outlet.loaned >= outlet.window or not outlet.present:
                self._poll_credit(outlet)
        except MPI.Exception as error:
            raise lost(error, f"send {outlet.channel.name!r} to rank {outlet.dest}") from error

    def _poll_credit(self, outlet: MpiOutlet) -> None:
        """Poll for a credit a few times, which is much cheaper than ``wait``."""
        flying = outlet.flying
        if flying and outlet.present:
            test = flying[0].test
            for _ in range(LOOKS):
                if test():
                    outlet.free.append(flying.popleft())
                    outlet.confirmed += 1
                    return
        self._read_answers(outlet)

    def _read_answers(self, outlet: MpiOutlet) -> None:
        """Handle the answers of a channel's receiver."""
        while (received := self._receive_frame(outlet.back)) is not None:
            process, frame = received
            if frame.rank != outlet.dest or frame.kind not in (Kind.WELCOME, Kind.BYE):
                self.counters.reject(f"rank {frame.rank} does not receive {outlet.channel.name!r}")
            elif frame.kind == Kind.WELCOME:
                outlet.write_off()
                outlet.before = outlet.pushed
                outlet.process, outlet.present = process, not outlet.lost
            else:
                # The receiver discarded the rest, which MPI reports like claimed messages.
                outlet.present, outlet.confirmed = False, outlet.before + frame.number
                outlet.strand()

    def _allocate(self, outlet: MpiOutlet, nbytes: int) -> HeldLoan[MpiOutlet]:
        buffer = outlet.free.pop() if outlet.free else Buffer(outlet.max_bytes)
        if buffer.nbytes != nbytes:
            buffer.resize(nbytes, outlet.process, outlet.tag)
        return HeldLoan(outlet, buffer.payload, buffer)

    def _send(self, loan: HeldLoan[MpiOutlet]) -> None:
        if self._fresh.message is not None:
            self._fresh.fetch()
        buffer = loan.handle
        loan.outlet.flying.append(buffer)
        try:
            buffer.start()
        except MPI.Exception as error:
            outlet = loan.outlet
            raise lost(error, f"send {outlet.channel.name!r} to rank {outlet.dest}") from error

    # -- receiving -------------------------------------------------------------------------------------

    def _claim(self, inlet: MpiInlet) -> HeldClaim | None:
        if self._slots or self._fresh.message is not None:
            self._tend()
        while not inlet.queue:
            found = self._match(inlet.port)
            if found is None:
                return None
            found.inlet.keep(found)
        return self._hand_out(inlet.next())

    def _claim_any(self, inbox: Inbox[MpiInlet]) -> HeldClaim | None:
        """Claim from the senders' queues in turn; if all are empty, the first message that MPI matches."""
        if self._slots or self._fresh.message is not None:
            self._tend()
        inlets = inbox.inlets
        port = inlets[0].port
        if not port.matched:
            claim = self._match(port)
            if claim is not None:
                claim.inlet.claimed += 1
                self._fresh = claim
            return claim
        count = len(inlets)
        index = next(i for step in range(count) if inlets[i := (inbox.turn + step) % count].queue)
        inbox.turn = index + 1
        return self._hand_out(inlets[index].next())

    def _match(self, port: Port) -> MpiClaim | None:
        """Match the next message of a channel; the caller queues the claim or hands it out."""
        status = self._status
        try:
            message = self._improbe(ANY_SOURCE, port.tag, status) or self._probe_again(port.tag)
            while message is not None:
                nbytes = status.Get_count(BYTE)
                inlet = port.by_process.get(status.Get_source())
                if inlet is not None and nbytes <= port.max_bytes:
                    inlet.arrived += 1
                    return MpiClaim(inlet, message, nbytes)
                discard(message, nbytes)
                self.counters.reject(
                    f"process {status.Get_source()} does not send this channel"
                    if inlet is None
                    else f"{nbytes} bytes of rank {inlet.source}; {port.max_bytes} is the limit"
                )
                message = self._probe_again(port.tag)
        except MPI.Exception as error:
            raise lost(error, "receive") from error
        return None

    def _probe_again(self, tag: int) -> MPI.Message | None:
        """Probe up to ``LOOKS`` times."""
        for _ in range(LOOKS):
            message = self._improbe(ANY_SOURCE, tag, self._status)
            if message is not None:
                return message
        return None

    def _hand_out(self, claim: MpiClaim) -> MpiClaim:
        claim.inlet.claimed += 1
        self._fresh = claim
        return claim

    # -- slots -----------------------------------------------------------------------------------------

    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        head = self._heads[slot.name]
        try:
            self._serve(head)
            head.publish(payload, version, self._tags)
        except MPI.Exception as error:
            raise lost(error, f"publish slot {slot.name!r}") from error

    def _serve(self, head: MpiSlotHead) -> None:
        """Handle readers that came or went, and send the newest value to readers that lack it."""
        while (received := self._receive_frame(head.join)) is not None:
            process, frame = received
            reader = head.readers.get(frame.rank)
            if reader is None or frame.kind not in (Kind.WELCOME, Kind.BYE):
                self.counters.reject(f"rank {frame.rank} does not read slot {head.slot.name!r}")
            else:
                reader.process = process if frame.kind == Kind.WELCOME else NOWHERE
        head.serve()

    def _newest(self, view: MpiSlotView, newer_than: int) -> HeldClaim | None:
        self._update(view)
        return view.claim(newer_than)

    def _update(self, view: MpiSlotView) -> None:
        if self._slots or self._fresh.message is not None:
            self._tend()
        try:
            view.update(self._tags, self._status, self.counters)
        except MPI.Exception as error:
            raise lost(error, f"receive slot {view.slot.name!r}") from error

    def _tend(self, *, now: bool = False) -> None:
        """Receive a claim that is kept, so that its sender learns of it; now and then serve the slots."""
        self._fresh.fetch()
        self._untended += 1
        if now or self._untended >= TEND_EVERY:
            self._untended = 0
            for head in self._heads.values():
                self._serve(head)

    # -- waiting ---------------------------------------------------------------------------------------

    def wait(self, timeout_s: float, also: Sequence[int] = ()) -> bool:
        """Look, and nap longer and longer while nothing comes; see ``Transport.wait``."""
        if self._moved:
            self._nap_s = FIRST_NAP_S
        return super().wait(timeout_s, also)

    def _look(self) -> None:
        self._tend(now=True)
        for outlet in self._outlets.values():
            self._refresh(outlet)
            self._read_answers(outlet)
        for port in self._ports.values():
            while (found := self._match(port)) is not None:
                found.inlet.keep(found)
        for view in self._read.values():
            self._update(view)

    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        nap_s = min(timeout_s, self._nap_s)
        self._nap_s = min(LAST_NAP_S, NAP_GROWTH * self._nap_s)
        if nap_s > 0 and not also:
            time.sleep(nap_s)
            return False
        if max(also, default=0) < SELECTABLE:
            return bool(select.select(also, (), (), nap_s)[0])
        poller = select.poll()
        for descriptor in also:
            poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(1000 * nap_s))

    # -- the end ---------------------------------------------------------------------------------------

    def _free(self) -> None:
        try:
            self._fresh.fetch()
            for inbox in self._inboxes.values():
                for inlet in inbox.inlets:
                    if inlet.process != NOWHERE:
                        self._send_frame(inlet.process, inlet.back, Kind.BYE, inlet.claimed)
                    inlet.close()
            for outlet in self._outlets.values():
                outlet.close()
            for view in self._read.values():
                if view.process != NOWHERE:
                    self._send_frame(view.process, view.join, Kind.BYE)
                view.close(self._status)
            for head in self._heads.values():
                head.close()
            reap()
        except MPI.Exception as error:
            raise lost(error, f"close the endpoint of rank {self.rank}") from error

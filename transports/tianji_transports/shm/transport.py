"""The engine for one host: iceoryx2's publish-subscribe, written in place and read in place.

There is one iceoryx2 service for each (sender, channel, receiver) and life of the sender. iceoryx2 alone
would discard messages that a receiver is not ready for and report success, so the credits in the job's page
(``page``) decide when to send. Slots live in that page, too: a reader that joins late finds the value there,
without the help of its writer.

Each rank sleeps on a FIFO. A rank that stores something for a sleeping rank writes a byte to the sleeper's
FIFO, which the sleeper polls together with any other descriptor. A FIFO outlives its reader, so ranks that
opened it before a restart still wake the restarted rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import iceoryx2

from tianji_transports.core import Capabilities, EngineOptions
from tianji_transports.endpoint import Endpoint, HeldClaim, HeldLoan, Inlet, Outlet, SlotView, readable
from tianji_transports.errors import TransportError, TransportMemoryError
from tianji_transports.shm.page import LINE, SHM, Page, Pair, SlotArea, lines, remove_stale
from tianji_transports.wiring import Channel, Slot, Wiring

SPARE_PORTS = 4
"""Room for ports of killed processes that are not cleaned up yet."""

Line = ctypes.c_uint8 * LINE

iceoryx2.set_log_level(iceoryx2.LogLevel.Fatal)


class Ports:
    """iceoryx2's side of one endpoint: its node and its services.

    Everything lies under the job's own prefix, so that no other user of iceoryx2 is ever touched.
    """

    def __init__(self, stem: str) -> None:
        config = iceoryx2.config.default()
        config.global_cfg.root_path = iceoryx2.Path.new(f"{SHM}/{stem}.d/")
        config.global_cfg.prefix = iceoryx2.FileName.new(f"{stem}.")
        self.node = (
            iceoryx2.NodeBuilder.new()
            .config(config)
            .signal_handling_mode(iceoryx2.SignalHandlingMode.Disabled)
            .create(iceoryx2.ServiceType.Ipc)
        )

    def service(self, pair: Pair, epoch: int) -> Any:
        """Open the publish-subscribe service of a pair, for one life of its sender."""
        channel = pair.channel
        name = iceoryx2.ServiceName.new(f"{pair.source}/{channel.receiver}/{channel.name}/{epoch}")
        return (
            self.node.service_builder(name)
            .publish_subscribe(iceoryx2.Slice[Line])
            .payload_alignment(iceoryx2.Alignment.new(LINE))
            .enable_safe_overflow(False)
            .history_size(0)
            .subscriber_max_buffer_size(channel.window)
            .subscriber_max_borrowed_samples(channel.borrow)
            .max_publishers(1)
            .max_subscribers(SPARE_PORTS)
            .max_nodes(1 + SPARE_PORTS)
            .open_or_create()
        )

    def publisher(self, pair: Pair, epoch: int) -> Any:
        """Create the sender's port; only the part of its memory that is used gets touched."""
        channel = pair.channel
        return (
            self.service(pair, epoch)
            .publisher_builder()
            .initial_max_slice_len(1 + lines(channel.max_bytes))
            .max_loaned_samples(channel.window)
            # Twice: a killed receiver keeps its share until it is cleaned up.
            .override_sample_preallocation(2 * (channel.window + channel.borrow) + 2)
            .backpressure_strategy(iceoryx2.BackpressureStrategy.DiscardData)
            .create()
        )

    def close(self) -> None:
        """Drop the node; the endpoint has dropped its ports before."""
        del self.node


def _translate(error: BaseException, what: str) -> None:
    """Raise iceoryx2's errors, which have no base class of their own, as one of this package."""
    if type(error).__module__.startswith("iceoryx2"):
        raise TransportMemoryError(f"iceoryx2 cannot {what}: {error}") from error


MOST_RINGS = 4096


class Bells:
    """The FIFO that wakes one rank, and the FIFOs of the ranks that it has woken.

    Attributes:
        own: readable once a rank has rung.
    """

    def __init__(self, stem: str, rank: int) -> None:
        self._stem = stem
        self._opened: dict[int, int] = {}
        self.own = self._open(rank)

    def _open(self, rank: int) -> int:
        path = Path(SHM, f"{self._stem}.bell-{rank}")
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        # Opened for reading and writing: neither side then waits for the other, nor finds it gone.
        descriptor = self._opened[rank] = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return descriptor

    def ring(self, rank: int) -> None:
        """Wake a rank."""
        descriptor = self._opened.get(rank)
        if descriptor is None:
            descriptor = self._open(rank)
        # A full FIFO rings already.
        with contextlib.suppress(BlockingIOError):
            os.write(descriptor, b"!")

    def silence(self) -> None:
        """Read all rings so far."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.own, MOST_RINGS)) == MOST_RINGS:
                pass

    def close(self) -> None:
        """Close every bell."""
        while self._opened:
            os.close(self._opened.popitem()[1])


__all__ = ["ShmTransport", "remove_stale"]

COUNT_BITS = 40
"""A credit cell holds (generation of the receiver << COUNT_BITS) + messages claimed in it."""
COUNT_MASK = (1 << COUNT_BITS) - 1


class Chunks(dict[int, tuple[memoryview, memoryview]]):
    """Views of the chunks that iceoryx2 reuses, by address; each is made once.

    A chunk is one line with the payload's size, then the payload; its views are the size and ``max_bytes``.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._nbytes = LINE + max_bytes

    def __missing__(self, address: int) -> tuple[memoryview, memoryview]:
        """Make the views of a chunk that was not seen before."""
        chunk = memoryview((ctypes.c_uint8 * self._nbytes).from_address(address)).cast("B")
        views = self[address] = chunk[:8].cast("Q"), chunk[LINE:]
        return views


@dataclass(eq=False)
class ShmOutlet(Outlet):
    """The sender's end of a pair.

    Attributes:
        pair: its cells in the page.
        epoch: number of this life of the sender, from 1.
        publisher: iceoryx2's end.
        chunks: views of the publisher's memory.
        generation: generation of the receiver that was seen last, 0 at first.
        base: pushes before that receiver came.
    """

    pair: Pair = field(kw_only=True)
    epoch: int = field(kw_only=True)
    publisher: Any = field(kw_only=True)
    chunks: Chunks = field(kw_only=True)
    generation: int = 0
    base: int = 0

    def take_back(self, handle: Any) -> None:
        """Return an unsent sample."""
        handle.delete()


@dataclass(eq=False)
class ShmInlet(Inlet):
    """The receiver's end of a pair.

    Attributes:
        pair: its cells in the page.
        epoch: the life of the sender that is attached, 0 before the first.
        subscriber: iceoryx2's end.
        chunks: views of the subscriber's memory.
        credit: value of its credit cell.
    """

    pair: Pair = field(kw_only=True)
    epoch: int = 0
    subscriber: Any = None
    chunks: Chunks = field(kw_only=True)
    credit: int = 0

    def reclaim(self, handle: Any) -> None:
        """Return a sample to its publisher."""
        super().reclaim(handle)
        handle.delete()


@dataclass(eq=False)
class ShmSlotView(SlotView):
    """The reading end of a slot; ``hold`` is this reader's cell."""

    area: SlotArea = field(kw_only=True)
    hold: int = field(kw_only=True)
    cells: memoryview = field(kw_only=True)

    def reclaim(self, handle: Any) -> None:
        """Let the writer have the buffer again."""
        super().reclaim(handle)
        self.cells[self.hold] = 0


class ShmTransport(Endpoint[ShmOutlet, ShmInlet, ShmSlotView]):
    """An endpoint of the shared-memory engine."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        cross_host=False, lends=True, max_borrowed=0, peer_restart=True, max_bytes=1 << 34, rings=True
    )
    spin_s = 30e-6

    @classmethod
    def libraries(cls) -> dict[str, str]:
        """Version of iceoryx2."""
        return {"iceoryx2": metadata.version("iceoryx2")}

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        self._page = Page(wiring)
        layout = self._page.layout
        self._cells = self._page.cells
        # ``with self._fence`` keeps the stores before it ahead of the loads after it, across processors:
        # CPython has no fence of its own, and the atomic read-modify-writes of its locks are one.
        self._fence = threading.Lock()
        self._flags = layout.flags
        self._epochs, self._sent = layout.epochs, layout.sent
        self._attached, self._claimed = layout.attached, layout.claimed
        self._ports: Ports | None = None
        self._bells: Bells | None = None
        try:
            self._bells = Bells(self._page.stem, rank)
            self._ring = self._bells.ring
            self._ports = Ports(self._page.stem)
            self._open()
            self._cells[self._flags[rank]] = 0
            self._look()  # a rank that sends to itself finds itself here
        except BaseException as error:
            self._free()
            _translate(error, f"open rank {rank}")
            raise

    @property
    def _iceoryx(self) -> Ports:
        assert self._ports is not None
        return self._ports

    # -- opening ---------------------------------------------------------------------------------------

    def _make_outlet(self, channel: Channel) -> ShmOutlet:
        pair = self._page.layout.pairs[self.rank, channel.name, channel.receiver]
        cell = self._epochs + pair.index
        epoch = self._cells[cell] + 1
        publisher = self._iceoryx.publisher(pair, epoch)
        # The receiver looks for the publisher when it sees the epoch, so the publisher comes first.
        self._cells[cell] = epoch
        self._wake(channel.receiver)
        return ShmOutlet(
            channel.receiver,
            channel,
            pair=pair,
            epoch=epoch,
            publisher=publisher,
            chunks=Chunks(channel.max_bytes),
        )

    def _make_inlet(self, channel: Channel, source: int) -> ShmInlet:
        pair = self._page.layout.pairs[source, channel.name, channel.receiver]
        inlet = ShmInlet(source, channel, pair=pair, chunks=Chunks(channel.max_bytes))
        self._cells[self._attached + pair.index] = 0
        self._attach(inlet)
        return inlet

    def _make_slot_view(self, slot: Slot) -> ShmSlotView:
        area = self._page.layout.slots[slot.name]
        hold = area.holds + slot.readers.index(self.rank)
        self._cells[hold] = 0
        return ShmSlotView(slot, area=area, hold=hold, cells=self._cells)

    def _attach(self, inlet: ShmInlet) -> None:
        """Connect to the sender's present life, if it is a new one."""
        index, cells = inlet.pair.index, self._cells
        epoch = cells[self._epochs + index]
        if epoch == inlet.epoch:
            return
        if inlet.subscriber is not None:
            inlet.subscriber.delete()
        inlet.subscriber = None
        try:
            inlet.subscriber = self._iceoryx.service(inlet.pair, epoch).subscriber_builder().create()
        except Exception as error:
            _translate(error, f"connect rank {self.rank} to rank {inlet.source}")
            raise
        inlet.chunks = Chunks(inlet.channel.max_bytes)
        # This call connects to the publisher: its messages outlive it only for receivers that have connected.
        assert not inlet.subscriber.has_samples()
        inlet.epoch = epoch
        inlet.credit = ((cells[self._claimed + index] >> COUNT_BITS) + 1) << COUNT_BITS
        inlet.arrived = inlet.claimed = inlet.reported = 0
        cells[self._claimed + index] = inlet.credit
        cells[self._attached + index] = epoch
        self._wake(inlet.source)

    # -- sending ---------------------------------------------------------------------------------------

    def _refresh(self, outlet: ShmOutlet) -> None:
        index, cells = outlet.pair.index, self._cells
        outlet.present = cells[self._attached + index] == outlet.epoch
        credit = cells[self._claimed + index]
        if credit >> COUNT_BITS == outlet.generation:
            if not outlet.lost:
                outlet.confirmed = outlet.base + (credit & COUNT_MASK)
        elif outlet.present:
            outlet.publisher.update_connections()
            outlet.generation = credit >> COUNT_BITS
            outlet.lost = False
            outlet.write_off()
            outlet.base = outlet.pushed

    def _allocate(self, outlet: ShmOutlet, nbytes: int) -> HeldLoan[ShmOutlet]:
        try:
            sample = outlet.publisher.loan_slice_uninit((2 * LINE - 1 + nbytes) // LINE)
        except iceoryx2.LoanError as error:
            raise TransportMemoryError(
                f"no memory for {nbytes} bytes of {outlet.channel.name!r} to rank {outlet.dest}: {error}"
            ) from error
        size, payload = outlet.chunks[sample.payload_ptr]
        size[0] = nbytes
        return HeldLoan(outlet, payload[:nbytes], sample)

    def _send(self, loan: HeldLoan[ShmOutlet]) -> None:
        outlet = loan.outlet
        try:
            loan.handle.assume_init().send()
        except iceoryx2.SendError as error:
            raise TransportError(f"iceoryx2 cannot send to rank {outlet.dest}: {error}") from error
        count = outlet.pushed - outlet.base
        self._cells[self._sent + outlet.pair.index] = (outlet.generation << COUNT_BITS) + count
        self._wake(outlet.dest)

    # -- receiving -------------------------------------------------------------------------------------

    def _claim(self, inlet: ShmInlet) -> HeldClaim | None:
        if inlet.subscriber is None:
            self._attach(inlet)
            return None
        sample = inlet.subscriber.receive()
        if sample is None:
            self._attach(inlet)
            return None
        inlet.claimed += 1
        inlet.credit += 1
        self._cells[self._claimed + inlet.pair.index] = inlet.credit
        self._wake(inlet.source)
        size, payload = inlet.chunks[sample.payload_ptr]
        return HeldClaim(inlet, sample, payload[: size[0]], inlet.source)

    # -- slots -----------------------------------------------------------------------------------------

    def _publish(self, slot: Slot, payload: memoryview, version: int) -> None:
        page, cells = self._page, self._cells
        area = page.layout.slots[slot.name]
        with self._fence:
            pass
        # The newest buffer and those that are held, each + 1, are in cells that follow one another.
        taken = {cell - 1 for cell in cells[area.newest : area.end]}
        index = next(index for index in range(area.buffers) if index not in taken)
        start = area.starts[index]
        if cells[start // 8] == 0:
            page.reserve(start, area.stride)
        cells[start // 8] = version + 1
        cells[start // 8 + 1] = payload.nbytes
        page.bytes[start + LINE : start + LINE + payload.nbytes] = payload
        with self._fence:
            pass
        cells[area.newest] = index + 1
        cells[area.version] = version + 1
        for reader in slot.readers:
            self._wake(reader)

    def _newest(self, view: ShmSlotView, newer_than: int) -> HeldClaim | None:
        page, cells, area = self._page, self._cells, view.area
        if cells[area.version] <= newer_than + 1:
            return None
        while True:
            newest = cells[area.newest]
            cells[view.hold] = newest
            with self._fence:
                pass
            if cells[area.newest] == newest:
                break
        start = area.starts[newest - 1]
        version, nbytes = cells[start // 8] - 1, cells[start // 8 + 1]
        payload = page.bytes[start + LINE : start + LINE + nbytes]
        return HeldClaim(view, None, payload, view.slot.writer, version)

    # -- waiting ---------------------------------------------------------------------------------------

    def _wake(self, rank: int) -> None:
        """Wake a rank if it sleeps; the caller has stored its data for that rank before."""
        with self._fence:
            pass
        if self._cells[self._flags[rank]]:
            self._ring(rank)

    def _arm(self, armed: bool) -> bool:
        self._cells[self._flags[self.rank]] = armed
        with self._fence:
            pass
        return True

    def _look(self) -> None:
        cells = self._cells
        for outlet in self._outlets.values():
            self._refresh(outlet)
        for inbox in self._inboxes.values():
            for inlet in inbox.inlets:
                index = inlet.pair.index
                if cells[self._epochs + index] != inlet.epoch:
                    self._follow(inlet)
                else:
                    inlet.arrived = inlet.claimed + max(0, cells[self._sent + index] - inlet.credit)
        for view in self._read.values():
            view.version = cells[view.area.version] - 1

    def _follow(self, inlet: ShmInlet) -> None:
        """Switch to a restarted sender once all messages of its earlier life are claimed."""
        if inlet.subscriber is not None and inlet.subscriber.has_samples():
            inlet.arrived = inlet.claimed + 1
        else:
            self._attach(inlet)

    def bells(self) -> Sequence[int]:
        """The descriptor of this rank's bell."""
        assert self._bells is not None
        return (self._bells.own,)

    def _sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        assert self._bells is not None
        bell = self._bells.own
        ready = readable((bell, *also), timeout_s)
        if bell in ready:
            self._bells.silence()
        return bool(ready - {bell})

    # -- the end ---------------------------------------------------------------------------------------

    def _free(self) -> None:
        for inbox in self._inboxes.values():
            for inlet in inbox.inlets:
                self._cells[self._attached + inlet.pair.index] = 0
                if inlet.subscriber is not None:
                    inlet.subscriber.delete()
        for outlet in self._outlets.values():
            outlet.publisher.delete()
        for view in self._read.values():
            self._cells[view.hold] = 0
            view.cells = memoryview(bytearray(8 * (view.hold + 1))).cast("Q")
        if self._ports is not None:
            self._ports.close()
        if self._bells is not None:
            self._bells.close()
        self._page.close()

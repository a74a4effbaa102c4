"""Channel and slot ends of a ``ucx`` endpoint, and the memory that it reuses.

A writer sends each reader of its slot the newest value, one at a time. A reader acknowledges a value as soon
as it has it, and the writer then sends the newest one if that is newer. So slow readers neither stop the
writer nor make values pile up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tianji_transports.credit import CreditInlet, CreditOutlet, Life
from tianji_transports.endpoint import StoredSlotView, page_memory
from tianji_transports.errors import TransportError
from tianji_transports.ucx.frames import LINE, NUMBER
from tianji_transports.ucx.library import Array
from tianji_transports.ucx.port import Lane, Port
from tianji_transports.wiring import Slot, Wiring


class Buffer:
    """Memory that UCX sends from or receives into, with UCX's handles for all of it and the part last used.

    Attributes:
        memory: all of it; aligned to a page.
        whole: UCX's handle for all of it, to receive into.
        array: UCX's handle for the last ``part``.
        uses: number of incomplete sends of it, where counted.
    """

    __slots__ = ("_nbytes", "_part", "array", "memory", "uses", "whole")

    def __init__(self, nbytes: int) -> None:
        self.memory = page_memory(nbytes)
        self.whole = self.array = Array(self.memory)
        self.uses = 0
        self._part = self.memory
        self._nbytes = -1

    def part(self, nbytes: int) -> memoryview:
        """View the first ``nbytes``; ``array`` is UCX's handle for them from here on."""
        if nbytes != self._nbytes:
            self._part = self.memory[:nbytes]
            self.array = Array(self._part)
            self._nbytes = nbytes
        return self._part


@dataclass(eq=False)
class UcxOutlet(CreditOutlet):
    """The sender's end of a channel.

    Attributes:
        tag: tag of its messages.
        endpoint: UCX endpoint to the receiver's lane; None before its WELCOME.
        opening: request of the first message to the lane, until it has left; then the receiver is present.
        flying: memory that UCX may still read, with its request.
    """

    tag: Any = field(kw_only=True)
    endpoint: Any = None
    opening: Any = None
    flying: deque[tuple[Any, Buffer]] = field(default_factory=deque)

    def reap(self) -> None:
        """Take back the memory that UCX has read."""
        flying = self.flying
        while flying and flying[0][0].completed:
            self.free.append(flying.popleft()[1])

    def in_flight(self) -> bool:
        """Whether UCX still has something to send."""
        self.reap()
        return bool(self.flying) or self.opening is not None

    def check_open(self) -> None:
        """Check whether the way to the receiver is open: UCX connects only while a call is inside it."""
        if self.opening is not None and self.opening.completed:
            self.opening = None
            self.present, self.lost = True, False

    def credit(self, number: int) -> None:
        """Confirm every push up to ``number``."""
        if self.confirmed < number <= self.pushed:
            self.confirmed = number


@dataclass(eq=False)
class UcxLife(Life):
    """One life of a sender on a channel; its messages come in at the lane of that life.

    Attributes:
        lane: worker that receives its messages.
        credit: tag of its credits.
        coming: messages that began to arrive, in order: the request and the future entry of the queue.
    """

    inlet: UcxInlet
    lane: Lane
    credit: Any
    coming: deque[tuple[Any, tuple[UcxLife, int, memoryview, Buffer]]] = field(default_factory=deque)

    def arrivals(self) -> None:
        """Queue the messages that have arrived completely."""
        coming, inlet = self.coming, self.inlet
        while coming and coming[0][0].completed:
            inlet.queue.append(coming.popleft()[1])  # a request keeps the whole worker alive
            inlet.arrived += 1

    def end(self) -> list[tuple[Any, Buffer]]:
        """End the life; returns the requests that will not complete, with their memory."""
        self.arrivals()
        lost = [(request, message[3]) for request, message in self.coming]
        self.coming.clear()
        self.route = None
        return lost


@dataclass(eq=False)
class UcxInlet(CreditInlet):
    """The receiver's end of a channel; all senders of the channel share the memory in ``pool``."""

    pool: list[Buffer] = field(kw_only=True)

    def reclaim(self, handle: Buffer) -> None:
        """Take a released message's memory back."""
        super().reclaim(handle)
        self.pool.append(handle)


@dataclass(eq=False)
class UcxSlotView(StoredSlotView):
    """The reading end of a slot.

    Attributes:
        index: index of the slot in the wiring.
        session: life of the writer that this reader connected to last.
        endpoint: UCX endpoint to that life.
        coming: the value that is arriving: its request, memory, size with its line.
    """

    index: int = field(kw_only=True)
    session: int = -1
    endpoint: Any = None
    coming: tuple[Any, Buffer, int] | None = None


@dataclass(eq=False)
class Reader:
    """A reader of a slot as its writer sees it: its life, the number it has, whether it waits for more."""

    rank: int
    endpoint: Any
    session: int
    has: int
    ready: bool


@dataclass(eq=False)
class SlotHome:
    """The writing end of a slot: the newest value, and the state of each reader.

    Attributes:
        slot: slot that it writes.
        index: index of the slot in the wiring.
        tag: tag of its values.
        number: version + 1 of the newest value; 0 before there is one.
        value: its memory; the first ``LINE`` bytes are its number.
        nbytes: size of line and value, in bytes.
        readers: readers that have joined, by rank.
        flying: values that UCX may still read, with their requests.
        pool: memory for values.
    """

    slot: Slot
    index: int
    tag: Any
    number: int = 0
    value: Buffer | None = None
    nbytes: int = 0
    readers: dict[int, Reader] = field(default_factory=dict)
    flying: list[tuple[Any, Buffer]] = field(default_factory=list)
    pool: list[Buffer] = field(default_factory=list)

    def blank(self) -> Buffer:
        """Get memory for the next value, which UCX is not reading."""
        return self.pool.pop() if self.pool else Buffer(LINE + self.slot.max_bytes)

    def reap(self) -> None:
        """Take back the memory that UCX has read."""
        if not self.flying:
            return
        still = []
        for request, buffer in self.flying:
            if request.completed:
                buffer.uses -= 1
                if buffer.uses == 0 and buffer is not self.value:
                    self.pool.append(buffer)
            else:
                still.append((request, buffer))
        self.flying = still


class Publisher:
    """The slots that one rank writes.

    Args:
        tag: makes the tag of a slot's values from its index.
    """

    def __init__(self, wiring: Wiring, rank: int, port: Port, tag: Callable[[int], Any]) -> None:
        self._port = port
        self._homes = {
            index: SlotHome(slot, index, tag(index))
            for index, slot in enumerate(wiring.slots)
            if slot.writer == rank
        }

    def publish(self, index: int, payload: memoryview, version: int) -> None:
        """Replace a slot's value; send it to the readers that wait for it."""
        home = self._homes[index]
        home.reap()
        value, old = home.blank(), home.value
        NUMBER.pack_into(value.memory, 0, version + 1)
        value.memory[LINE : LINE + payload.nbytes] = payload
        home.value, home.nbytes, home.number = value, LINE + payload.nbytes, version + 1
        if old is not None and old.uses == 0:
            home.pool.append(old)
        for reader in home.readers.values():
            self._serve(home, reader)

    def _serve(self, home: SlotHome, reader: Reader) -> None:
        """Send the newest value to a reader that has acknowledged the last one."""
        if not reader.ready or home.value is None or reader.has >= home.number:
            return
        reader.ready = False
        home.value.part(home.nbytes)
        try:
            request = reader.endpoint.tag_send(home.value.array, home.tag)
        except RuntimeError as error:
            raise TransportError(f"UCX cannot send to rank {reader.rank}: {error}") from error
        home.value.uses += 1
        home.flying.append((request, home.value))

    def joined(self, session: int, rank: int, index: int, number: int, address: bytes) -> bool:
        """Handle a JOIN or an ACK: the reader waits for a value newer than ``number``.

        Args:
            number: version + 1 of the value that the reader has.
            address: address of the reader in its first message, else empty.

        Returns:
            Whether the message was valid.
        """
        home = self._homes.get(index)
        if home is None or rank not in home.slot.readers:
            return False
        reader = home.readers.get(rank)
        if address:
            try:
                endpoint = self._port.endpoint(rank, session, address)
            except TransportError:
                return False  # that life is over already
            self._port.forget(rank, session)
            reader = home.readers[rank] = Reader(rank, endpoint, session, number, True)
        elif reader is None or reader.session != session:
            return False
        reader.has, reader.ready = number, True
        home.reap()
        self._serve(home, reader)
        return True

    def peer_lost(self, rank: int) -> None:
        """Forget a dead reader."""
        for home in self._homes.values():
            home.readers.pop(rank, None)

    def in_flight(self) -> bool:
        """Whether UCX still reads a value."""
        for home in self._homes.values():
            home.reap()
        return any(home.flying for home in self._homes.values())

    def close(self) -> None:
        """Leave the values that UCX still reads to the lobby."""
        for home in self._homes.values():
            self._port.lobby.abandon(home.flying)
        self._homes.clear()

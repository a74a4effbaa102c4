"""What an endpoint of the ``ucx`` engine keeps for each channel and slot, and the memory that it reuses.

Each reader of a slot is sent the newest value, one at a time. It acknowledges a value as soon as it has it,
and is then sent the newest one if that is newer. So slow readers neither stop the writer nor make values pile
up.
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
    """Memory that UCX sends from or receives into, and its handles for as much of it as was used last.

    Attributes:
        memory: all of it; aligned to a page.
        whole: UCX's handle for all of it, to receive into.
        array: UCX's handle for the part that was asked for last.
        uses: how many sends of it are not complete, where that is counted.
    """

    __slots__ = ("_nbytes", "_part", "array", "memory", "uses", "whole")

    def __init__(self, nbytes: int) -> None:
        self.memory = page_memory(nbytes)
        self.whole = self.array = Array(self.memory)
        self.uses = 0
        self._part = self.memory
        self._nbytes = -1

    def part(self, nbytes: int) -> memoryview:
        """The first ``nbytes``; ``array`` is UCX's handle for them from here on."""
        if nbytes != self._nbytes:
            self._part = self.memory[:nbytes]
            self.array = Array(self._part)
            self._nbytes = nbytes
        return self._part


@dataclass(eq=False)
class UcxOutlet(CreditOutlet):
    """The sender's end.

    Attributes:
        tag: of its messages.
        endpoint: to where the receiver wants messages; None before its WELCOME.
        opening: the first message to there, until it has left; then the receiver is there.
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
        """Whether UCX has not sent everything yet."""
        self.reap()
        return bool(self.flying) or self.opening is not None

    def check_open(self) -> None:
        """Check whether the way to the receiver is open: UCX connects only while a call is inside it."""
        if self.opening is not None and self.opening.completed:
            self.opening = None
            self.present, self.lost = True, False

    def credit(self, number: int) -> None:
        """Learn that every push up to ``number`` was claimed."""
        if self.confirmed < number <= self.pushed:
            self.confirmed = number


@dataclass(eq=False)
class UcxLife(Life):
    """One life of a sender; its messages come in where no other's do.

    Attributes:
        lane: where its messages come in.
        credit: tag of its credits.
        coming: messages that began to arrive, in order: the request and what will be queued.
    """

    inlet: UcxInlet
    lane: Lane
    credit: Any
    coming: deque[tuple[Any, tuple[UcxLife, int, memoryview, Buffer]]] = field(default_factory=deque)

    def arrivals(self) -> None:
        """Hand over what has arrived completely."""
        coming, inlet = self.coming, self.inlet
        while coming and coming[0][0].completed:
            inlet.queue.append(coming.popleft()[1])  # a request keeps the whole worker alive
            inlet.arrived += 1

    def end(self) -> list[tuple[Any, Buffer]]:
        """Expect nothing more; give what was arriving: requests that will not complete, and their memory."""
        self.arrivals()
        lost = [(request, message[3]) for request, message in self.coming]
        self.coming.clear()
        self.route = None
        return lost


@dataclass(eq=False)
class UcxInlet(CreditInlet):
    """The receiver's end; ``pool`` is memory of the channel, for all its senders."""

    pool: list[Buffer] = field(kw_only=True)

    def reclaim(self, handle: Buffer) -> None:
        """Take a released message's memory back."""
        super().reclaim(handle)
        self.pool.append(handle)


@dataclass(eq=False)
class UcxSlotView(StoredSlotView):
    """The reading end of a slot.

    Attributes:
        index: of the slot in the wiring.
        session: the writer's life that was connected to last.
        endpoint: to it.
        coming: the value that is arriving: its request, memory, size with its line.
    """

    index: int = field(kw_only=True)
    session: int = -1
    endpoint: Any = None
    coming: tuple[Any, Buffer, int] | None = None


@dataclass(eq=False)
class Reader:
    """A reader of a slot, as its writer sees it: who, what it has, and whether it waits for more."""

    rank: int
    endpoint: Any
    session: int
    has: int
    ready: bool


@dataclass(eq=False)
class SlotHome:
    """The writing end of a slot: the newest value, and who has read what.

    Attributes:
        slot: what is written.
        index: of the slot in the wiring.
        tag: of its values.
        number: version + 1 of the newest value; 0 before there is one.
        value: its memory; the first ``LINE`` bytes are its number.
        nbytes: of line and value.
        readers: by rank.
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
        """Memory for the next value, which is not read."""
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
        """Send the newest value to a reader that has taken in the last one."""
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
        """Handle a reader's version number: it waits for something newer.

        Args:
            number: version + 1 of what it has.
            address: where it can be reached, in its first message.

        Returns:
            Whether that was valid.
        """
        home = self._homes.get(index)
        if home is None or rank not in home.slot.readers:
            return False
        reader = home.readers.get(rank)
        if address:
            try:
                endpoint = self._port.endpoint(rank, session, address)
            except TransportError:
                return False  # it is over already
            self._port.forget(rank, session)
            reader = home.readers[rank] = Reader(rank, endpoint, session, number, True)
        elif reader is None or reader.session != session:
            return False
        reader.has, reader.ready = number, True
        home.reap()
        self._serve(home, reader)
        return True

    def peer_lost(self, rank: int) -> None:
        """Send nothing to a dead reader."""
        for home in self._homes.values():
            home.readers.pop(rank, None)

    def in_flight(self) -> bool:
        """Whether UCX still reads a value."""
        for home in self._homes.values():
            home.reap()
        return any(home.flying for home in self._homes.values())

    def close(self) -> None:
        """Leave to the port what UCX still reads."""
        for home in self._homes.values():
            self._port.lobby.abandon(home.flying)
        self._homes.clear()

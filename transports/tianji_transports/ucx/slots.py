"""The writing side of the ``ucx`` engine's slots: each reader is sent the newest value, one at a time.

A reader acknowledges a value as soon as it has it, and is then sent the newest one if that is newer. So slow
readers neither stop the writer nor make values pile up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tianji_transports.errors import TransportError
from tianji_transports.ucx.ends import Buffer
from tianji_transports.ucx.frames import LINE, NUMBER
from tianji_transports.ucx.port import Port
from tianji_transports.wiring import Slot, Wiring


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
    """Everything that one rank writes.

    Args:
        wiring: of the job.
        rank: who writes.
        port: to send with.
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
        """Take in what a reader has: it waits for something newer.

        Args:
            session: the reader's life.
            rank: the reader's.
            index: of the slot in the wiring.
            number: version + 1 of what it has.
            address: where it can be reached, in its first message.

        Returns:
            Whether that made sense.
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

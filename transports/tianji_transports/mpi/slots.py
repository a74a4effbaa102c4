"""Latest-value slots over MPI: the writer sends every reader a few values at most, and then the newest.

A value stays with MPI until its reader receives it: MPI takes no message back. So a reader that does not
look has ``depth`` values on their way to it, whatever the writer publishes, and is sent the newest as soon
as it has received one of them. A reader receives all that is there and keeps the newest.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tianji_transports.core import Counters
from tianji_transports.ends import HeldClaim, SlotView
from tianji_transports.mpi.ends import NOWHERE, pages
from tianji_transports.mpi.tags import LINE, Tags
from tianji_transports.mpi.world import MPI, discard, leave
from tianji_transports.wiring import Slot

DEPTH_BYTES = 1 << 20
LEAST_DEPTH, MOST_DEPTH = 2, 8
"""Values on their way to a reader: a reader that looks seldom gets the last of them, so more is fresher;
what it does not look at is moved for nothing, so large values are fewer."""


def depth(max_bytes: int) -> int:
    """How many values may be on their way to one reader."""
    return min(MOST_DEPTH, max(LEAST_DEPTH, DEPTH_BYTES // max(1, max_bytes)))


@dataclass(eq=False)
class Value:
    """A published value: a line, its payload, and how many readers it is on its way to."""

    memory: memoryview
    nbytes: int = 0
    version: int = -1
    flying: int = 0


@dataclass(eq=False)
class Reader:
    """A reader as its writer sees it.

    Attributes:
        tag: of values for it.
        process: where it is, once it has said so.
        version: newest version that was sent to it.
        flying: values that it has not received yet, oldest first.
    """

    tag: int
    process: int = NOWHERE
    version: int = -1
    flying: deque[tuple[MPI.Request, Value]] = field(default_factory=deque)


@dataclass(eq=False)
class MpiSlotHead:
    """The writing end of a slot: its newest value, those on their way, and memory for the next."""

    slot: Slot
    join: int
    readers: dict[int, Reader]
    newest: Value | None = None
    free: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Decide how many values may be on their way."""
        self.depth = depth(self.slot.max_bytes)

    def publish(self, payload: memoryview, version: int, tags: Tags) -> None:
        """Replace the value and send it to those who have room for it."""
        value = self.free.pop() if self.free else Value(pages(LINE + self.slot.max_bytes))
        tags.write_version(value.memory, version)
        value.nbytes, value.version = LINE + payload.nbytes, version
        value.memory[LINE : value.nbytes] = payload
        old, self.newest = self.newest, value
        if old is not None and not old.flying:
            self.free.append(old)
        self.serve()

    def serve(self) -> None:
        """See what was received, and send the newest value to the readers that lack it."""
        for reader in self.readers.values():
            flying = reader.flying
            while flying and flying[0][0].Test():
                value = flying.popleft()[1]
                value.flying -= 1
                if not value.flying and value is not self.newest:
                    self.free.append(value)
            newest = self.newest
            if newest is None or reader.process == NOWHERE or reader.version >= newest.version:
                continue
            if len(flying) < self.depth:
                memory = newest.memory[: newest.nbytes]
                request = MPI.COMM_WORLD.Issend([memory, MPI.BYTE], reader.process, reader.tag)
                flying.append((request, newest))
                newest.flying += 1
                reader.version = newest.version

    def close(self) -> None:
        """Leave what is on its way to MPI."""
        for reader in self.readers.values():
            while reader.flying:
                leave(*reader.flying.popleft())


@dataclass(eq=False)
class MpiSlotView(SlotView):
    """The reading end of a slot.

    Attributes:
        tag: of its values.
        join: tag of what the writer is told.
        process: where the writer is.
        value: memory and size of the newest value.
        free: memory for the next ones.
    """

    tag: int = field(kw_only=True)
    join: int = field(kw_only=True)
    process: int = NOWHERE
    value: memoryview | None = None
    nbytes: int = 0
    lent: memoryview | None = None
    free: list[memoryview] = field(default_factory=list)

    def update(self, tags: Tags, status: MPI.Status, counters: Counters) -> None:
        """Receive what there is and keep the newest."""
        while self.process != NOWHERE:
            message = MPI.COMM_WORLD.Improbe(self.process, self.tag, status)
            if message is None:
                break
            nbytes = status.Get_count(MPI.BYTE)
            if not LINE <= nbytes <= LINE + self.slot.max_bytes:
                discard(message, nbytes)
                counters.reject(f"{nbytes} bytes are no value of slot {self.slot.name!r}")
                continue
            memory = self.free.pop() if self.free else pages(LINE + self.slot.max_bytes)
            message.Recv([memory, nbytes, MPI.BYTE])
            version = tags.read_version(memory)
            if version is None or version <= self.version:
                counters.reject(f"version {version} of slot {self.slot.name!r} is of another job or old")
                self.free.append(memory)
                continue
            if self.value is not None and self.value is not self.lent:
                self.free.append(self.value)
            self.value, self.nbytes, self.version = memory, nbytes, version

    def claim(self) -> HeldClaim:
        """Lend the newest value."""
        assert self.value is not None
        self.lent = self.value
        return HeldClaim(self, self.lent, self.lent[LINE : self.nbytes], self.slot.writer, self.version)

    def reclaim(self, handle: memoryview) -> None:
        """Get a value's memory back."""
        super().reclaim(handle)
        self.lent = None
        if handle is not self.value:
            self.free.append(handle)

    def close(self, status: MPI.Status) -> None:
        """Throw away what is there."""
        while self.process != NOWHERE:
            message = MPI.COMM_WORLD.Improbe(self.process, self.tag, status)
            if message is None:
                break
            discard(message, status.Get_count(MPI.BYTE))

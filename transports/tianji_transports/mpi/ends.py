"""Channel and slot ends of an ``mpi`` endpoint, and the tags that tell its streams apart.

A message has no header: its tag names the job and the stream, and MPI names the sender.

    channel   DATA     sender -> receiver   a payload, synchronously: over when it was claimed
              BACK     receiver -> sender   WELCOME: I take messages; BYE: I closed after ``number`` claims
    slot      VALUE    writer -> reader     a line with the version, and the payload
              BACK     reader -> writer     WELCOME: I read; BYE: I closed

The writer of a slot sends every reader a few values at most, and then the newest. A value stays with MPI
until its reader receives it: MPI takes no message back. So a reader that does not look has ``depth`` values
on their way to it, however much the writer publishes, and gets the newest as soon as it has received one of
them. A reader receives all values that are there and keeps the newest.
"""

from __future__ import annotations

import enum
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from tianji_transports.core import Counters
from tianji_transports.endpoint import HeldClaim, Inlet, Outlet, StoredSlotView, flat_bytes, page_memory
from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.mpi.world import MPI, discard, leave
from tianji_transports.wiring import Channel, Slot, Wiring, digest

LINE = 64
"""Bytes before a slot's payload."""
_FRAME = struct.Struct("<QBxxxiQ")
_VERSION = struct.Struct("<Qq")
FRAME_BYTES = _FRAME.size
SCHEME = "mpi:"


class Kind(enum.IntEnum):
    """Kinds of frames."""

    WELCOME = 1
    BYE = 2


class Frame(NamedTuple):
    """A small message that prepares or ends a stream.

    Attributes:
        digest: hash of the job and its wiring.
        kind: a ``Kind``.
        rank: rank of the sender.
        number: claims so far.
    """

    digest: int
    kind: int
    rank: int
    number: int


class Tags:
    """The tags of one job: a block of MPI's tags, chosen by the job's digest.

    Attributes:
        digest: hash of the job and its wiring.
        data: tag of a channel's messages, by channel index.
        back: tag of a receiver's answers, by (channel index, sender).
        value: tag of a slot's values, by (slot index, reader).
        join: tag of the readers' frames to the writer, by slot index.
    """

    def __init__(self, wiring: Wiring, largest: int) -> None:
        self.digest = digest(wiring)
        self.data: dict[int, int] = {}
        self.back: dict[tuple[int, int], int] = {}
        self.value: dict[tuple[int, int], int] = {}
        self.join: dict[int, int] = {}
        count = sum(1 + len(channel.senders) for channel in wiring.channels)
        count += sum(1 + len(slot.readers) for slot in wiring.slots)
        if count > largest:
            raise TransportError(f"the job needs {count} tags; this MPI has {largest}")
        tag = count * (self.digest % ((largest + 1) // max(1, count)))
        for index, channel in enumerate(wiring.channels):
            self.data[index] = tag
            for offset, sender in enumerate(channel.senders, 1):
                self.back[index, sender] = tag + offset
            tag += 1 + len(channel.senders)
        for index, slot in enumerate(wiring.slots):
            self.join[index] = tag
            for offset, reader in enumerate(slot.readers, 1):
                self.value[index, reader] = tag + offset
            tag += 1 + len(slot.readers)

    def frame(self, kind: Kind, rank: int, number: int = 0) -> bytes:
        """Make a frame of this job."""
        return _FRAME.pack(self.digest, kind, rank, number)

    def read_frame(self, memory: bytearray, nbytes: int) -> Frame | None:
        """Read a frame; None if it is malformed or of another job."""
        if nbytes != FRAME_BYTES:
            return None
        frame = Frame._make(_FRAME.unpack_from(memory))
        return frame if frame.digest == self.digest else None

    def write_version(self, into: memoryview, version: int) -> None:
        """Write the line before a slot's payload."""
        _VERSION.pack_into(into, 0, self.digest, version)

    def read_version(self, memory: memoryview) -> int | None:
        """Read the line before a slot's payload; None if it is of another job."""
        found, version = _VERSION.unpack_from(memory)
        return int(version) if found == self.digest else None


def format_address(process: int) -> str:
    """Format the address of an endpoint: its process's rank in the MPI job."""
    return f"{SCHEME}{process}"


def parse_address(address: str, processes: int) -> int:
    """Parse an address of ``format_address``, in a job of so many processes."""
    number = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME) or not number.isdecimal() or int(number) >= processes:
        raise TransportError(f"{address!r} is no address in an MPI job of {processes} processes")
    return int(number)


NOWHERE = -1
"""Stands for the process of a rank whose address is not known yet."""


def lost(error: MPI.Exception, what: str) -> TransportError:
    """Build the error of a failed MPI call."""
    return TransportError(f"MPI cannot {what}: {error}")


class Buffer:
    """Memory for one message, and the request that sends it, reused while the size stays the same.

    Attributes:
        memory: all of it.
        payload: the part of it that the message has.
        nbytes: length of ``payload``; -1 before the first ``resize``.
        request: sends ``payload``; ``start`` begins the send, ``test`` tells whether it is over.
    """

    __slots__ = ("memory", "nbytes", "payload", "request", "start", "test")

    def __init__(self, nbytes: int) -> None:
        self.memory = page_memory(nbytes)
        self.payload = self.memory[:0]
        self.nbytes = -1
        self.request: MPI.Prequest | None = None

    def resize(self, nbytes: int, process: int, tag: int) -> None:
        """Make ``payload`` ``nbytes`` long, and a request that sends it."""
        self.free()
        self.payload, self.nbytes = self.memory[:nbytes], nbytes
        request = MPI.COMM_WORLD.Ssend_init([self.payload, MPI.BYTE], process, tag)
        assert isinstance(request, MPI.Prequest)
        self.request, self.start, self.test = request, request.Start, request.Test

    def free(self) -> None:
        """Free the request, which must not be under way."""
        if self.request is not None:
            self.request.Free()
            self.request = None


@dataclass(eq=False)
class MpiOutlet(Outlet):
    """The sender's end of a channel.

    Attributes:
        tag: tag of its messages.
        back: tag of the receiver's answers.
        process: process of the receiver, from its first answer on.
        before: pushes before this receiver came.
        flying: memory of unclaimed messages, oldest first.
    """

    tag: int = field(kw_only=True)
    back: int = field(kw_only=True)
    process: int = NOWHERE
    before: int = 0
    flying: deque[Buffer] = field(default_factory=deque)

    def write_off(self) -> None:
        """Count the unclaimed messages of a receiver that is gone as void."""
        super().write_off()
        self.strand()

    def strand(self) -> None:
        """Leave sends under way, and their memory, to MPI."""
        while self.flying:
            buffer = self.flying.popleft()
            assert buffer.request is not None
            leave(buffer.request, buffer)

    def close(self) -> None:
        """Free the memory; leave sends under way to MPI."""
        while self.free:
            self.free.pop().free()
        self.strand()


@dataclass(eq=False)
class Port:
    """The receiving side of a channel: a message may come from any process, and the process names the sender.

    Attributes:
        tag: tag of its messages.
        max_bytes: size of the largest message.
        by_process: the sender in each process.
        matched: messages that were matched and are in no claim yet.
        free: memory for claims that are kept or viewed.
    """

    tag: int
    max_bytes: int
    by_process: dict[int, MpiInlet] = field(default_factory=dict)
    matched: int = 0
    free: list[memoryview] = field(default_factory=list)

    def memory(self) -> memoryview:
        """Get memory for one message."""
        return self.free.pop() if self.free else page_memory(self.max_bytes)


@dataclass(eq=False)
class MpiInlet(Inlet):
    """The receiver's end of a channel.

    Attributes:
        port: receiving side of the channel, shared by its senders.
        back: tag of the answers to the sender.
        process: process of the sender.
        queue: messages that were matched before a probe asked for them.
    """

    port: Port = field(kw_only=True)
    back: int = field(kw_only=True)
    process: int = NOWHERE
    queue: deque[MpiClaim] = field(default_factory=deque)

    def keep(self, claim: MpiClaim) -> None:
        """Queue a message that no probe has asked for yet."""
        self.queue.append(claim)
        self.port.matched += 1

    def next(self) -> MpiClaim:
        """Take the oldest message off the queue."""
        self.port.matched -= 1
        return self.queue.popleft()

    def reclaim(self, handle: memoryview) -> None:
        """Get a claim's memory back."""
        super().reclaim(handle)
        self.port.free.append(handle)

    def close(self) -> None:
        """Receive and discard the unclaimed messages."""
        while self.queue:
            claim = self.queue.popleft()
            assert claim.message is not None
            discard(claim.message, claim.nbytes)


class MpiClaim(HeldClaim):
    """A matched message: no other call gets it, and its bytes are still where the sender left them.

    ``take`` receives the bytes into the caller's memory; ``view``, ``release`` and a claim that is kept
    receive them into memory of the port. The sender learns of the claim when the bytes move.
    """

    __slots__ = ("inlet", "message")

    def __init__(self, inlet: MpiInlet, message: MPI.Message | None, nbytes: int) -> None:
        self.source = inlet.source
        self.nbytes = nbytes
        self.version = 0
        self.inlet = inlet
        self.message = message
        self._lender = inlet

    def fetch(self) -> None:
        """Receive the message, unless it was received before."""
        message, self.message = self.message, None
        if message is None:
            return
        try:
            self._handle = memory = self.inlet.port.memory()
            self._memory = memory[: self.nbytes]
            message.Recv([self._memory, MPI.BYTE])
        except MPI.Exception as error:
            raise lost(error, f"receive {self.nbytes} bytes of rank {self.source}") from error

    def view(self) -> memoryview:
        """Borrow the payload, read-only, until ``release``."""
        if self.message is not None:
            self.fetch()
        return super().view()

    def take(self, into: memoryview) -> int:
        """Receive the payload into ``into``, or copy it if it was received before, and release the claim."""
        message = self.message
        if message is None:
            return super().take(into)
        nbytes = self.nbytes
        if into.nbytes < nbytes:
            raise MessageTooLargeError(f"a message of {nbytes} bytes does not fit into {into.nbytes}")
        self.message = None
        try:
            message.Recv(into if into.format == "B" else flat_bytes(into))
        except MPI.Exception as error:
            raise lost(error, f"receive {nbytes} bytes of rank {self.source}") from error
        self._lender = None
        inbox = self.inlet.inbox
        assert inbox is not None
        inbox.held -= 1
        return nbytes

    def release(self) -> None:
        """Give the memory back; harmless when repeated."""
        if self.message is not None:
            self.fetch()
        super().release()


NO_CLAIM = MpiClaim(MpiInlet(NOWHERE, Channel("", NOWHERE, (NOWHERE,), 0), port=Port(0, 0), back=0), None, 0)
"""Stands for the last claim before the first one."""


DEPTH_BYTES = 1 << 20
LEAST_DEPTH, MOST_DEPTH = 2, 8
"""Fewest and most values under way to a reader. A reader that looks seldom gets the last of them, so more
values are fresher; unread values move for nothing, so large values are fewer."""


def depth(max_bytes: int) -> int:
    """Number of values that may be under way to one reader."""
    return min(MOST_DEPTH, max(LEAST_DEPTH, DEPTH_BYTES // max(1, max_bytes)))


@dataclass(eq=False)
class Value:
    """A published value: a line, its payload, and the number of readers that it is on its way to."""

    memory: memoryview
    nbytes: int = 0
    version: int = -1
    flying: int = 0


@dataclass(eq=False)
class Reader:
    """A reader as its writer sees it.

    Attributes:
        tag: tag of the values for it.
        process: its process, from its WELCOME to its BYE.
        version: newest version that was sent to it.
        flying: values that it has not received yet, oldest first.
    """

    tag: int
    process: int = NOWHERE
    version: int = -1
    flying: deque[tuple[MPI.Request, Value]] = field(default_factory=deque)


@dataclass(eq=False)
class MpiSlotHead:
    """The writing end of a slot: its newest value, the values under way, and memory for the next."""

    slot: Slot
    join: int
    readers: dict[int, Reader]
    newest: Value | None = None
    free: list[Value] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Limit the values under way to each reader."""
        self.depth = depth(self.slot.max_bytes)

    def publish(self, payload: memoryview, version: int, tags: Tags) -> None:
        """Replace the value and send it to the readers that have room for it."""
        value = self.free.pop() if self.free else Value(page_memory(LINE + self.slot.max_bytes))
        tags.write_version(value.memory, version)
        value.nbytes, value.version = LINE + payload.nbytes, version
        value.memory[LINE : value.nbytes] = payload
        old, self.newest = self.newest, value
        if old is not None and not old.flying:
            self.free.append(old)
        self.serve()

    def serve(self) -> None:
        """Take back the values that readers have received, and send the newest to readers that lack it."""
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
        """Leave the values under way to MPI."""
        for reader in self.readers.values():
            while reader.flying:
                leave(*reader.flying.popleft())


@dataclass(eq=False)
class MpiSlotView(StoredSlotView):
    """The reading end of a slot.

    Attributes:
        tag: tag of its values.
        join: tag of the frames to the writer.
        process: process of the writer.
    """

    tag: int = field(kw_only=True)
    join: int = field(kw_only=True)
    process: int = NOWHERE

    def update(self, tags: Tags, status: MPI.Status, counters: Counters) -> None:
        """Receive all values that have arrived and keep the newest."""
        while self.process != NOWHERE:
            message = MPI.COMM_WORLD.Improbe(self.process, self.tag, status)
            if message is None:
                break
            nbytes = status.Get_count(MPI.BYTE)
            if not LINE <= nbytes <= LINE + self.slot.max_bytes:
                discard(message, nbytes)
                counters.reject(f"{nbytes} bytes are no value of slot {self.slot.name!r}")
                continue
            memory = self.free.pop() if self.free else page_memory(LINE + self.slot.max_bytes)
            message.Recv([memory, nbytes, MPI.BYTE])
            version = tags.read_version(memory)
            if version is None or version <= self.version:
                counters.reject(f"version {version} of slot {self.slot.name!r} is of another job or old")
                self.free.append(memory)
                continue
            self.replace(version, memory, memory[LINE:nbytes])

    def close(self, status: MPI.Status) -> None:
        """Receive and discard the values that have arrived."""
        while self.process != NOWHERE:
            message = MPI.COMM_WORLD.Improbe(self.process, self.tag, status)
            if message is None:
                break
            discard(message, status.Get_count(MPI.BYTE))

"""The ends of what an ``mpi`` endpoint sends and receives, and the memory that goes through them."""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass, field

from tianji_transports.ends import HeldClaim, Inlet, Outlet, flat_bytes
from tianji_transports.errors import MessageTooLargeError, TransportError
from tianji_transports.mpi.world import MPI, discard, leave
from tianji_transports.wiring import Channel

NOWHERE = -1
"""In place of the process of a rank whose address is not known yet."""


def pages(nbytes: int) -> memoryview:
    """Get page-aligned memory; it is used again and again, so that its pages are new only once."""
    return memoryview(mmap.mmap(-1, max(1, nbytes)))


def lost(error: MPI.Exception, what: str) -> TransportError:
    """Describe what MPI failed at."""
    return TransportError(f"MPI cannot {what}: {error}")


class Buffer:
    """Memory for one message and the request that sends it, which is used again while the size stays.

    Attributes:
        memory: all of it.
        payload: as much of it as the message has.
        nbytes: length of ``payload``, -1 as long as nothing can send it.
        request: sends ``payload``; ``start`` begins that, ``test`` says whether it is over.
    """

    __slots__ = ("memory", "nbytes", "payload", "request", "start", "test")

    def __init__(self, nbytes: int) -> None:
        self.memory = pages(nbytes)
        self.payload = self.memory[:0]
        self.nbytes = -1
        self.request: MPI.Prequest | None = None

    def resize(self, nbytes: int, process: int, tag: int) -> None:
        """Make ``payload`` so long and ``request`` send it."""
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
    """The sender's end.

    Attributes:
        tag: of messages.
        back: tag of what the receiver answers.
        process: where the receiver is, from its first answer on.
        before: pushes before it came.
        free: memory for loans.
        flying: memory whose message was not claimed yet, oldest first.
    """

    tag: int = field(kw_only=True)
    back: int = field(kw_only=True)
    process: int = NOWHERE
    before: int = 0
    free: list[Buffer] = field(default_factory=list)
    flying: deque[Buffer] = field(default_factory=deque)

    def take_back(self, handle: Buffer) -> None:
        """Return an unsent message's memory."""
        self.free.append(handle)

    def write_off(self) -> None:
        """Count what a receiver that is gone had not claimed as void."""
        super().write_off()
        self.strand()

    def strand(self) -> None:
        """Leave what is under way, and its memory, to MPI."""
        while self.flying:
            buffer = self.flying.popleft()
            assert buffer.request is not None
            leave(buffer.request, buffer)

    def close(self) -> None:
        """Give up the memory; what is under way is left to MPI."""
        while self.free:
            self.free.pop().free()
        self.strand()


@dataclass(eq=False)
class Port:
    """Where the messages of a channel come in: from any process, told apart by where they come from.

    Attributes:
        tag: of messages.
        max_bytes: size of the largest message.
        by_process: the sender in each process.
        matched: messages that were matched and are in no claim yet.
        free: memory for claims that are held or looked at.
    """

    tag: int
    max_bytes: int
    by_process: dict[int, MpiInlet] = field(default_factory=dict)
    matched: int = 0
    free: list[memoryview] = field(default_factory=list)

    def memory(self) -> memoryview:
        """Get memory for one message."""
        return self.free.pop() if self.free else pages(self.max_bytes)


@dataclass(eq=False)
class MpiInlet(Inlet):
    """The receiver's end.

    Attributes:
        port: where the channel comes in.
        back: tag of what is answered.
        process: where the sender is.
        queue: messages that were matched before anybody asked for them.
    """

    port: Port = field(kw_only=True)
    back: int = field(kw_only=True)
    process: int = NOWHERE
    queue: deque[MpiClaim] = field(default_factory=deque)

    def keep(self, claim: MpiClaim) -> None:
        """Queue a message that was not asked for yet."""
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
        """Throw away what was not claimed."""
        while self.queue:
            claim = self.queue.popleft()
            assert claim.message is not None
            discard(claim.message, claim.nbytes)


class MpiClaim(HeldClaim):
    """A message that was matched: no other call gets it, and its bytes are where the sender left them.

    ``take`` has MPI move them to where they belong. Whoever looks at them first, or keeps the claim, has
    them moved into memory of the port's. The sender learns of the claim when they move.
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
        """Receive the message, unless that was done."""
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
"""In place of the last claim before there was one."""

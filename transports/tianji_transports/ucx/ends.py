"""What an endpoint of the ``ucx`` engine keeps for each channel and slot, and the memory that it reuses."""

from __future__ import annotations

import mmap
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tianji_transports.ends import Inlet, Outlet, SlotView
from tianji_transports.ucx.library import Array
from tianji_transports.ucx.port import Lane


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
        self.memory = memoryview(mmap.mmap(-1, max(1, nbytes)))
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
class UcxOutlet(Outlet):
    """The sender's end.

    Attributes:
        index: of the channel in the wiring.
        tag: of its messages.
        endpoint: to where the receiver wants messages; None before its WELCOME.
        session: the receiver's life.
        opening: the first message to there, until it has left; then the receiver is there.
        free: memory for loans.
        flying: memory that UCX may still read, with its request.
    """

    index: int = field(kw_only=True)
    tag: Any = field(kw_only=True)
    endpoint: Any = None
    session: int = -1
    opening: Any = None
    free: list[Buffer] = field(default_factory=list)
    flying: deque[tuple[Any, Buffer]] = field(default_factory=deque)

    def take_back(self, handle: Buffer) -> None:
        """Return an unsent message's memory."""
        self.free.append(handle)

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
class Life:
    """One life of a sender, as its receiver sees it.

    Attributes:
        inlet: whose.
        session: which.
        begun: arrived up to this number, received or not.
        claimed: number of the last message claimed.
        told: number of the last credit sent.
        endpoint: where credits go; None when it is over.
        lane: where its messages come in.
        credit: tag of its credits.
        coming: messages that began to arrive, in order.
    """

    inlet: UcxInlet
    session: int
    begun: int
    claimed: int
    told: int
    endpoint: Any
    lane: Lane
    credit: Any
    coming: deque[Message] = field(default_factory=deque)

    def arrivals(self) -> None:
        """Hand over what has arrived completely."""
        coming, inlet = self.coming, self.inlet
        while coming and coming[0].request.completed:
            message = coming.popleft()
            message.request = None  # a request keeps the whole worker alive
            inlet.queue.append(message)
            inlet.arrived += 1

    def end(self) -> list[tuple[Any, Buffer]]:
        """Expect nothing more; give what was arriving: requests that will not complete, and their memory."""
        self.arrivals()
        lost = [(message.request, message.buffer) for message in self.coming]
        self.coming.clear()
        self.endpoint = None
        return lost


@dataclass(eq=False)
class Message:
    """A message of a channel: whose, where, how long, and the request that receives it until it is here."""

    life: Life
    buffer: Buffer
    nbytes: int
    request: Any = None


@dataclass(eq=False)
class UcxInlet(Inlet):
    """The receiver's end.

    Attributes:
        index: of the channel in the wiring.
        pool: memory of the channel, for all its senders.
        queue: messages that are here.
        lives: by session.
    """

    index: int = field(kw_only=True)
    pool: list[Buffer] = field(kw_only=True)
    queue: deque[Message] = field(default_factory=deque)
    lives: dict[int, Life] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Return how many claims go by between two credits."""
        super().__post_init__()
        self.batch = max(1, self.channel.window // 2)

    def reclaim(self, handle: Buffer) -> None:
        """Take a released message's memory back."""
        self.pool.append(handle)
        assert self.inbox is not None
        self.inbox.held -= 1


@dataclass(eq=False)
class UcxSlotView(SlotView):
    """The reading end of a slot.

    Attributes:
        index: of the slot in the wiring.
        session: the writer's life that was connected to last.
        endpoint: to it.
        value: memory with the newest value.
        nbytes: of the value.
        lent: memory that a claim holds.
        coming: the value that is arriving: its request, memory, size with its line.
        pool: memory to receive into.
    """

    index: int = field(kw_only=True)
    session: int = -1
    endpoint: Any = None
    value: Buffer | None = None
    nbytes: int = 0
    lent: Buffer | None = None
    coming: tuple[Any, Buffer, int] | None = None
    pool: list[Buffer] = field(default_factory=list)

    def replace(self, value: Buffer, nbytes: int) -> None:
        """Put a newer value in the place of the last one."""
        if self.value is not None and self.value is not self.lent:
            self.pool.append(self.value)
        self.value, self.nbytes = value, nbytes

    def reclaim(self, handle: Buffer) -> None:
        """Take a released value's memory back."""
        super().reclaim(handle)
        self.lent = None
        if handle is not self.value:
            self.pool.append(handle)

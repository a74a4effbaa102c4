"""What a ``zmq`` endpoint keeps for each channel that it sends or receives, and each slot that it reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import zmq

from tianji_transports.credit import CreditInlet, CreditOutlet, Life
from tianji_transports.endpoint import SlotView
from tianji_transports.zmq.frames import LINE, Header, Kind

SHARED_BYTES: Final = 64 * 1024
"""Frames from this size on are sent without a copy; a copy of a smaller one costs less than the counting."""
JOIN_FIRST_S: Final = 0.02
"""Pause after the first JOIN, doubled each time: a subscription takes effect unseen."""
MOST_LIVES: Final = 8
"""Lives of one sender that a receiver remembers: one that repeats HELLO gets no memory for it."""


@dataclass(eq=False)
class Buffer:
    """Memory for a header and a payload, and the ZMQ frame over as much of it as was sent last.

    A frame that is sent again only counts one reference more. A new one for every message would have
    pyzmq's collector thread woken for every message.

    Views are kept for the size that was asked for last: to slice memory anew costs as much as to send it.
    """

    memory: memoryview
    nbytes: int = -1
    payload: memoryview = field(init=False)
    framed: memoryview = field(init=False)
    frame: zmq.Frame | None = None

    def size(self, nbytes: int) -> None:
        """Make the views fit a payload of so many bytes."""
        self.nbytes = nbytes
        self.payload = self.memory[LINE : LINE + nbytes]
        self.framed = self.memory[: LINE + nbytes]
        self.frame = None

    def shared(self) -> zmq.Frame:
        """Header and payload, to be sent without a copy."""
        if self.frame is None:
            self.frame = zmq.Frame(self.framed, copy=False)
        return self.frame


@dataclass(eq=False)
class ZmqOutlet(CreditOutlet):
    """The sender's end.

    Attributes:
        flying: memory that ZMQ may still read, with the number of its push.
        hello_at: when to say HELLO next, while there is no answer.
    """

    flying: deque[tuple[int, Buffer]] = field(default_factory=deque)
    hello_at: float = 0.0

    def __post_init__(self) -> None:
        """Set the number of pushes between two looks for credit, while some of the window is left."""
        super().__post_init__()
        self.stride = max(1, self.channel.window // 8)

    def handle(self, kind: int, session: int, number: int) -> bool:
        """Handle an answer of the receiver; returns False if it is invalid."""
        if kind == Kind.WELCOME:
            self._welcome(session)
        elif session != self.session:
            return False
        elif kind == Kind.BYE:
            self.present = False
        elif kind == Kind.CREDIT and number <= self.pushed:
            self._credit(number)
        else:
            return False
        return True

    def _credit(self, number: int) -> None:
        """Every push up to ``number`` was claimed: its memory is ours again."""
        self.confirmed = max(self.confirmed, number)
        while self.flying and self.flying[0][0] <= number:
            self.free.append(self.flying.popleft()[1])

    def _welcome(self, session: int) -> None:
        if self.session != session:
            self.write_off()
            # ZMQ may still hold what went to the earlier life: that memory is not used again.
            self.flying.clear()
            self.session = session
        self.present = True
        self.lost = False


@dataclass(eq=False)
class ZmqInlet(CreditInlet):
    """The receiver's end; a connection's identity names a life of the sender, and is where answers go."""

    def begin(self, identity: bytes, session: int, number: int, reachable: Callable[[bytes], bool]) -> bool:
        """Learn that a life of the sender begins after push ``number``, or begins again after BYE.

        Args:
            number: of its last push before.
            reachable: tells whether a connection is still there.

        Returns:
            False if it is invalid, or too many lives of the sender are there.
        """
        life = self.lives.get(identity)
        if life is not None:
            if life.session != session or number < life.arrived:
                return False
            life.begun += number - life.arrived
            life.arrived = number
            return True
        if len(self.lives) >= MOST_LIVES:
            gone = (life for life in self.lives.values() if not reachable(life.route))
            silent = (life for life in self.lives.values() if life.arrived == life.begun)
            forgotten = next(gone, None) or next(silent, None)
            if forgotten is None:
                return False
            del self.lives[forgotten.route]
        self.lives[identity] = Life(self, session, identity, number)
        return True


@dataclass(eq=False)
class ZmqSlotView(SlotView):
    """The reading end of a slot: its newest value, and when to ask next whether that is so."""

    index: int = field(kw_only=True)
    value: memoryview | None = None
    pause_s: float = JOIN_FIRST_S
    join_at: float = 0.0

    def shows(self, header: Header) -> bool:
        """Whether a frame is a value of this slot."""
        slot = self.slot
        return (header.kind, header.stream, header.rank) == (Kind.VALUE, self.index, slot.writer) and (
            header.nbytes <= slot.max_bytes
        )

"""Channel and slot ends of a ``zmq`` endpoint."""

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
"""Minimum bytes of a frame sent without a copy: to copy a smaller one costs less than to count references."""
JOIN_FIRST_S: Final = 0.02
"""Seconds of the pause after the first JOIN, doubled each time: a subscription takes effect unseen."""
MOST_LIVES: Final = 8
"""Lives of one sender that a receiver remembers, so that repeated HELLOs cannot fill its memory."""


@dataclass(eq=False)
class Buffer:
    """Memory for a header and a payload, and the ZMQ frame over the part that was sent last.

    Sending a frame again only counts one reference more. A new frame for every message would wake pyzmq's
    collector thread for every message.

    The views of the last size are kept: to slice memory anew costs as much as to send it.
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
        """Frame of header and payload that ZMQ sends without a copy."""
        if self.frame is None:
            self.frame = zmq.Frame(self.framed, copy=False)
        return self.frame


@dataclass(eq=False)
class ZmqOutlet(CreditOutlet):
    """The sender's end of a channel.

    Attributes:
        flying: memory that ZMQ may still read, with the number of its push.
        hello_at: time of the next HELLO, while there is no answer.
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
        """Confirm every push up to ``number``, and take its memory back."""
        self.confirmed = max(self.confirmed, number)
        while self.flying and self.flying[0][0] <= number:
            self.free.append(self.flying.popleft()[1])

    def _welcome(self, session: int) -> None:
        if self.session != session:
            self.write_off()
            # ZMQ may still hold messages to the earlier life: their memory is not used again.
            self.flying.clear()
            self.session = session
        self.present = True
        self.lost = False


@dataclass(eq=False)
class ZmqInlet(CreditInlet):
    """The receiver's end; a connection's identity names a life of the sender and routes answers."""

    def begin(self, identity: bytes, session: int, number: int, reachable: Callable[[bytes], bool]) -> bool:
        """Handle a HELLO: a life of the sender begins after push ``number``, or begins again after BYE.

        Args:
            number: number of its last push before.
            reachable: tells whether a connection is still there.

        Returns:
            False if the HELLO is invalid, or too many lives of the sender are there.
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
    """The reading end of a slot: its newest value, and the time of the next JOIN."""

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

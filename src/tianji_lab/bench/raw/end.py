"""One end of a raw loop, and how to open that of an engine.

A raw loop knows no contract: one sender, one receiver, messages of one size, and both look again and again
instead of sleeping. Every operation is one attempt, so that the loop can see whether its peer is alive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pkgutil import resolve_name
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, cast

from tianji_cli.errors import UsageError
from tianji_lab.bench.contents import CLOCK, write
from tianji_lab.bench.experiment import LEAD
from tianji_transports import registry
from tianji_transports.wiring import Channel, Wiring

if TYPE_CHECKING:
    from tianji_lab.bench.experiment import Trial
    from tianji_transports.core import EngineOptions

WAIT_S: Final = 0.05
"""How long an attempt may take, if the library sleeps in it."""
SENDER: Final = 1

LOOPS: Final[Mapping[str, str]] = {
    "shm": "tianji_lab.bench.raw.iceoryx:IceoryxEnd",
    "zmq": "tianji_lab.bench.raw.sockets:SocketEnd",
    "ucx": "tianji_lab.bench.raw.ucx:TagEnd",
    "mpi": "tianji_lab.bench.raw.mpi:IsendEnd",
}
"""The raw loop of each engine that has one."""


class RawEnd(ABC):
    """One end of a raw loop; it serves any number of runs.

    Args:
        trial: size of the messages, and how many may be on their way.
        rank: ``LEAD`` receives, the other rank sends.

    Attributes:
        address: where the peer reaches it; empty if the job's name is enough.
    """

    address: str = ""

    @abstractmethod
    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None: ...

    @abstractmethod
    def connect(self, peer: str) -> None:
        """Learn the peer's address; the receiver has opened its end by now."""

    @abstractmethod
    def send(self, word: int) -> bool:
        """Fill a message with a stamp and send it; False if there is no room yet."""

    @abstractmethod
    def receive(self, into: memoryview | None) -> memoryview | None:
        """Take the next message, if there is one.

        Args:
            into: where it shall be, the same again after an attempt that gave None. Without it the message
                is lent until the next call.
        """

    @abstractmethod
    def flush(self) -> bool:
        """Whether everything that was sent has left, and see to it that it does."""

    @abstractmethod
    def close(self) -> None:
        """Free everything; what has not left by now need not arrive."""


def fill(memory: memoryview, word: int) -> None:
    """Write every byte of a message, just as the engines' senders do."""
    words = write(memory, word)
    words[CLOCK] = monotonic_ns()


def wiring(trial: Trial) -> Wiring:
    """Make the wiring that an engine would do the same with; names, tags and room follow from it."""
    return Wiring(trial.job, (Channel("raw", LEAD, (SENDER,), trial.nbytes, trial.window),))


def open_end(engine: str, trial: Trial, rank: int, options: EngineOptions) -> RawEnd:
    """Open a rank's end of an engine's raw loop; no other engine's library is imported.

    Args:
        engine: a name in ``LOOPS``. Third-party engines have no raw loop, nor have two engines together.
        rank: ``LEAD`` receives, the other rank sends.

    Raises:
        UsageError: the engine has no raw loop.
        TransportError: its library is not to be had, or does not open.
    """
    if engine not in LOOPS:
        raise UsageError(f"transport {engine!r} has no raw loop; there are: {', '.join(LOOPS)}")
    registry.load(engine)
    kind = cast(type[RawEnd], resolve_name(LOOPS[engine]))
    return kind(trial, rank, options)

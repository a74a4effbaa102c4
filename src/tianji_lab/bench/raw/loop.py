"""The plainest fast loop over an engine's library: its end, the two sides of a run, and a plain copy.

A raw loop has no transport contract: it has one sender, one receiver and messages of one size, and both sides
poll instead of sleeping. Every operation is one attempt, so that the loop can see whether its peer is alive.
"""

from __future__ import annotations

import itertools
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pkgutil import resolve_name
from time import monotonic, monotonic_ns, perf_counter
from typing import Final, cast

import numpy as np

from tianji_cli.errors import UsageError
from tianji_lab.bench.contents import CLOCK, MOST_SLOTS, Inspector, Slots, stamp, write
from tianji_lab.bench.experiment import LEAD, Deadline, Following, Leading, Outcome, Run, Sent, Trial
from tianji_lab.bench.record import MB
from tianji_transports import registry
from tianji_transports.core import EngineOptions
from tianji_transports.endpoint import readable
from tianji_transports.wiring import Channel, Wiring

WAIT_S: Final = 0.05
"""Maximum seconds of an attempt, if the library sleeps in it."""
SENDER: Final = 1

LOOPS: Final[Mapping[str, str]] = {
    "shm": "tianji_lab.bench.raw.iceoryx:IceoryxEnd",
    "zmq": "tianji_lab.bench.raw.sockets:SocketEnd",
    "ucx": "tianji_lab.bench.raw.ucx:TagEnd",
    "mpi": "tianji_lab.bench.raw.mpi:IsendEnd",
}
"""Class of each engine's raw loop, as ``module:Class``."""


class RawEnd(ABC):
    """One end of a raw loop; it serves any number of runs.

    Args:
        trial: has the size of the messages, and the window of messages in flight.
        rank: ``LEAD`` receives, the other rank sends.

    Attributes:
        address: for the peer; empty if the job's name is enough.
    """

    address: str = ""

    @abstractmethod
    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None: ...

    @abstractmethod
    def connect(self, peer: str) -> None:
        """Connect to the peer's address; the receiver has opened its end by now."""

    @abstractmethod
    def send(self, word: int) -> bool:
        """Fill a message with a stamp and send it; returns False if there is no room yet."""

    @abstractmethod
    def receive(self, into: memoryview | None) -> memoryview | None:
        """Receive the next message; returns None if there is none.

        Args:
            into: memory for the message, the same again after an attempt that returned None. With None the
                message is lent until the next call.
        """

    @abstractmethod
    def flush(self) -> bool:
        """Help sent messages to leave; returns whether all of them have left."""

    @abstractmethod
    def close(self) -> None:
        """Free everything; messages that have not left by now need not arrive."""


def fill(memory: memoryview, word: int) -> None:
    """Write every byte of a message, just as the engines' senders do."""
    words = write(memory, word)
    words[CLOCK] = monotonic_ns()


def wiring(trial: Trial) -> Wiring:
    """Make the wiring of an engine for the same work; names, tags and room follow from it."""
    return Wiring(trial.job, (Channel("raw", LEAD, (SENDER,), trial.nbytes, trial.window),))


def open_end(trial: Trial, rank: int, options: EngineOptions) -> RawEnd:
    """Open a rank's end of the raw loop of the trial's engine; no other engine's library is imported.

    Third-party engines have no raw loop, nor have two engines together.

    Args:
        rank: ``LEAD`` receives, the other rank sends.

    Raises:
        UsageError: the engine has no raw loop.
        TransportError: its library is not available, or does not open.
    """
    engine = trial.backend
    if engine not in LOOPS:
        raise UsageError(f"transport {engine!r} has no raw loop; there are: {', '.join(LOOPS)}")
    registry.load(engine)
    kind = cast(type[RawEnd], resolve_name(LOOPS[engine]))
    return kind(trial, rank, options)


NO_LATENCIES: Final = np.zeros(0, np.int64)


def lead(end: RawEnd, trial: Trial, run: Run, session: Leading) -> Outcome:
    """Receive the messages of a run, and check them.

    Raises:
        TrialFailed: the sender died, or nothing arrives any more.
        DamagedMessageError: a message is missing, reordered or altered.
    """
    inspect = Inspector(trial.nbytes, thorough=run.thorough, has_clock=True).inspect
    slots = Slots(trial.nbytes, run.messages) if trial.store == "copy" else None
    deadline = Deadline("messages of the raw loop")
    receive, first = end.receive, stamp(SENDER, run.number, 0)
    place = itertools.repeat(None).__next__ if slots is None else slots.next
    cpu, began = time.process_time(), monotonic()
    session.start(run)
    for word in range(first, first + run.messages):
        into = place()
        memory = receive(into)
        if memory is None:
            memory = _receive_later(end, into, session, deadline)
        inspect(memory, word)
    seconds, cpu = monotonic() - began, time.process_time() - cpu
    return Outcome(seconds, run.messages, NO_LATENCIES, 0.0, cpu, _await_the_sender(end, session))


def _receive_later(end: RawEnd, into: memoryview | None, session: Leading, deadline: Deadline) -> memoryview:
    """Try to receive until there is a message."""
    receive = end.receive
    looked = monotonic()
    while (memory := receive(into)) is None:
        now = monotonic()
        if now - looked >= WAIT_S:
            session.look()
            deadline.check()
            looked = now
    deadline.renew()
    return memory


def _await_the_sender(end: RawEnd, session: Leading) -> Mapping[int, Sent]:
    """Wait for the sender's report; meanwhile send the acknowledgements that the sender needs to end."""
    deadline = Deadline("the sender of the raw loop to end")
    while (sent := session.sent()) is None:
        if end.flush():
            readable(session.descriptors, WAIT_S)
        deadline.check()
    return sent


def follow(end: RawEnd, _trial: Trial, run: Run, rank: int, worker: Following) -> Sent:
    """Send the messages of a run; ends early if the receiver says so, which it does only after a failure."""
    send, first = end.send, stamp(rank, run.number, 0)
    cpu, sent = time.process_time(), 0
    for word in range(first, first + run.messages):
        if not (send(word) or _send_later(end, word, worker)):
            break
        sent += 1
    asked = monotonic()
    while not end.flush():
        if monotonic() - asked >= WAIT_S:
            if worker.enough():
                break
            asked = monotonic()
    return Sent(messages=sent, cpu_s=time.process_time() - cpu)


def _send_later(end: RawEnd, word: int, worker: Following) -> bool:
    """Try to send until there is room; returns False if the run has ended."""
    send = end.send
    asked = monotonic()
    while not send(word):
        now = monotonic()
        if now - asked >= WAIT_S:
            if worker.enough():
                return False
            asked = now
    return True


ROUNDS: Final = 5
ROUND_S: Final = 0.05
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes copied between two looks at the clock."""


def memcpy_mb_per_s(nbytes: int) -> float:
    """Measure the median rate of copying over several rounds, in MB of 1e6 bytes per second.

    Every copy is a Python statement, as where a receiver stores a message; for small messages the statement
    takes most of the time.
    """
    source = memoryview(bytearray(nbytes))
    store = Slots(nbytes, MOST_SLOTS).next
    batch = range(max(1, BATCH_BYTES // nbytes))
    rates = []
    for _ in range(ROUNDS):
        copied, began = 0, perf_counter()
        while (seconds := perf_counter() - began) < ROUND_S:
            for _ in batch:
                store()[:] = source
            copied += len(batch) * nbytes
        rates.append(copied / seconds / MB)
    return statistics.median(rates)

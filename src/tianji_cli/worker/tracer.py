"""The tracer of a worker: records spans of its roles' work, each with start, end, role and kind.

The tracer replaces the measured methods by ones that record the time, and restores them at the end, so that a
run without a trace pays nothing. The loop of the roles restarts both times, because it holds some methods.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, count
from typing import Any, Final, NamedTuple

from tianji_cli.files.traces import SPAN, WHAT
from tianji_cli.roles.actor.actor import Actor
from tianji_cli.roles.buffer.buffer import Buffer, ReplayBuffer
from tianji_cli.roles.learner.learner import Learner
from tianji_cli.roles.learner.parallel.followers import Follower
from tianji_cli.roles.role import Role
from tianji_cli.wire.control import ControlClient
from tianji_cli.wire.messages import AskClock, Clock, FromRoot, SpansOf, Trace, Traced


class Measured(NamedTuple):
    """A method of a role, or of a part of it, whose calls are spans; calls pass arguments by position.

    Attributes:
        path: path from the role to the method.
        what: name of the span.
        nothing: return value of a call that did nothing, and is no span.
    """

    path: str
    what: str
    nothing: object = False


MEASURED: Final[Mapping[type, Sequence[Measured]]] = {
    Role: (Measured("turn", "turn"),),
    Actor: (
        Measured("_agent.act", "act"),
        Measured("_step_all", "step"),
        Measured("push_fragment", "push"),
        Measured("adopt_newest_policy", "adopt"),
    ),
    Buffer: (Measured("store.admit", "claim"), Measured("_save", "save")),
    ReplayBuffer: (Measured("store.draw", "draw"), Measured("_transport.push", "push")),
    Learner: (
        Measured("_source.batch", "draw", None),
        Measured("_leader.begin_update", "scatter"),
        Measured("_embryo.update", "update"),
        Measured("publish_policy", "publish"),
        Measured("save", "save"),
    ),
    Follower: (Measured("_source.batch", "draw", None), Measured("_embryo.update", "update")),
}
"""Measured methods by class; a role has those of its class and of the base classes."""

CREDIT: Final[Mapping[type, str]] = {Actor: "_take_memory", ReplayBuffer: "_transport.loan"}
"""Methods that ask for memory to send from. A role that got none sleeps until it has credit."""

ROUND_TRIPS: Final = 8
"""Messages that compare the clock of another host with the root's; the fastest one counts."""
ANSWER_S: Final = 1.0
"""Seconds that all round trips together may take."""
PIECE_BYTES: Final = 6000 * SPAN.itemsize
"""Most bytes of spans in one message to the root."""

_WRITE: Final = struct.Struct("<ddHH").pack_into
"""Writes a ``SPAN``."""


class Tracer:
    """Traces the roles of this process while the root asks for it.

    Args:
        shares_clock: this process is on the root's host, and has the same clock.

    Attributes:
        until_s: time of ``time.monotonic`` for calling ``end``; infinite without a trace.
    """

    def __init__(self, control: ControlClient, rank: int, *, shares_clock: bool) -> None:
        self.until_s = math.inf
        self._control = control
        self._rank = rank
        self._shares_clock = shares_clock
        self._ring: SpanRing | None = None
        self._number = 0
        self._began_s = 0.0
        self._clock = SAME_CLOCK
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []

    def begin(self, asked: Trace, roles: Sequence[Role], sleeper: object, unhandled: list[FromRoot]) -> None:
        """Begin to measure; this drops the spans of an earlier trace.

        Args:
            sleeper: object whose ``sleep`` the process sleeps by.
            unhandled: receives the root's other messages during the comparison of clocks.
        """
        self._restore()
        self._ring = None
        clock = SAME_CLOCK if self._shares_clock else self._compare_clocks(unhandled)
        if clock is None:
            return  # The root does not answer, and would not receive the spans either.
        self._clock, self._number = clock, asked.trace
        self._ring = ring = SpanRing(asked.most_spans)
        waits = [False] * len(roles)
        for number, role in enumerate(roles):
            for kind in type(role).__mro__:
                for measured in MEASURED.get(kind, ()):
                    self._replace(role, measured.path, ring.timed, number, measured)
                if kind in CREDIT:
                    self._replace(role, CREDIT[kind], _noting_refusals, number, waits)
        self._replace(sleeper, "sleep", ring.slept, waits)
        self._began_s = time.monotonic()
        self.until_s = asked.until_s - clock.offset_s

    def end(self) -> bool:
        """Stop measuring, and send the spans; return False without a trace."""
        ring, self._ring = self._ring, None
        if ring is None:
            return False
        ended_s = time.monotonic()
        self._restore()
        own = {"rank": self._rank, "trace": self._number}
        for piece in ring.pieces():
            self._control.send(SpansOf.model_validate(own | {"spans": piece}))
        times = {"began_s": self._began_s, "ended_s": ended_s, **self._clock._asdict()}
        self._control.send(Traced.model_validate(own | times | {"dropped": ring.dropped}))
        return True

    def _replace(self, role: object, path: str, by: Callable[..., Callable[..., Any]], *args: Any) -> None:
        """Replace a method by the one that ``by`` makes of it; skip a part that the role does not have."""
        *parts, name = path.split(".")
        owner = role
        for part in parts:
            owner = getattr(owner, part)
        if owner is not None:
            own = vars(owner)
            self._replaced.append((own, name, own.get(name)))
            own[name] = by(getattr(owner, name), *args)

    def _restore(self) -> None:
        self.until_s = math.inf
        while self._replaced:
            own, name, before = self._replaced.pop()
            if before is None:
                del own[name]
            else:
                own[name] = before

    def _compare_clocks(self, unhandled: list[FromRoot]) -> ClockOffset | None:
        """Ask the root for its time repeatedly; None if the root does not answer."""
        found: list[ClockOffset] = []
        deadline_s = time.monotonic() + ANSWER_S
        while len(found) < ROUND_TRIPS and time.monotonic() < deadline_s:
            asked_s = time.monotonic()
            self._control.send(AskClock(rank=self._rank, asked_s=asked_s))
            answer = self._await_clock(asked_s, deadline_s, unhandled)
            if answer is not None:
                half_s = (time.monotonic() - asked_s) / 2
                found.append(ClockOffset(answer.root_s - asked_s - half_s, half_s))
        return min(found, key=lambda clock: clock.uncertainty_s, default=None)

    def _await_clock(self, asked_s: float, deadline_s: float, unhandled: list[FromRoot]) -> Clock | None:
        answer = None
        while answer is None and (left_s := deadline_s - time.monotonic()) > 0:
            self._control.wait(left_s)
            for message in self._control.receive():
                if not isinstance(message, Clock):
                    unhandled.append(message)
                elif message.asked_s == asked_s:
                    answer = message
        return answer


class ClockOffset(NamedTuple):
    """Offset from this host's time to the root's, and its uncertainty."""

    offset_s: float
    uncertainty_s: float


SAME_CLOCK: Final = ClockOffset(0.0, 0.0)


class SpanRing:
    """Keeps the newest spans of a process in the layout of ``SPAN``, in memory allocated beforehand.

    Args:
        most: most spans that it keeps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._memory = bytearray(most * SPAN.itemsize)
        self._lap = [0]
        self._next_place = chain.from_iterable(_laps(len(self._memory), self._lap)).__next__

    def timed(self, call: Callable[..., Any], role: int, measured: Measured) -> Callable[..., Any]:
        """Make a method that calls ``call`` and keeps a span of it."""
        what, nothing = WHAT.index(measured.what), measured.nothing
        memory, next_place, now, write = self._memory, self._next_place, time.monotonic, _WRITE

        def timed(*args: Any) -> Any:
            began_s = now()
            result = call(*args)
            if result is not nothing:
                write(memory, next_place(), began_s, now(), role, what)
            return result

        return timed

    def slept(self, sleep: Callable[[float], object], waits: list[bool]) -> Callable[[float], None]:
        """Make a function that sleeps and keeps a span for each role: for credit if the role ``waits``."""
        for_credit, at_rest = WHAT.index("wait for credit"), WHAT.index("sleep")

        def slept(timeout_s: float) -> None:
            began_s = time.monotonic()
            sleep(timeout_s)
            ended_s = time.monotonic()
            for role, waiting in enumerate(waits):
                what = for_credit if waiting else at_rest
                _WRITE(self._memory, self._next_place(), began_s, ended_s, role, what)

        return slept

    @property
    def dropped(self) -> int:
        """Number of spans that newer ones have replaced."""
        return max(0, self._kept - self._most)

    def pieces(self) -> Iterator[bytes]:
        """Yield all spans, in the order they ended, in pieces for messages; the ring is then useless."""
        spans = memoryview(self._memory)
        first = self._kept % self._most * SPAN.itemsize if self.dropped else 0
        for part in (
            (spans[first:], spans[:first]) if self.dropped else (spans[: self._kept * SPAN.itemsize],)
        ):
            for start in range(0, len(part), PIECE_BYTES):
                yield bytes(part[start : start + PIECE_BYTES])

    @cached_property
    def _kept(self) -> int:
        """Number of spans ever kept; reading it uses up a place, so the ring keeps no span after this."""
        place = self._next_place()
        return self._lap[0] * self._most + place // SPAN.itemsize


def _laps(nbytes: int, lap: list[int]) -> Iterator[range]:
    """Iterate over the places of a memory again and again, and count the laps.

    The iterator does not refer to its ring: they would form a reference cycle, and the garbage collector does
    not run where nothing is allocated.
    """
    for lap[0] in count():
        yield range(0, nbytes, SPAN.itemsize)


def _noting_refusals(call: Callable[..., Any], role: int, waits: list[bool]) -> Callable[..., Any]:
    """Make a method that calls ``call`` and notes whether it got nothing."""

    def noting(*args: Any) -> Any:
        result = call(*args)
        waits[role] = not result
        return result

    return noting

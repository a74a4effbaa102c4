"""Measures what the roles of a worker do while its run is traced: from when to when, which role, and at what.

The methods that are measured are replaced by ones that note the time, and put back at the end, so that a run
which is not traced pays nothing. The loop of the roles is begun again both times: it holds some of them.
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
    """A method of a role, or of a part of it, whose calls are spans; their arguments have no names.

    Attributes:
        path: from the role to the method.
        what: the span's name.
        nothing: what a call returns that did nothing, and is no span.
    """

    path: str
    what: str
    nothing: object = False


MEASURED: Final[Mapping[type, Sequence[Measured]]] = {
    Role: (Measured("turn", "turn"),),
    Actor: (
        Measured("_agent.act", "act"),
        Measured("_environment.step", "step"),
        Measured("push_fragment", "push"),
        Measured("adopt_newest_policy", "adopt"),
    ),
    Buffer: (Measured("_store.admit", "claim"), Measured("_save", "save")),
    ReplayBuffer: (Measured("_replay_store.draw", "draw"), Measured("_transport.push", "push")),
    Learner: (
        Measured("_source.batch", "draw", None),
        Measured("_leader.begin_update", "scatter"),
        Measured("_embryo.update", "update"),
        Measured("publish_policy", "publish"),
        Measured("save", "save"),
    ),
    Follower: (Measured("_source.batch", "draw", None), Measured("_embryo.update", "update")),
}
"""What is measured of a role: what its class and those above it have here."""

CREDIT: Final[Mapping[type, str]] = {Actor: "_take_memory", ReplayBuffer: "_transport.loan"}
"""What asks for memory to send from. A role that got none sleeps until it has credit."""

ROUND_TRIPS: Final = 8
"""By which the clock of another host is compared with the root's; the fastest one counts."""
ANSWER_S: Final = 1.0
"""How long all of them may take."""
PIECE_BYTES: Final = 6000 * SPAN.itemsize
"""Of one message to the root."""

_WRITE: Final = struct.Struct("<ddHH").pack_into
"""Writes a ``SPAN``."""


class Tracer:
    """Traces the roles of this process while the root asks for it.

    Args:
        shares_clock: with the root, as all processes of a host do.

    Attributes:
        until_s: by ``time.monotonic``, when ``end`` is to be called; infinite while nothing is traced.
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

    def begin(self, asked: Trace, roles: Sequence[Role], sleeper: object, unheard: list[FromRoot]) -> None:
        """Measure from now on; what was measured for another trace is forgotten.

        Args:
            sleeper: its ``sleep`` is what the process sleeps by.
            unheard: takes what the root says meanwhile that is not about clocks.
        """
        self._restore()
        self._ring = None
        clock = SAME_CLOCK if self._shares_clock else self._compare_clocks(unheard)
        if clock is None:
            return  # The root does not hear this process, and would not hear of its spans either.
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
        """Stop measuring, and send what there is; False if nothing is traced."""
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
        """Put what ``by`` makes of a method in its place; a part that the role does without is left out."""
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

    def _compare_clocks(self, unheard: list[FromRoot]) -> ClockOffset | None:
        """Ask the root for its time again and again; None if it does not answer."""
        found: list[ClockOffset] = []
        deadline_s = time.monotonic() + ANSWER_S
        while len(found) < ROUND_TRIPS and time.monotonic() < deadline_s:
            asked_s = time.monotonic()
            self._control.send(AskClock(rank=self._rank, asked_s=asked_s))
            answer = self._await_clock(asked_s, deadline_s, unheard)
            if answer is not None:
                half_s = (time.monotonic() - asked_s) / 2
                found.append(ClockOffset(answer.root_s - asked_s - half_s, half_s))
        return min(found, key=lambda clock: clock.uncertainty_s, default=None)

    def _await_clock(self, asked_s: float, deadline_s: float, unheard: list[FromRoot]) -> Clock | None:
        answer = None
        while answer is None and (left_s := deadline_s - time.monotonic()) > 0:
            self._control.wait(left_s)
            for message in self._control.receive():
                if not isinstance(message, Clock):
                    unheard.append(message)
                elif message.asked_s == asked_s:
                    answer = message
        return answer


class ClockOffset(NamedTuple):
    """What is added to this host's time for the root's, and by how much that may be wrong."""

    offset_s: float
    uncertainty_s: float


SAME_CLOCK: Final = ClockOffset(0.0, 0.0)


class SpanRing:
    """Keeps the newest spans of a process, as ``SPAN`` lays them out, in memory that is there beforehand.

    Args:
        most: spans that it keeps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._memory = bytearray(most * SPAN.itemsize)
        self._lap = [0]
        self._next_place = chain.from_iterable(_laps(len(self._memory), self._lap)).__next__

    def timed(self, call: Callable[..., Any], role: int, measured: Measured) -> Callable[..., Any]:
        """Make a method that does what ``call`` does, and keeps a span of it."""
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
        """Make a function that sleeps, and keeps a span of it for each role: for credit, if it ``waits``."""
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
        """Spans that newer ones have replaced."""
        return max(0, self._kept - self._most)

    def pieces(self) -> Iterator[bytes]:
        """Hand out all spans, in the order they ended, in pieces for messages; none is kept after this."""
        spans = memoryview(self._memory)
        first = self._kept % self._most * SPAN.itemsize if self.dropped else 0
        for part in (
            (spans[first:], spans[:first]) if self.dropped else (spans[: self._kept * SPAN.itemsize],)
        ):
            for start in range(0, len(part), PIECE_BYTES):
                yield bytes(part[start : start + PIECE_BYTES])

    @cached_property
    def _kept(self) -> int:
        """Spans that were ever kept; none is kept after it was asked for."""
        place = self._next_place()
        return self._lap[0] * self._most + place // SPAN.itemsize


def _laps(nbytes: int, lap: list[int]) -> Iterator[range]:
    """Go through the places of a memory again and again, and count how often.

    It knows no ring: the two would hold one another, and no collection comes by where nothing is allocated.
    """
    for lap[0] in count():
        yield range(0, nbytes, SPAN.itemsize)


def _noting_refusals(call: Callable[..., Any], role: int, waits: list[bool]) -> Callable[..., Any]:
    """Make a method that does what ``call`` does, and notes whether it got nothing."""

    def noting(*args: Any) -> Any:
        result = call(*args)
        waits[role] = not result
        return result

    return noting

"""The tracer of a worker: what it keeps, what it sends, and that it leaves nothing behind."""

import gc
import weakref
from typing import Any

import numpy as np

from tianji_cli.files.traces import SPAN, WHAT
from tianji_cli.roles.role import Role
from tianji_cli.wire.messages import Addresses, AskClock, Clock, SpansOf, ToRoot, Trace, Traced
from tianji_cli.worker.tracer import ROUND_TRIPS, Measured, SpanRing, Tracer

ENDLESS = Trace(trace=3, until_s=1e9, most_spans=100)


class Worker(Role):
    """Works every other turn."""

    name = "worker"

    def __init__(self) -> None:
        self.turns = 0

    def turn(self) -> bool:
        self.turns += 1
        return self.turns % 2 == 0


class Process:
    """Sleeps, and is the control channel: keeps what is sent, and answers as another host's root would."""

    AHEAD_S = 1000.0

    def __init__(self) -> None:
        self.sent: list[ToRoot] = []
        self.slept: list[float] = []

    def sleep(self, timeout_s: float) -> None:
        self.slept.append(timeout_s)

    def send(self, message: ToRoot) -> None:
        self.sent.append(message)

    def wait(self, timeout_s: float) -> None:
        pass

    def receive(self) -> list[Any]:
        asked = self.sent[-1]
        assert isinstance(asked, AskClock)
        answer = Clock(asked_s=asked.asked_s, root_s=asked.asked_s + self.AHEAD_S)
        return [Clock(asked_s=0.0, root_s=0.0), answer, Addresses(addresses={})]


def spans_of(messages: list[ToRoot]) -> list[tuple[int, str]]:
    pieces = b"".join(message.spans for message in messages if isinstance(message, SpansOf))
    spans = np.frombuffer(pieces, SPAN)
    assert (spans["ended_s"] >= spans["began_s"]).all()
    return [(role, WHAT[what]) for _, _, role, what in spans.tolist()]


def test_turns_that_did_something_and_sleeps_of_every_role_are_kept() -> None:
    process, roles = Process(), [Worker(), Worker()]
    control: Any = process
    tracer = Tracer(control, 5, shares_clock=True)
    tracer.begin(ENDLESS, roles, process, [])
    for role in (*roles, *roles):
        role.turn()
    process.sleep(0.25)
    assert tracer.end()
    assert spans_of(process.sent) == [(0, "turn"), (1, "turn"), (0, "sleep"), (1, "sleep")]
    traced = process.sent[-1]
    assert isinstance(traced, Traced)
    assert (traced.rank, traced.trace, traced.dropped, traced.offset_s) == (5, 3, 0, 0.0)
    assert traced.began_s <= traced.ended_s


def test_nothing_is_left_of_a_trace_that_is_over() -> None:
    process, role = Process(), Worker()
    control: Any = process
    tracer = Tracer(control, 5, shares_clock=True)
    before = dict(vars(role)), dict(vars(process))
    tracer.begin(ENDLESS, [role], process, [])
    tracer.begin(ENDLESS, [role], process, [])
    assert "turn" in vars(role)
    assert tracer.end()
    assert (vars(role), vars(process)) == before
    assert tracer.until_s == float("inf")
    assert not tracer.end()


def test_the_clock_of_another_host_is_brought_to_the_root_s() -> None:
    process, unheard = Process(), list[Any]()
    control: Any = process
    tracer = Tracer(control, 5, shares_clock=False)
    tracer.begin(ENDLESS, [Worker()], process, unheard)
    assert tracer.end()
    traced = process.sent[-1]
    assert isinstance(traced, Traced)
    # The root's time was read when it was asked, so the truth lies half a round trip above.
    assert abs(traced.offset_s - Process.AHEAD_S) <= traced.uncertainty_s < 1.0
    assert sum(isinstance(message, AskClock) for message in process.sent) == ROUND_TRIPS
    assert unheard == [Addresses(addresses={})] * ROUND_TRIPS


def test_the_oldest_spans_make_room_and_are_counted() -> None:
    ring = SpanRing(4)
    calls = [ring.timed(lambda: True, role, Measured("turn", "turn")) for role in range(10)]
    for call in calls:
        call()
    assert [
        role for role, _ in spans_of([SpansOf(rank=0, trace=0, spans=piece) for piece in ring.pieces()])
    ] == [6, 7, 8, 9]
    assert ring.dropped == 6


def test_a_ring_is_freed_at_once_when_nobody_holds_it_any_more() -> None:
    gc.disable()  # Nothing that is allocated in steps would make it collect.
    try:
        ring = SpanRing(4)
        ring.timed(lambda: True, 0, Measured("turn", "turn"))()
        left = weakref.ref(ring)
        del ring
        assert left() is None
    finally:
        gc.enable()

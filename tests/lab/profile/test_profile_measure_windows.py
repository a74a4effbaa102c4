"""Windows begin and end with something finished, and hold some of everything that is counted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from lab.profile.probing import run

from tianji_lab.profile.probe import roles as windows
from tianji_lab.profile.probe.roles import SCHEDSTAT, Stopwatch, Windows, waited_s


class Clock:
    """Time that only passes when it is told to."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    on_core_s = waited_s = wakes_in_s = 0.0

    def thread_time(self) -> float:
        return self.on_core_s

    def sleep(self, seconds: float) -> None:
        self.now += seconds + self.wakes_in_s
        self.waited_s += self.wakes_in_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made_up = Clock()
    monkeypatch.setattr(windows, "time", made_up)
    monkeypatch.setattr(windows, "waited_s", lambda: made_up.waited_s)
    return made_up


class Worker:
    """Finishes something whenever it is told to."""

    def __init__(self, clock: Clock, **step: float) -> None:
        usual = {"warm_s": 1.0, "window_s": 2.0, "windows": 2, "tail_s": 0.5}
        self.counts = {"fragments": 0.0, "busy_s": 0.0}
        self.windows = Windows(run("actor", **{**usual, **step}), lambda: dict(self.counts))
        self._clock = clock

    def work(self, until: float, *, fragments: int = 0) -> bool:
        """Work until then, and finish so many; say whether to go on."""
        self.counts["busy_s"] += until - self._clock.now
        self.counts["fragments"] += fragments
        self._clock.now = until
        self.windows.look(finished=fragments > 0)
        return self.windows.handle()

    def counted(self) -> list[tuple[float, float]]:
        return [(window["wall_s"], window["fragments"]) for window in self.windows.counted()]


def test_windows_begin_and_end_with_something_finished(clock: Clock) -> None:
    worker = Worker(clock)
    assert worker.work(0.9, fragments=1), "that is the warm-up"
    assert worker.work(1.2)
    assert worker.work(1.5, fragments=1)
    assert worker.work(3.4, fragments=3)
    assert worker.work(3.9)
    assert worker.work(4.0, fragments=1)
    assert worker.work(13.0, fragments=1)
    assert worker.counted() == [(2.5, 4), (9.0, 1)]
    assert worker.work(13.4, fragments=1), "that is the tail"
    assert not worker.work(13.5)
    assert len(worker.counted()) == 2


def test_a_window_goes_on_until_everything_that_is_counted_has_risen(clock: Clock) -> None:
    worker = Worker(clock, windows=1)
    worker.counts["versions"] = 0.0
    worker.work(1.0, fragments=1)
    worker.work(4.0, fragments=1)
    assert worker.counted() == []
    worker.counts["versions"] = 1.0
    worker.work(5.0, fragments=1)
    assert worker.counted() == [(4.0, 2)]


def test_one_window_is_enough_after_a_time_but_none_is_not(clock: Clock) -> None:
    worker = Worker(clock, enough_s=5.0)
    assert worker.work(4.0, fragments=1)
    assert worker.work(7.0)
    assert worker.work(8.0, fragments=1)
    assert not worker.work(8.6, fragments=1)
    assert worker.counted() == [(4.0, 1)]
    # Whatever there is, it ends at the limit.
    clock.now = 0.0
    worker = Worker(clock, limit_s=10.0, tail_s=100.0)
    assert worker.work(9.9, fragments=1)
    assert not worker.work(10.0)
    assert worker.counted() == []


def test_what_another_process_had_of_the_core_is_nobodys_work(clock: Clock) -> None:
    worker = Worker(clock, windows=1)
    worker.work(1.0, fragments=1)
    clock.waited_s = 0.75
    worker.work(4.0, fragments=5)
    (window,) = worker.windows.counted()
    # Of three seconds three quarters of one went by without a core, while this was said to be busy.
    assert (window["wall_s"], window["fragments"]) == (3.0, 5.0)
    assert window["busy_s"] == pytest.approx(3.0 * 0.75)
    # An account of the kernel's that comes late leaves something of every window.
    clock.now, clock.waited_s = 0.0, 0.0
    worker = Worker(clock, windows=1)
    worker.work(1.0, fragments=1)
    clock.on_core_s, clock.waited_s = 0.5, 3.5
    worker.work(4.0, fragments=5)
    (window,) = worker.windows.counted()
    assert window["busy_s"] == pytest.approx(3.0 * 0.5 / 4.0)


def test_a_sleep_is_no_work_nor_is_the_wait_for_a_core_after_it(clock: Clock) -> None:
    worker = Worker(clock, windows=1, window_s=4.0, pause_s=1.5, pause_every=2)
    clock.wakes_in_s = 0.5
    worker.work(1.0, fragments=1)
    assert clock.now == 1.0, "it sleeps after every second time"
    worker.work(2.5, fragments=1)
    assert clock.now == 2.5 + 1.5 + 0.5
    clock.waited_s += 0.75
    worker.work(6.0, fragments=1)
    (window,) = worker.windows.counted()
    # Of three seconds awake three quarters of one went by without a core.
    assert (window["wall_s"], window["fragments"]) == (5.0, 2.0)
    assert window["busy_s"] == pytest.approx((1.5 + 1.5) * (1 - 0.75 / 3.0))


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="this kernel keeps no such account")
def test_a_thread_that_shares_its_core_waits_for_it_as_long_as_the_other_works() -> None:
    core = {min(os.sched_getaffinity(0))}
    hog = f"import os; os.sched_setaffinity(0, {core}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", hog], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        usual = os.sched_getaffinity(0)
        os.sched_setaffinity(0, core)
        try:
            outer = waited_s()
            began, ran = time.perf_counter(), time.thread_time()
            inner = waited_s()
            while time.thread_time() - ran < 0.2:
                pass
            inner = waited_s() - inner
            other_s = time.perf_counter() - began - (time.thread_time() - ran)
            outer = waited_s() - outer
        finally:
            os.sched_setaffinity(0, usual)
            other.kill()
    assert other_s > 0.1
    # Each of the lines between two looks may have waited, too.
    assert other_s - 0.05 < outer
    assert inner < other_s + 0.05


def test_a_stopwatch_counts_calls_and_their_seconds(clock: Clock) -> None:
    class Role:
        def work(self, seconds: float) -> str:
            clock.now += seconds
            return "done"

    role, stopwatch = Role(), Stopwatch()
    stopwatch.time(role, "work")
    assert [role.work(2.0), role.work(0.5)] == ["done", "done"]
    assert (stopwatch.calls, stopwatch.seconds) == (2, 2.5)

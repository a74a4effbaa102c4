"""Counts and times what roles do, in windows of the time that they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tianji_lab.profile.probe.protocol import Run

Counts = dict[str, float]

SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds that this thread ran, and that it was ready to run and had no core; not in every kernel."""


@dataclass
class Stopwatch:
    """Times the calls of one method of one object: what a role spends in the parts it is made of.

    Attributes:
        calls: how many.
        seconds: that they took together.
    """

    calls: int = 0
    seconds: float = 0.0

    def time(self, owner: object, method: str) -> None:
        """Time the calls of a method from now on; they cost a tenth of a microsecond more.

        Args:
            owner: whose method. A role knows it as an attribute only, so no role is changed for it.
            method: its name; called with positional arguments.
        """
        call = getattr(owner, method)
        now = time.perf_counter

        def timed(*args: Any) -> Any:
            began = now()
            result = call(*args)
            self.seconds += now() - began
            self.calls += 1
            return result

        setattr(owner, method, timed)


@dataclass(frozen=True)
class Reading:
    """Counters at the end of one window, which is the beginning of the next.

    Attributes:
        began: when reading began, ``time.perf_counter``.
        ended: when it ended.
        on_core_s: this thread ran, so far.
        waited_s: and was ready to run and had no core, so far, sleeps left out.
        slept_s: and slept because it was told to, until it had a core again, so far.
        counts: by name.
    """

    began: float
    ended: float
    on_core_s: float
    waited_s: float
    slept_s: float
    counts: Counts


class Windows:
    """Reads counters when something is finished and it is time; attends a loop, which it ends.

    Args:
        step: says how many windows there are to be, and how long, and when to sleep.
        read: gives the counters, none of which ever falls; those of seconds have names that end with ``_s``.
    """

    def __init__(self, step: Run, read: Callable[[], Counts]) -> None:
        self._step = step
        self._read = read
        self._finished = 0
        self._slept_s = self._waited_asleep_s = 0.0
        self._readings: list[Reading] = []
        self._over = False
        began = time.perf_counter()
        self._due = began + step.warm_s
        self._enough = began + step.enough_s
        self._limit = began + step.limit_s

    def look(self, *, finished: bool) -> None:
        """Sleep when it is time to; end a window when it is, and all that is counted has risen in it.

        Args:
            finished: what the role makes has just been finished.
        """
        if not finished:
            return
        self._pause()
        if self._over or (now := time.perf_counter()) < self._due:
            return
        counts = self._read()
        if self._readings:
            before = self._readings[-1].counts
            if any(count <= before[name] for name, count in counts.items()):
                return
        ended = time.perf_counter()
        waiting_s = waited_s() - self._waited_asleep_s
        self._readings.append(Reading(now, ended, time.thread_time(), waiting_s, self._slept_s, counts))
        self._due = ended + self._step.window_s
        if len(self._readings) > self._step.windows:
            self._end(ended)

    def attend(self) -> bool:
        """Go on until the last window and what follows it are over, or it has taken too long."""
        now = time.perf_counter()
        if not self._over and now >= self._enough and len(self._readings) > 1:
            self._end(now)
        return now < self._limit and not (self._over and now >= self._due)

    def counted(self) -> list[Counts]:
        """How far each counter rose in each window; ``wall_s`` is the window's length.

        Of the seconds those are left out in which this thread, which works all the time but for its sleep,
        waited for a core that another process had.
        """
        counted = []
        for before, after in zip(self._readings, self._readings[1:], strict=False):
            wall_s = after.began - before.ended
            waited_s = after.waited_s - before.waited_s
            # The kernel brings this account up to date now and then: it may tell of more than this window.
            awake_s = wall_s - (after.slept_s - before.slept_s)
            ran = 1 - waited_s / max(awake_s, after.on_core_s - before.on_core_s + waited_s)
            rose = {name: count - before.counts[name] for name, count in after.counts.items()}
            scaled = {name: rise * ran if name.endswith("_s") else rise for name, rise in rose.items()}
            counted.append({"wall_s": wall_s, **scaled})
        return counted

    def _pause(self) -> None:
        """Sleep as a role does that waits for others.

        After a sleep caches are cold and cores slow: a role that never sleeps is too fast a model of one that
        waits.
        """
        self._finished += 1
        if self._step.pause_s and self._finished % self._step.pause_every == 0:
            began, waiting_s = time.perf_counter(), waited_s()
            time.sleep(self._step.pause_s)
            self._slept_s += time.perf_counter() - began
            self._waited_asleep_s += waited_s() - waiting_s

    def _end(self, now: float) -> None:
        self._over = True
        self._due = now + self._step.tail_s


def waited_s() -> float:
    """Say for how many seconds this thread has been ready to run and had no core; 0 if nothing tells it."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0

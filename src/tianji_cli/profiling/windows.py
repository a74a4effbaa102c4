"""Counts and times what roles do, in windows of the time that they run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tianji_cli.profiling.protocol import Run

Counts = dict[str, float]


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
        counts: by name.
    """

    began: float
    ended: float
    counts: Counts


class Windows:
    """Reads counters when something is finished and it is time; attends a loop, which it ends.

    Args:
        step: says how many windows there are to be, and how long.
        read: gives the counters, none of which ever falls.
    """

    def __init__(self, step: Run, read: Callable[[], Counts]) -> None:
        self._step = step
        self._read = read
        self._readings: list[Reading] = []
        self._over = False
        began = time.perf_counter()
        self._due = began + step.warm_s
        self._enough = began + step.enough_s
        self._limit = began + step.limit_s

    def look(self, *, finished: bool) -> None:
        """End a window if it is time, and everything that is counted has risen in it.

        Args:
            finished: what the role makes has just been finished.
        """
        if not finished or self._over or (now := time.perf_counter()) < self._due:
            return
        counts = self._read()
        if self._readings:
            before = self._readings[-1].counts
            if any(count <= before[name] for name, count in counts.items()):
                return
        ended = time.perf_counter()
        self._readings.append(Reading(now, ended, counts))
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
        """How far each counter rose in each window; ``wall_s`` is the window's length."""
        between = zip(self._readings, self._readings[1:], strict=False)
        return [
            {
                "wall_s": after.began - before.ended,
                **{name: count - before.counts[name] for name, count in after.counts.items()},
            }
            for before, after in between
        ]

    def _end(self, now: float) -> None:
        self._over = True
        self._due = now + self._step.tail_s

"""Cuts the time that roles run into windows, and reads counters at their ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tianji_cli.profiling.protocol import Run

PATIENCE: Final = 2
"""Times its length that a window may take longer to end with something that is finished."""

Counts = dict[str, float]


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
    """Reads counters when it is time; attends a loop, which it ends after the last window.

    Args:
        step: says how many windows there are to be, and how long.
        read: gives the counters, none of which ever falls.
    """

    def __init__(self, step: Run, read: Callable[[], Counts]) -> None:
        self._step = step
        self._read = read
        self._readings: list[Reading] = []
        self._patience_s = PATIENCE * step.window_s if step.patience_s is None else step.patience_s
        self._wait(time.perf_counter(), step.warm_s)

    def look(self, *, finished: bool) -> None:
        """Read the counters if a window is over.

        Args:
            finished: what the role makes has just been finished, so a window may end here.
        """
        now = time.perf_counter()
        if now < self._due or not (finished or now >= self._latest) or self._over:
            return
        counts = self._read()
        ended = time.perf_counter()
        self._readings.append(Reading(now, ended, counts))
        self._wait(ended, self._step.tail_s if self._over else self._step.window_s)

    def _wait(self, since: float, seconds: float) -> None:
        self._due = since + seconds
        self._latest = self._due + self._patience_s

    def attend(self) -> bool:
        """Go on until the last window and what follows it are over."""
        self.look(finished=False)
        return not (self._over and time.perf_counter() >= self._due)

    @property
    def _over(self) -> bool:
        return len(self._readings) > self._step.windows

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

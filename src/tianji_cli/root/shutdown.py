"""The shutdown of a job: its actors stop first, then the processes that receive from them."""

from __future__ import annotations

import time
from collections.abc import Set as AbstractSet
from typing import Final

from tianji_cli.plan.plan import Plan
from tianji_cli.root.deaths import Deaths
from tianji_cli.root.running_job import RunningJob
from tianji_cli.wire.messages import Stop, WindDown

WIND_DOWN_LIMIT_S: Final = 1.5
"""Seconds after the last stop of an actor until the root kills the rest, if they are few."""
EACH_S: Final = 0.5
"""The same for each remaining actor, if they are many: all close at once, and may share a core."""
STOP_LIMIT_S: Final = 10.0
"""Seconds that any other process may take to stop."""
STOPS_LATE: Final = "did not stop in time"
SAVE_LIMIT_S: Final = 120.0
"""Seconds that a process may take that has a replay to save, which may be gigabytes."""
SILENT_S: Final = 3.0
"""Seconds of saving a replay after which the root tells the user."""


class StoppingOrder:
    """Decides which processes may stop: each stops when all that send it samples have sent their last report.

    A sender's later work, such as saving a replay, keeps no receiver from saving its own state.
    """

    def __init__(self, plan: Plan) -> None:
        self._outlived = plan.outlived()
        self._permitted: set[int] = set()

    def next(self, running: AbstractSet[int], stopped: AbstractSet[int]) -> set[int]:
        """Return the ranks that may newly stop now; the ranks in ``stopped`` have sent their last report."""
        waiting = running - stopped
        named = {rank for rank in running if not self._outlived[rank] & waiting} - self._permitted
        self._permitted |= named
        return named


class Shutdown:
    """Tells every process to stop in its turn, and kills those that do not stop in time.

    Attributes:
        deadline: time of ``time.monotonic`` at which the next limit ends; infinite before the shutdown and
            after it.
    """

    def __init__(self, job: RunningJob, deaths: Deaths) -> None:
        self._job = job
        self._deaths = deaths
        self._order = StoppingOrder(job.plan)
        saves = job.config.distribution.buffer.save_with_checkpoint
        self._savers = {process.rank for process in job.plan.carrying("buffer")} if saves else set[int]()
        self.deadline = float("inf")
        self._remaining: set[int] = set()
        self._killed: set[int] = set()
        self._deadlines: dict[int, float] = {}
        self._announce_at = float("inf")

    def begin(self) -> None:
        """Stop the actors, and tell the others to wind down."""
        for rank in self._job.producers:
            self._job.control.send(rank, Stop())
        for rank in self._job.receivers:
            self._job.control.send(rank, WindDown())

    def actors_are_gone(self) -> bool:
        """Return whether all actors have stopped; kill the rest when no further one stops in time."""
        now, remaining = time.monotonic(), self._job.pool.ranks & self._job.producers
        limit_s = min(STOP_LIMIT_S, max(WIND_DOWN_LIMIT_S, EACH_S * len(remaining)))
        if remaining != self._remaining:  # Each actor that stops gives the others more time.
            self._remaining, self.deadline = remaining, now + limit_s
        elif remaining and now >= self.deadline:
            if late := remaining - self._killed:
                self._job.event(f"{self._job.plan.titles(late)} did not stop within {limit_s:g} s: killed")
            self._job.pool.abort(remaining, STOPS_LATE)
            self._killed |= late
            self.deadline = now + WIND_DOWN_LIMIT_S
        return not remaining

    def all_are_gone(self) -> bool:
        """Stop processes in their turn, kill each whose time is up; return whether none is left."""
        now, running = time.monotonic(), self._job.pool.ranks
        for rank in self._order.next(running, self._job.members.stopped):
            self._job.control.send(rank, Stop())
            self._deadlines[rank] = now + (SAVE_LIMIT_S if rank in self._savers else STOP_LIMIT_S)
            if rank in self._savers:
                self._announce_at = min(self._announce_at, now + SILENT_S)
        late = {rank for rank in running if self._deadlines.get(rank, float("inf")) <= now}
        if late:
            self._give_up(late)
            self._job.pool.abort(late, STOPS_LATE)
            self._deadlines |= dict.fromkeys(late, now + STOP_LIMIT_S)
        if now >= self._announce_at:
            self._announce_at = float("inf")
            if saving := running & self._savers:
                self._job.event(
                    f"{self._job.plan.titles(saving)} may take up to {SAVE_LIMIT_S:g} s to save its replay "
                    "(a second Ctrl-C ends it at once)"
                )
        pending = [self._deadlines[rank] for rank in running if rank in self._deadlines]
        self.deadline = min([*pending, self._announce_at]) if running else float("inf")
        return not running

    def _give_up(self, late: set[int]) -> None:
        """Go on without processes that did not stop in time, or end the job as failed."""
        job = self._job
        if hanging := late & job.examiners:  # The job loses no training with an examiner.
            job.event(f"{job.plan.titles(hanging)} did not stop in time and was killed")
        if late := late - job.examiners:
            cause = f"{' and '.join(map(job.title, sorted(late)))} did not stop in time and was killed"
            if not self._deaths.lose(late, cause):
                job.fail(cause)

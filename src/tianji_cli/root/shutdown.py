"""The phases of a job, its shutdown (actors first, then their receivers), and the watch on its evaluation."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from tianji_cli.launch.pool import WorkerPool
from tianji_cli.plan.plan import Plan
from tianji_cli.telemetry.snapshot import Status
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Stop, WindDown
from tianji_cli.wire.reports import Evaluating


class Phase(enum.Enum):
    """Phase of a job, in their order."""

    STARTING = "starting"
    TRAINING = "training"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    EVALUATING = "evaluating"
    OVER = "over"


@dataclass
class Outcome:
    """Outcome of a job, and the reason."""

    status: Status
    reason: str


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
    """Decides which processes may stop once the actors have; each group goes at its own pace.

    A learner stops when a buffer in a process of its own has reported all fragments to it. The buffer's later
    work, such as saving its replay, keeps no learner from saving its own state. User roles and followers stop
    with the learner.
    """

    def __init__(self, plan: Plan) -> None:
        learners = {process.rank for process in plan.carrying("learner")}
        buffers = {process.rank for process in plan.carrying("buffer")} - learners
        actors = {process.rank for process in plan.carrying("actor")} - learners
        self._stages: list[tuple[set[int], ...]] = []
        for group in dict.fromkeys(process.group for process in plan.trainers):
            ranks = {process.rank for process in plan.trainers if process.group == group} - actors
            self._stages.append((ranks & buffers, ranks - buffers))
        self._permitted: set[int] = set()

    def next(self, running: AbstractSet[int], stopped: AbstractSet[int]) -> set[int]:
        """Return the ranks that may newly stop now; the ranks in ``stopped`` have sent their last report."""
        waiting = running - stopped
        named = {rank for stages in self._stages for rank in _now(stages, waiting)} - self._permitted
        self._permitted |= named
        return named


def _now(stages: tuple[set[int], ...], waiting: AbstractSet[int]) -> set[int]:
    """Find the first stage of a group in which a rank has not stopped; the last if all have."""
    return next((stage for stage in stages if stage & waiting), stages[-1])


class Shutdown:
    """Tells every process to stop in its turn, and kills those that do not stop in time.

    Args:
        saves_replay: buffers may write gigabytes.
        give_up: called with the processes, other than actors, that did not stop in time and are killed.

    Attributes:
        actors: ranks that carry actors and nothing that receives from them.
        receivers: the other ranks of all groups.
        stopped: ranks that have sent their last report; kept by the root.
        deadline: time of ``time.monotonic`` at which the next limit ends; infinite before the shutdown and
            after it.
    """

    def __init__(
        self,
        plan: Plan,
        control: ControlServer,
        pool: WorkerPool,
        *,
        saves_replay: bool,
        give_up: Callable[[set[int]], None],
        event: Callable[[str], None],
    ) -> None:
        self._plan = plan
        self._control = control
        self._pool = pool
        self._give_up = give_up
        self._event = event
        self._order = StoppingOrder(plan)
        self._savers = {process.rank for process in plan.carrying("buffer")} if saves_replay else set[int]()
        self.actors = {process.rank for process in plan.carrying("actor") if "learner" not in process.roles}
        self.receivers = {process.rank for process in plan.trainers} - self.actors
        self.stopped: set[int] = set()
        self.deadline = float("inf")
        self._remaining: set[int] = set()
        self._killed: set[int] = set()
        self._deadlines: dict[int, float] = {}
        self._announce_at = float("inf")

    def begin(self) -> None:
        """Stop the actors, and tell the others to wind down."""
        for rank in self.actors:
            self._control.send(rank, Stop())
        for rank in self.receivers:
            self._control.send(rank, WindDown())

    def actors_are_gone(self) -> bool:
        """Return whether all actors have stopped; kill the rest when no further one stops in time."""
        now, remaining = time.monotonic(), self._pool.ranks & self.actors
        limit_s = min(STOP_LIMIT_S, max(WIND_DOWN_LIMIT_S, EACH_S * len(remaining)))
        if remaining != self._remaining:  # Each actor that stops gives the others more time.
            self._remaining, self.deadline = remaining, now + limit_s
        elif remaining and now >= self.deadline:
            if late := remaining - self._killed:
                self._event(f"{self._plan.titles(late)} did not stop within {limit_s:g} s: killed")
            self._pool.abort(remaining, STOPS_LATE)
            self._killed |= late
            self.deadline = now + WIND_DOWN_LIMIT_S
        return not remaining

    def all_are_gone(self) -> bool:
        """Stop processes in their turn, kill each whose time is up; return whether none is left."""
        now, running = time.monotonic(), self._pool.ranks
        for rank in self._order.next(running, self.stopped):
            self._control.send(rank, Stop())
            self._deadlines[rank] = now + (SAVE_LIMIT_S if rank in self._savers else STOP_LIMIT_S)
            if rank in self._savers:
                self._announce_at = min(self._announce_at, now + SILENT_S)
        late = {rank for rank in running if self._deadlines.get(rank, float("inf")) <= now}
        if late:
            self._give_up(late)
            self._pool.abort(late, STOPS_LATE)
            self._deadlines |= dict.fromkeys(late, now + STOP_LIMIT_S)
        if now >= self._announce_at:
            self._announce_at = float("inf")
            if saving := running & self._savers:
                self._event(
                    f"{self._plan.titles(saving)} may take up to {SAVE_LIMIT_S:g} s to save its replay "
                    "(a second Ctrl-C ends it at once)"
                )
        pending = [self._deadlines[rank] for rank in running if rank in self._deadlines]
        self.deadline = min([*pending, self._announce_at]) if running else float("inf")
        return not running


GRACE_S: Final = 5.0
"""Seconds beyond the limit, for the evaluator's present step and for closing its environments."""

START_S: Final = 60.0
"""Seconds for building environments and policy before the first step."""


class EvaluationWatch:
    """Decides when the evaluator has exceeded its ``max_s`` seconds.

    The evaluator checks its limits between two steps, but a step may hang: so the root checks them, too.

    Attributes:
        ended_by: reason for ending the evaluator, in words; None if it was never late.
    """

    def __init__(self, max_s: float, event: Callable[[str], None]) -> None:
        self._max_s = max_s
        self._event = event
        self._since_s: float | None = None
        self._playing = False
        self.ended_by: str | None = None

    def is_late(self, evaluating: Evaluating | None) -> bool:
        """Return True once when the evaluator is late; the clock begins with the first call.

        ``evaluating`` is None before the evaluator has built its environments and policy.
        """
        now, playing = time.monotonic(), evaluating is not None
        if self._since_s is None or playing != self._playing:
            self._since_s, self._playing = now, playing
        took_s = now - self._since_s
        if self.ended_by is not None or took_s < self._max_s + (GRACE_S if playing else START_S):
            return False
        what = "in a step or an action that did not return" if playing else "of starting"
        self.ended_by = f"{took_s:.0f} s {what}"
        self._event(f"ending the evaluation after {self.ended_by}")
        return True

"""Processes that do not return from a call: the root ends an actor or an examiner, and the evaluator."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from tianji_cli.launch.node import ASLEEP_S
from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.plan.graph import EXAMINER
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import Phase, RunningJob
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.wire.messages import Register, Report, ToRoot

STALLED_S: Final = 30.0
"""Seconds without a step or an update until the root says so, once."""
PAUSE_S: Final = 2.0
"""Longest pause between two steps or updates that counts as work."""
SLOW: Final = 10
"""Factor over a process's longest silence so far beyond which it counts as hanging."""
SLOW_UPDATES: Final = 10
"""Factor on the silence limit of an actor in a learner's process, since updates may be long."""
LATE_S: Final = 10.0
"""Seconds of silence after which the root reports a worker as late."""
HANGS_S: Final = 75.0
"""Seconds that an examiner may be silent beyond an evaluation's limit.

A film may first build its environment, and closes it when it fails.
"""


class HangWatch(Observer):
    """Ends the processes that hang, and announces late ones, and training that stands still.

    Plain lines stop while nothing changes: a run that hangs must not look like one that has ended.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._limits_s = _silence_limits(job)
        self._last_heard = LastHeard(range(len(job.plan.processes)))
        self._reports: dict[int, Report] = {}
        self._looked_s = time.monotonic()
        self._done = (-1, -1, -1)
        self._done_s = 0.0
        self._stalled = False

    def on_message(self, message: ToRoot) -> None:
        """Note a sign of life from a worker."""
        match message:
            case Register():
                # Its start had a reset, so a reset may take twice as long as the start.
                starts_s = 2 * self._last_heard.of(message.rank)[0] / SLOW
                self._note_alive(message.rank, 0.0 if message.rank in self._job.examiners else starts_s)
            case Report():
                last = self._reports.get(message.rank, message)
                self._reports[message.rank] = message
                is_usual = last.incarnation == message.incarnation and message.rank not in self._job.examiners
                self._note_alive(message.rank, is_usual * (message.running_s - last.running_s))

    def _note_alive(self, rank: int, after_s: float) -> None:
        """Note a sign of life, ``after_s`` seconds of the worker's own clock after the one before."""
        if self._last_heard.is_broken(rank, after_s):
            self._job.event(f"{self._job.title(rank)} is heard of again")

    def on_exit(self, worker: WorkerProcess) -> None:
        """Begin the silence of a successor."""
        self._last_heard.begin(worker.rank)

    def on_tick(self, snapshot: Snapshot) -> None:
        """Abort hanging processes, which restart; announce late ones, and whether training stands still."""
        for rank in self._job.lost_ranks:
            self._last_heard.begin(rank)
        if self._job.phase is Phase.TRAINING:
            self._end_hanging()
            for rank in self._last_heard.newly_late(self._job.pool.ranks):
                self._job.event(f"nothing heard of {self._job.title(rank)} for {LATE_S:g} s")
            self._note_progress(snapshot)

    def _end_hanging(self) -> None:
        present = self._job.pool.ranks & self._job.members.registered
        for rank, how in self._find_hanging(present).items():
            if self._job.bound:
                self._job.fail(self._job.cause(rank, f" {how}"))
            self._job.pool.abort({rank}, how)

    def _find_hanging(self, present: set[int]) -> dict[int, str]:
        """Find and announce the processes that do not return from a call; describe each hang, by rank.

        While a process or the root is suspended, no more than ``LATE_S`` of its silence count.
        """
        now, before = time.monotonic(), self._looked_s
        self._looked_s = now
        hanging = {}
        for rank in present & self._limits_s.keys():
            limit_s = self._limits_s[rank]
            silent_s, usual_s = self._last_heard.of(rank)
            if silent_s <= max(min(limit_s, LATE_S), usual_s):
                continue
            if now - before > ASLEEP_S or self._job.pool.is_suspended(rank):
                self._last_heard.pause(rank)
                continue
            roles = self._job.plan.processes[rank].roles
            if EXAMINER not in roles and ("learner" not in roles or silent_s > limit_s / SLOW):
                self._job.stuck = rank  # No process waits for an examiner, and an update may take long.
            if silent_s > limit_s:
                self._last_heard.begin(rank)
                where, after = "a step, an action or a picture", f"{round(max(limit_s, usual_s), 1):g} s"
                self._job.event(
                    f"{self._job.title(rank)} does not come back from {where} after {after}: ending it"
                )
                hanging[rank] = f"hung for {after} in {where}"
        return hanging

    def _note_progress(self, snapshot: Snapshot) -> None:
        """Note what was made or learnt, and announce when that stops and when it goes on."""
        now, done = (
            time.monotonic(),
            (snapshot.learner.env_steps, snapshot.produced, snapshot.learner.updates),
        )
        if done != self._done:
            if self._stalled:
                self._job.event("training goes on")
            self._job.worked_s += min(now - self._done_s, PAUSE_S)
            self._done, self._done_s, self._stalled, self._job.stuck = done, now, False, None
        elif not self._stalled and now - self._done_s > STALLED_S:
            self._stalled = True
            self._job.event(f"no environment step and no update for {STALLED_S:g} s")


def _silence_limits(job: RunningJob) -> dict[int, float]:
    """Return the longest silence of processes that step environments, in seconds, by rank.

    A process that is usually slow may take longer.
    """
    limit_s, evaluation = job.config.environment.step_limit_s, job.config.experiment.evaluation
    limits_s = {
        process.rank: limit_s * (SLOW_UPDATES if "learner" in process.roles else 1)
        for process in job.plan.carrying("actor")
    }
    if evaluation is not None and not job.bound:
        limits_s |= dict.fromkeys(job.examiners, evaluation.max_s + HANGS_S)
    return limits_s


class LastHeard:
    """Remembers each rank's last sign of life, its longest silence, and whether it was reported as late."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._last_seen = dict.fromkeys(ranks, time.monotonic())
        self._counted_from = dict(self._last_seen)
        self._longest_s = dict.fromkeys(self._last_seen, 0.0)
        self._late: set[int] = set()

    def begin(self, rank: int) -> None:
        """Restart the silence of a rank at 0."""
        self._last_seen[rank] = self._counted_from[rank] = time.monotonic()
        self._late.discard(rank)

    def is_broken(self, rank: int, after_s: float) -> bool:
        """Note a sign of life from a rank; return whether the rank had been reported as late.

        Args:
            after_s: silence by the rank's own clock, since the root may have been suspended.
        """
        late = rank in self._late
        self._longest_s[rank] = max(self._longest_s[rank], min(after_s, self.of(rank)[0]))
        self.begin(rank)
        return late

    def of(self, rank: int) -> tuple[float, float]:
        """Return the silence of a rank, and the longest silence that is usual for it, in seconds."""
        return time.monotonic() - self._counted_from[rank], SLOW * self._longest_s[rank]

    def newly_late(self, ranks: Iterable[int]) -> list[int]:
        """Find the ranks that are late now and were not reported before."""
        now = time.monotonic()
        late = [rank for rank in ranks if rank not in self._late and now - self._last_seen[rank] > LATE_S]
        self._late.update(late)
        return late

    def pause(self, rank: int) -> None:
        """Count the silence of a rank from now on: the rank, or the root, was suspended."""
        self._counted_from[rank] = time.monotonic()


GRACE_S: Final = 5.0
"""Seconds beyond the limit, for the evaluator's present step and for closing its environments."""

START_S: Final = 60.0
"""Seconds for building environments and policy before the first step."""


class EvaluationWatch(Observer):
    """Ends the evaluator after its last seconds, and records the result of the final evaluation.

    The evaluator checks its limits between two steps, but a step may hang: so the root checks them, too.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._max_s = job.config.experiment.eval_max_s
        self._since_s: float | None = None
        self._playing = False
        self._ended_by: str | None = None

    def on_tick(self, snapshot: Snapshot) -> None:
        """End an evaluator that is late; kill it at the next tick."""
        if self._job.phase is not Phase.EVALUATING:
            return
        if self._ended_by is not None:
            self._job.pool.kill_all()
            return
        now, playing = time.monotonic(), snapshot.evaluating is not None
        if self._since_s is None or playing != self._playing:
            self._since_s, self._playing = now, playing
        took_s = now - self._since_s
        if took_s >= self._max_s + (GRACE_S if playing else START_S):
            what = "in a step or an action that did not return" if playing else "of starting"
            self._ended_by = f"{took_s:.0f} s {what}"
            self._job.event(f"ending the evaluation after {self._ended_by}")
            self._job.pool.abort(self._job.pool.ranks, "hung")

    def on_end(self) -> None:
        """Record the result of the evaluation, if there was one."""
        workers = self._job.overview.workers
        evaluators = self._job.plan.carrying("evaluator")
        has_begun = any(workers[process.rank].state != "planned" for process in evaluators)
        if has_begun and self._job.outcome is not None and self._job.outcome.status == "finished":
            self._job.overview.note_evaluation(self._ended_by)

"""Stop rules of a job, and the number of fragments that actors may still begin.

A learner sees whether its returns reach a goal (``Episodes.rule_reached``); the root ends the job when it
says so.

A run is over when its learners have *received* ``stop.env_steps``. If actors went on until then, their
samples in flight would come on top: with 200 actors, most of another run. So production stops once the
samples under way suffice, and resumes if some of them are lost.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from typing import Final

from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import RunningJob
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.wire.messages import Allow, Finished, Register, Report, ToRoot
from tianji_cli.wire.reports import Reception, Source


class StopRules(Observer):
    """Ends a job at its goal: checks steps and time, and hears of the goals that processes check themselves.

    Learners check the mean return, a single learner its own steps, and an examiner the evaluations.

    Args:
        enough: a further rule; it returns the reason to end the job, or None.
    """

    def __init__(self, job: RunningJob, enough: Callable[[Snapshot], str | None]) -> None:
        self._job = job
        self._enough = enough
        self._stop = job.config.experiment.stop
        self._several = job.config.distribution.groups > 1

    def on_message(self, message: ToRoot) -> None:
        """End the job if a process has reached its goal, or if all groups together have made the steps."""
        match message:
            case Finished() if message.rank in self._job.examiners:
                self._job.finish(message.reason)
            case Finished():
                group = self._job.plan.processes[message.rank].group
                if group is not None and group not in self._job.lost:
                    self._job.finish(
                        f"{message.reason} in group {group}" if self._several else message.reason
                    )
            case Report() if message.rank in self._job.learners:
                self._finish_if(self.steps_reached())

    def on_tick(self, snapshot: Snapshot) -> None:
        """End the job if its time is up; it has failed if an actor hangs, and nothing was made since."""
        reached = self.time_reached()
        if reached is not None and self._job.stuck is not None and self._job.outcome is None:
            hangs = self._job.cause(self._job.stuck, " hangs, and nothing was made or learnt since")
            self._job.fail(f"{hangs}: {reached}")
        self._finish_if(reached or self._enough(snapshot))

    def _finish_if(self, reached: str | None) -> None:
        if reached is not None:
            self._job.finish(reached)

    def steps_reached(self) -> str | None:
        """Return the reason if all groups together have reached the steps, else None."""
        if not self._several:
            return None
        # Each learner counts its own steps, over all sessions.
        env_steps = sum(report.env_steps for report in self._job.overview.learners().values())
        return self._stop.reached({"env_steps": env_steps}).get("env_steps")

    def time_reached(self) -> str | None:
        """Return the reason if the time is up, else None; reads the production pages of all actors."""
        if self._stop.wall_s is None:
            return None
        return self._stop.reached({"wall_s": self._job.overview.session_train_s}).get("wall_s")


NEAR_S: Final = 0.02
"""Seconds between two looks at the counters when the goal may be reached any moment."""
LOOK_S: Final = 1e-4
"""Seconds between two looks, for each actor: a look takes a twentieth of them, and of the root's time."""
FAR_S: Final = 0.5
"""Longest pause between two looks, in seconds."""
STALL_S: Final = 2.0
"""Seconds without an arrival, although enough samples are under way, after which all actors go on."""


class ProductionGoal(Observer):
    """Decides how many further fragments each actor may begin, and tells the actors.

    It decides nothing in ``mode = "sync"``: there actors wait for each new version and never make more than
    one rollout for it.
    """

    def __init__(self, job: RunningJob) -> None:
        config, plan = job.config, job.plan
        goal = config.experiment.stop.env_steps if config.distribution.mode == "async" else None
        self._goal = math.inf if goal is None else goal - job.overview.earlier_env_steps
        self._job = job
        self._overview = job.overview
        self._carriers = [process.rank for process in plan.carrying("actor")]
        self._group_of = {actor: process.group for process in plan.processes for actor in process.actors}
        self._near_s = max(NEAR_S, plan.num_actors * LOOK_S)
        self._full = config.fragment_steps
        self._unit = 1 if config.learns_from_replay else config.fragments_per_rollout
        self._seen = -1
        self._grown_at = 0.0
        self._before = 0.0, 0.0

    def on_begin(self) -> None:
        """Look at the counters from now on."""
        self.deadline = 0.0 if self._goal < math.inf else math.inf

    def on_message(self, message: ToRoot) -> None:
        """Send a restarted actor the limit that the others have."""
        if isinstance(message, Register) and self._job.near_goal and message.rank in self._carriers:
            self._job.control.send(message.rank, Allow(fragments=0))

    def on_turn(self) -> None:
        """Look at the counters if it is time, and tell the actors how many fragments they may begin."""
        now = time.monotonic()
        if now < self.deadline:
            return
        # The killed incarnations will not finish the fragments that they have begun.
        coming, samples = self._coming(self._job.killed)
        missing = self._goal - coming
        if self._job.near_goal and self._has_stalled(now):
            self._send(None)
            self._job.near_goal = False
            self._goal = self.deadline = math.inf
        elif missing <= 0:
            if not self._job.near_goal:
                self._job.near_goal, self._grown_at = True, now
                self._send(0)
            self.deadline = now + FAR_S
        elif self._job.near_goal:
            self._send(math.ceil(missing / samples))
            self.deadline = now + FAR_S  # The counters then include what the actors begin now.
        else:
            self.deadline = now + self._pause_s(now, coming, missing)

    def _pause_s(self, now: float, coming: float, missing: float) -> float:
        """Return the pause before the next look: short once one more fragment of each actor may suffice."""
        then, came = self._before
        self._before = now, coming
        rate = (coming - came) / max(now - then, 1e-3)
        spare = missing - len(self._group_of) * self._full
        if spare <= 0:
            return self._near_s
        return min(max(spare / (2 * rate), self._near_s), FAR_S) if rate > 0 else FAR_S

    def _coming(self, killed: Collection[Source]) -> tuple[float, float]:
        """Add up the samples that learners will have received when all begun fragments have arrived.

        Returns:
            coming: samples of the session, only of rollouts that become complete.
            samples: samples in a fragment, on average.
        """
        pages, receptions = self._overview.productions(), self._overview.receptions()
        finished = sum(page.finished for page in pages.values())
        samples = finished / sum(page.pushed for page in pages.values()) if finished else float(self._full)
        fragments = dict.fromkeys(self._group_of.values(), 0.0)
        for source, page in pages.items():
            reception = receptions.get(source, Reception())
            begun = reception.next_sequence if source in killed else page.pushed + (page.unfinished > 0)
            fragments[self._group_of[source[0]]] += begun - (reception.lost + reception.dropped) / samples
        whole = sum(math.floor(round(of_group, 3) / self._unit) for of_group in fragments.values())
        return whole * self._unit * samples, samples

    def _has_stalled(self, now: float) -> bool:
        """Whether nothing has arrived for much longer than a fragment takes."""
        received = self._overview.received
        if received != self._seen:
            self._seen, self._grown_at = received, now
        trained_s, made = self._overview.session_train_s, max(received, self._full) / self._full
        # One fragment of each process, or one rollout, may arrive at once.
        fragment_s = trained_s * max(len(self._carriers), self._unit) / made
        return now - self._grown_at > max(STALL_S, 3 * fragment_s)

    def _send(self, fragments: int | None) -> None:
        """Share out so many further fragments over all actors, one each at most; None allows any number."""
        for rank in [rank for rank in self._carriers if rank not in self._job.lost_ranks | self._job.parked]:
            of_process = fragments
            if fragments is not None:
                of_process = min(fragments, len(self._job.plan.processes[rank].actors))
                fragments -= of_process
            self._job.control.send(rank, Allow(fragments=of_process))

"""Messages to the user while a job runs: slow starts, growing memory, remarks, rejected frames."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from tianji_cli.plan.graph import EXAMINER
from tianji_cli.quantities import duration, memory
from tianji_cli.root.bottleneck import Receiver
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import Phase, RunningJob
from tianji_cli.signals import BEGAN_S
from tianji_cli.telemetry.snapshot import RoleStatus, Snapshot
from tianji_cli.wire.messages import Report, ToRoot
from tianji_cli.wire.reports import ExaminerReport

SLOW_START_S: Final = 30.0
"""Seconds until the root names, once, the processes that are not ready."""
WEIGH_EVERY_S: Final = 60.0
GROWING: Final = 10
"""Number of measurements: the root names a process whose memory grew at each, and by a quarter in all."""


class Announcements(Observer):
    """Announces events of a running job to the user, most of them once; decides nothing."""

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self._began = time.monotonic()
        self._suspended_servers: set[str] = set()
        self._weigh_s = 0.0
        self._weights: dict[int, list[int]] = {}

    def on_message(self, message: ToRoot) -> None:
        """Announce, once, that an evaluation was cut off or could not be filmed; logs have each failure."""
        for role_report in message.roles if isinstance(message, Report) else ():
            if isinstance(role_report, ExaminerReport):
                for one in role_report.newest:
                    self._check_evaluation(one.evaluation.cut_off)
                self._check_film(role_report.film_failure)

    def on_tick(self, snapshot: Snapshot) -> None:
        """Announce what is there to be announced now."""
        overview = self._job.overview
        self._check_rejections()
        self._check_servers(self._job.pool.suspended_servers)
        self._check_first_step(overview.session_train_s)
        self.check_waiting(overview.waits_for)
        self._check_remarks(overview.remarks)
        if self._job.phase is Phase.STARTING:
            self.check_start(self._job.pool.ranks - self._job.members.registered)
        if self._job.phase is Phase.TRAINING:
            self.check_memory(snapshot.roles)

    def on_end(self) -> None:
        """Announce rejections and remarks of the last reports."""
        self._check_rejections()
        self._check_remarks(self._job.overview.remarks)

    def check_memory(self, roles: Iterable[RoleStatus]) -> None:
        """Announce actors and examiners whose memory grows steadily; other processes may fill a replay."""
        if time.monotonic() < self._weigh_s:
            return
        self._weigh_s = time.monotonic() + WEIGH_EVERY_S
        for role in roles:
            if role.memory and set(self._job.plan.processes[role.rank].roles) <= {"actor", EXAMINER}:
                weights = self._weights.setdefault(role.rank, [])
                if weights and role.memory <= weights[-1]:
                    weights.clear()
                weights.append(role.memory)
                if len(weights) >= GROWING and role.memory > 1.25 * weights[0]:
                    since = duration(WEIGH_EVERY_S * (len(weights) - 1))
                    self._job.event(
                        f"the memory of {self._job.title(role.rank)} grows steadily: {memory(weights[0])} "
                        f"{since} ago, {memory(role.memory)} now; does its environment keep what is over?"
                    )
                    weights.clear()

    def check_start(self, missing: Iterable[int]) -> None:
        """Announce the ranks that all others wait for, if they take long to start."""
        if time.monotonic() - self._began > SLOW_START_S:
            self._job.show_once(
                "start", f"not ready yet after {SLOW_START_S:g} s: {self._job.plan.titles(missing)}"
            )

    def _check_first_step(self, trained_s: float) -> None:
        """Announce the start-up time; the first step was ``trained_s`` ago, 0 before it."""
        if trained_s:
            start_up_s = time.monotonic() - BEGAN_S - trained_s
            self._job.show_once(
                "first step", f"first environment step {start_up_s:.2f} s after the command began"
            )

    def _check_servers(self, suspended: Mapping[str, int]) -> None:
        """Announce fork servers that are suspended, with their process ids."""
        for title in suspended.keys() - self._suspended_servers:
            pid = suspended[title]
            self._job.event(
                f"{title} (process {pid}) is stopped: it starts no worker, and does not say how one ends; "
                f"kill -CONT {pid} lets it go on"
            )
        self._suspended_servers = set(suspended)

    def check_waiting(self, waits_for: Receiver | None) -> None:
        """Announce a role that holds actors back."""
        if waits_for is not None:
            self._job.show_once(waits_for, f"actors wait for {waits_for}, {waits_for.fault}")

    def _check_remarks(self, remarks: Mapping[str, str]) -> None:
        """Announce the actors' remarks about their environments, once for each subject."""
        for subject, remark in remarks.items():
            self._job.show_once(("remark", subject), remark)

    def _check_evaluation(self, cut_off: str | None) -> None:
        """Announce, once, that a limit cut off an evaluation during training."""
        if cut_off is not None:
            self._job.show_once(
                "cut off",
                f"an evaluation was cut off after {cut_off}: it is neither the best nor ends the run "
                "(experiment.evaluation.max_s and episodes)",
            )

    def _check_film(self, failure: str | None) -> None:
        """Announce, once, that an evaluation could not be filmed; the examiner's log has each failure."""
        if failure is not None:
            self._job.show_once("film", f"an evaluation could not be filmed, and the run goes on: {failure}")

    def _check_rejections(self) -> None:
        """Announce each role's first rejection; the summary counts the rest."""
        for whom, count, why in self._job.rejections():
            frames = f"{count} frame{'s' if count > 1 else ''}"
            self._job.show_once(("rejected", whom), f"{whom} refused {frames} (such as: {why})")

"""One process of a sweep: takes trials, trains their seeds side by side, and judges them."""

from __future__ import annotations

import errno
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from tianji_cli.errors import ProcessExit, TianjiError, UsageError, errors_as
from tianji_cli.files.campaigns import SweepDirectory
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.files.saved import goals_reached
from tianji_cli.limits import usable_cores
from tianji_cli.runs.campaign import Campaign, Member, why_failed
from tianji_cli.runs.sweep.leases import Lease
from tianji_cli.runs.sweep.metrics import CutOffError, MetricCurve, final_value, means_at_points
from tianji_cli.runs.sweep.space import Plan
from tianji_cli.runs.sweep.study import WORKER, SweepStudy
from tianji_cli.signals import INTERRUPTED
from tianji_cli.telemetry.run_state import is_running
from tianji_transports.shm.page import SHM

NO_ROOM: Final = tuple(map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EROFS)))
"""Errors of a training that could not write: its parameters are not to blame, so its trial waits for later.

The trial fails all the same if the message names a place outside the sweep, perhaps the environment's, and
the training before did not do so.
"""


@dataclass
class Running:
    """A trial of this process.

    Attributes:
        members: its trainings, one for each seed.
        curves: curves of all seeds that have begun.
        results: final values by seed; None if the run has none.
        ending: reason for which its trainings are to end; empty if they are not.
        reason: the same in words.
        asked: its trainings have been asked to end.
    """

    trial: optuna.Trial
    members: Sequence[Member]
    curves: dict[int, MetricCurve] = field(default_factory=dict)
    results: dict[int, float | None] = field(default_factory=dict)
    ending: Literal["", "pruned", "failed", "lost"] = ""
    reason: str = ""
    asked: bool = False

    @property
    def waiting(self) -> list[Member]:
        """Trainings that have not begun."""
        return [member for member in self.members if member.status == "waiting"]

    @property
    def going(self) -> list[Member]:
        """Trainings that run."""
        return [member for member in self.members if member.status == "running"]


class Sweeper:
    """Owns this process's trials, and its lease on the sweep."""

    def __init__(self, directory: SweepDirectory, plan: Plan, study: SweepStudy) -> None:
        self._directory = directory
        self._plan = plan
        self._study = study
        self._running: dict[int, Running] = {}
        self._wrote_elsewhere = False

    @property
    def own(self) -> Sequence[Running]:
        """Trials that this process runs, in the order in which it took them."""
        return tuple(self._running.values())

    def work(self, show: Callable[[Sweeper], None]) -> None:
        """Run trials until all are over, also those of other processes, since one of these may be killed.

        Args:
            show: called now and then.

        Raises:
            TianjiError: the directory cannot be written to, or read.
        """
        with errors_as(TianjiError, f"cannot write into {self._directory.workers}", OSError):
            lease = Lease(self._directory.workers)
        try:
            lease.clear()
            with Campaign(usable_cores(), self._plan.job.cores_beside_others) as campaign:
                while True:
                    lease.keep()
                    self._start(campaign, lease)
                    show(self)
                    if not self._running and self._all_are_over():
                        return
                    for member, ended in campaign.wait():
                        self._note(member, ended)
                    self._judge(campaign, lease)
        finally:
            # Trainings have ended by now, with a checkpoint each.
            try:
                for number in self._running:
                    if self._study.is_owner(number, lease.name):
                        self._study.give_up(number)
            finally:
                lease.close()

    def _all_are_over(self) -> bool:
        return not any(one.state in {TrialState.RUNNING, TrialState.WAITING} for one in self._study.trials)

    def _start(self, campaign: Campaign, lease: Lease) -> None:
        while campaign.has_room:
            one = next((one for one in self._running.values() if one.waiting and not one.ending), None)
            if one is None:
                one = self._take(lease)
                if one is None:
                    return
            member = one.waiting[0]
            command = member.command(anew=self._lacks_evaluation(member.run))
            if command is not None:
                metric, job = self._plan.sweep.metric, self._plan.job
                one.curves[member.seed] = MetricCurve(member.run, metric, job)
                campaign.start(member, command)
                continue
            member.status = "finished"
            self._read(one, member)
            if not one.waiting and not one.going:
                self._settle(one)

    def _take(self, lease: Lease) -> Running | None:
        def is_given_up(trial: FrozenTrial) -> bool:
            worker = trial.user_attrs.get(WORKER)
            return (
                worker != lease.name
                and (worker is None or lease.is_dead(worker))
                and not any(is_running(self._directory.run(trial.number, seed)) for seed in self._plan.seeds)
            )

        trial = self._study.take(lease.name, is_given_up)
        if trial is None:
            return None
        toml = self._plan.config_with(self._study.values(trial))
        config = self._directory.trial_config(trial.number)
        with errors_as(TianjiError, f"cannot write {config}", OSError):
            config.parent.mkdir(exist_ok=True)
            write_whole(config, toml.encode())
        no_plots = ("experiment.plots=false",)
        runs = {seed: self._directory.run(trial.number, seed) for seed in self._plan.seeds}
        members = [Member(run, config, seed, no_plots) for seed, run in runs.items()]
        one = self._running[trial.number] = Running(trial, members)
        return one

    def _lacks_evaluation(self, run: RunDirectory) -> bool:
        """Whether a run has reached its goals, so that nothing but its final evaluation is missing."""
        job = self._plan.job
        try:
            return bool(goals_reached(run.checkpoints, job.experiment.stop, job.distribution.groups))
        except UsageError:  # It has no checkpoint.
            return False

    def _note(self, member: Member, ended: ProcessExit) -> None:
        one = next(one for one in self._running.values() if member in one.members)
        if ended.status == 0:
            self._wrote_elsewhere = False
            self._read(one, member)
        elif any(words in ended.last_words for words in NO_ROOM) and self._has_no_room(ended.last_words):
            # No other trial would get further.
            raise TianjiError(f"cannot go on with {self._directory.path}: {why_failed(ended)}")
        elif not one.ending:
            what = "was stopped" if ended.status == INTERRUPTED else why_failed(ended)
            one.ending, one.reason = "failed", f"seed {member.seed}: {what}"

    def _has_no_room(self, last_words: str) -> bool:
        """Whether runs cannot be written to, or two trainings in a row could not write somewhere else."""
        named = re.findall(r"'(/[^']+)'", last_words)
        ours = (str(self._directory.path.absolute()), str(SHM))
        before, self._wrote_elsewhere = self._wrote_elsewhere, bool(named)
        return before or not named or any(place.startswith(ours) for place in named)

    def _read(self, one: Running, member: Member) -> None:
        """Read the final value of a seed; if its evaluation was cut off, the trial fails."""
        try:
            one.results[member.seed] = final_value(member.run, self._plan.sweep.metric)
        except CutOffError as cause:
            if not one.ending:
                one.ending, one.reason = "failed", f"seed {member.seed}: {cause}"

    def _judge(self, campaign: Campaign, lease: Lease) -> None:
        """Look at the running trials: prune bad ones, and record those that are over."""
        for one in list(self._running.values()):
            number = one.trial.number
            if not one.ending and not self._study.is_owner(number, lease.name):
                one.ending = "lost"
            # Trials that are over report as well: others are compared with them.
            if not one.ending and self._is_worse(one) and (one.going or one.waiting):
                one.ending = "pruned"
            if one.ending and not one.asked:  # Ask once only: a training that is asked twice saves nothing.
                one.asked = True
                for member in one.going:
                    campaign.ask_to_end(member)
            if not one.going and (one.ending or not one.waiting):
                self._settle(one)

    def _is_worse(self, one: Running) -> bool:
        """Report the points that all unfinished seeds have passed; returns whether to prune the trial."""
        if self._plan.sweep.pruner == "none":
            return False
        for curve in one.curves.values():
            curve.look()
        return self._study.report(
            one.trial, means_at_points(one.curves, [member.seed for member in one.going])
        )

    def _settle(self, one: Running) -> None:
        """Record the end of a trial."""
        del self._running[one.trial.number]
        if one.ending == "lost":
            return
        if one.ending == "pruned":
            self._study.prune(one.trial)
        elif one.ending == "failed":
            self._study.fail(one.trial, one.reason)
        else:
            self._study.finish(one.trial, self._mean(list(one.results.values())))

    def _mean(self, values: Sequence[float | None]) -> float:
        """Return the value of a trial: the worst possible if one of its seeds has none."""
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return math.inf if self._plan.sweep.minimizes else -math.inf
        return sum(known) / len(known)

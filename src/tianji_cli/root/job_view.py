"""The root's view of a job: snapshots and a summary from the roles' reports and the production pages."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from operator import lt
from pathlib import Path
from typing import Any, Final, TypeVar

from tianji_cli.config.schema import JobConfig
from tianji_cli.files.counters import Production, ProductionFile
from tianji_cli.files.saved import Progress, point_best_at
from tianji_cli.plan.plan import ROOT_RANK, Plan
from tianji_cli.quantities import finite
from tianji_cli.root.accounting import of_buffers, of_learners
from tianji_cli.root.bottleneck import MOST_MARKS, Receiver, WorkLog
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.metrics import EVALUATION
from tianji_cli.telemetry.snapshot import (
    Account,
    Averaging,
    Evaluated,
    GroupStanding,
    PopulationStanding,
    RoleStatus,
    Snapshot,
    Split,
    Status,
    StopProgress,
    Summary,
)
from tianji_cli.wire.messages import PageReport, Report, own_memory, read_report
from tianji_cli.wire.reports import (
    OF_SOME,
    ActorReport,
    BufferReport,
    Evaluating,
    Evaluation,
    EvaluatorReport,
    Examined,
    ExaminerReport,
    LearnerReport,
    Reception,
    RoleReport,
    Source,
    UserReport,
)

R = TypeVar("R", bound=RoleReport)

RATES_S: Final = 5.0
"""Interval of rates, in seconds: a rollout arrives at once, so a single second has all of it or nothing."""


class Overview:
    """Owns the root's knowledge of a job; makes snapshots while a run goes on, and its summary at the end.

    Attributes:
        ended: pages of earlier incarnations on this host, and of all actors elsewhere, as last reported.
        elsewhere: pages of user roles on other hosts, by number, as last reported.
        unsure: ranks on lost hosts, known only by their last report.
        evaluation: result of the greedy evaluation.
        averaging: progress of parameter averaging; None with one group, or with a population.
        population: standing of the population's members; None without one.
        split: number of actors that work; None if it does not vary.

    Args:
        earlier: progress that a resumed run goes on from, by group.
    """

    def __init__(
        self, config: JobConfig, plan: Plan, production: ProductionFile, earlier: Sequence[Progress] = ()
    ) -> None:
        self._config = config
        self._plan = plan
        self._production = production
        self.earlier_env_steps = sum(progress.env_steps for progress in earlier)
        self._earlier = {group: _first_report(progress) for group, progress in enumerate(earlier)}
        self._began = time.monotonic()
        self._counted: deque[tuple[float, int, int, int]] = deque()
        self._local_actors = [
            actor for process in plan.processes if plan.is_local(process.rank) for actor in process.actors
        ]
        self.workers = {process.rank: WorkerView() for process in plan.processes}
        self.workers[ROOT_RANK].state = "running"
        self.ended: dict[Source, Production] = {}
        self.elsewhere: dict[int, Production] = {}
        self.unsure: set[int] = set()
        self._received_before: dict[Source, Reception] = {}
        self._consumed_before: dict[tuple[int, int], int] = {}
        """Uses of samples by learners that were started anew, by rank and incarnation."""
        self.evaluation: Evaluation | None = None
        self._examined = (0, 0)
        self._evaluated = Evaluated(0)
        groups = config.distribution.groups
        averages = groups > 1 and config.population is None
        self.averaging = Averaging(0, (0,) * groups) if averages else None
        self.population: PopulationStanding | None = None
        self.split: Split | None = None
        self._work = WorkLog(config, plan)
        self._forecast = StopForecast(config.experiment.stop.targets)

    def productions(self) -> dict[Source, Production]:
        """Return the pages of all incarnations so far."""
        current = [self._production.read(actor) for actor in self._local_actors]
        return {**self.ended, **{(page.number, page.incarnation): page for page in current}}

    def note(self, report: Report) -> None:
        """Record a worker's report of its roles."""
        process = self._plan.processes[report.rank]
        self.workers[report.rank].update(report)
        self.note_pages(report.pages)
        if process.group is None:
            return
        if self._plan.is_local(report.rank):
            produced = {actor: self._production.read(actor).produced for actor in process.actors}
        else:
            produced = {page.number: page.produced for page in map(read_report, report.pages)}
        self._work.note(process, report, produced)

    def note_pages(self, reports: Iterable[PageReport]) -> None:
        """Record reports of pages on other hosts."""
        for page in map(read_report, reports):
            if page.number >= self._plan.num_actors:
                self.elsewhere[page.number] = page
                continue
            known = self.ended.get((page.number, page.incarnation))
            began_ns = known.first_step_ns if known is not None else 0
            # The first report has the most exact start time.
            self.ended[page.number, page.incarnation] = replace(
                page, first_step_ns=began_ns or page.first_step_ns
            )

    def settle_unsure(self) -> None:
        """Raise the production of lost hosts to what the buffers received, if their last reports say less."""
        actors = {actor for rank in self.unsure for actor in self._plan.processes[rank].actors}
        for source, reception in self.receptions().items():
            page = self.ended.get(source)
            if source[0] in actors and page is not None and page.finished < reception.position:
                left = max(0, page.unfinished + page.finished - reception.position)
                self.ended[source] = replace(
                    page, unfinished=left, finished=reception.position, pushed=reception.next_sequence
                )

    def receptions(self) -> dict[Source, Reception]:
        """Return the buffers' receptions, as of their last reports."""
        last = {
            source: reception
            for _, report in self._reports(BufferReport)
            for source, reception in report.by_source.items()
        }
        return self._received_before | last

    def passed(self) -> dict[int, list[Production]]:
        """Return the pages of the user roles before the buffers, by the number of the actor."""
        found: dict[int, list[Production]] = {}
        plan = self._plan
        for (rank, number), page in plan.pages.items():
            if number < plan.num_actors <= page and (plan.is_local(rank) or page in self.elsewhere):
                read = self._production.read(page) if plan.is_local(rank) else self.elsewhere[page]
                found.setdefault(number, []).append(read)
        return found

    def keep(self, rank: int) -> None:
        """Keep the counts of a process that has ended and is started anew."""
        process, view = self._plan.processes[rank], self.workers[rank]
        view.restarts += 1
        if self._plan.is_local(rank):
            for actor in process.actors:
                page = self._production.read(actor)
                self.ended[actor, page.incarnation] = page
        for role_report in view.report.roles if view.report is not None else ():
            if isinstance(role_report, BufferReport):
                self._received_before |= role_report.by_source
            elif isinstance(role_report, LearnerReport):
                assert view.report is not None
                self._consumed_before[rank, view.report.incarnation] = role_report.session_consumed

    @property
    def received(self) -> int:
        """Samples that all groups received in this session, as of their learners' last reports."""
        return self._learner().env_steps - self.earlier_env_steps

    def learners(self) -> dict[int, LearnerReport]:
        """Return the last report of each group's learner, by group; groups without a report are missing."""
        found = {}
        for process in self._plan.carrying("learner"):
            report = self.workers[process.rank].report
            for role_report in report.roles if report is not None else ():
                if (
                    isinstance(role_report, LearnerReport)
                    and report is not None
                    and process.group is not None
                ):
                    before = sum(
                        consumed
                        for (rank, incarnation), consumed in self._consumed_before.items()
                        if rank == process.rank and incarnation < report.incarnation
                    )
                    found[process.group] = replace(
                        role_report, session_consumed=role_report.session_consumed + before
                    )
        return found

    def lose_replay(self, rank: int) -> int:
        """Leave the replay of a lost buffer out of its last report; return the env steps that it held."""
        report = self.workers[rank].report
        last = None if report is None else report.roles[0]
        if report is None or not isinstance(last, BufferReport) or last.replay is None:
            return 0
        self.workers[rank].report = report.model_copy(update={"roles": [replace(last, replay=None)]})
        return last.replay.size

    def note_averaging(self, rounds: int, missed: Sequence[int]) -> None:
        """Record the progress of averaging."""
        assert self.averaging is not None
        self.averaging = replace(self.averaging, rounds=rounds, missed=tuple(missed))

    def note_lost(self, groups: Iterable[int]) -> None:
        """Record the lost groups."""
        if self.averaging is not None:
            self.averaging = replace(self.averaging, lost=tuple(sorted(groups)))

    def note_evaluation(self, ended_by: str | None) -> None:
        """Record the result of the greedy evaluation, and the reason if the root has ended it."""
        report = next((report for _, report in self._reports(EvaluatorReport)), EvaluatorReport())
        wanted = report.progress.wanted if report.progress else self._config.experiment.last_episodes
        self.evaluation = Evaluation.of(report, wanted, ended_by)

    def new_evaluations(self, report: Report) -> Iterator[dict[str, Any]]:
        """Yield a row of the metrics for each evaluation of a report that no earlier report had."""
        for role_report in report.roles:
            if isinstance(role_report, ExaminerReport):
                for one in role_report.newest:
                    if (report.incarnation, one.number) > self._examined:
                        self._examined = (report.incarnation, one.number)
                        mean, std = finite(one.evaluation.mean), finite(one.evaluation.std)
                        self._evaluated = Evaluated(self._evaluated.number + 1, one.env_steps, mean, std)
                        yield self._evaluation_row(one)

    def _evaluation_row(self, one: Examined) -> dict[str, Any]:
        of_it = asdict(one.evaluation).items()
        known = {name: value for name, value in of_it if value is not None or name not in OF_SOME}
        times = {"wall_s": self.elapsed_s, "train_s": self._learner().train_s}
        whose = {"env_steps": one.env_steps, "version": one.version, "group": one.group}
        row = {"kind": EVALUATION, **times, **whose, **known, "is_best": one.is_best}
        return {name: finite(value) for name, value in row.items()}

    def _evaluations(self) -> Evaluated | None:
        """Sum up the evaluations so far; None if the config asks for none."""
        if self._config.experiment.evaluation is None:
            return None
        last = next((report for _, report in self._reports(ExaminerReport)), ExaminerReport())
        return replace(self._evaluated, best_mean=last.best_mean, evaluating=last.progress)

    @property
    def evaluating(self) -> Evaluating | None:
        """Progress of the final evaluation; None before the evaluator has reported it."""
        return next((report.progress for _, report in self._reports(EvaluatorReport)), None)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of this session."""
        return time.monotonic() - self._began

    @property
    def session_train_s(self) -> float:
        """Seconds since the first environment step of this session; 0 before it."""
        began = [page.first_step_ns for page in self.ended.values()]
        began = [ns for ns in (*began, self._production.first_step_ns) if ns]
        return (time.monotonic_ns() - min(began)) / 1e9 if began else 0.0

    @property
    def produced(self) -> int:
        """Samples that all actors have made in this session."""
        ended = sum(page.produced for page in self.ended.values())
        return self._production.produced(self._plan.num_actors) + ended

    def rejections(self) -> list[tuple[str, int, str]]:
        """List the roles that have rejected messages, with their number and the reason of the first."""
        found = []
        for process in self._plan.processes:
            report = self.workers[process.rank].report
            by_whom: dict[str, tuple[int, str]] = {}
            for role in report.roles if report is not None else ():
                by_whom |= role.rejected  # Roles of a process share its endpoint, and all report it.
            for name, (count, why) in by_whom.items():
                if count:
                    found.append((f"the {name} of {process.title}", count, why))
        return found

    @property
    def waits_for(self) -> Receiver | None:
        """The user role that held actors back at the last snapshot."""
        return self._work.waits_for

    @property
    def remarks(self) -> Mapping[str, str]:
        """Remarks about the environments that the user should see once, a sentence for each subject."""
        return {
            key: words for _, report in self._reports(ActorReport) for key, words in report.remarks.items()
        }

    def snapshot(self) -> Snapshot:
        """Describe the job now; rates are over the last ``RATES_S``."""
        learner, made = self._learner(), self.produced
        train_s, elapsed_s = self.session_train_s, self.elapsed_s
        state = self._state(
            elapsed_s,
            made,
            self._rates(made, learner.env_steps - self.earlier_env_steps, learner.session_consumed),
            self._work.current(elapsed_s),
        )
        since_s = self._work.window_began(elapsed_s)
        values = {
            "mean_return": self._nearest("mean_100"),
            "win_rate": self._nearest("win_rate"),
            "env_steps": float(learner.env_steps),
            "wall_s": train_s,
            "evaluation": None if state.evaluated is None else state.evaluated.mean,
        }
        return replace(
            state,
            evaluating=self.evaluating,
            roles=role_states(self._plan, self.workers, lambda view: view.busy(elapsed_s, since_s)),
            stop=self._forecast.update(train_s, values),
        )

    def _rates(self, produced: int, received: int, consumed: int) -> list[float]:
        """Compute rates over ``RATES_S``, from no earlier than the last snapshot before the first step."""
        now, counts = time.monotonic(), (produced, received, consumed)
        if not any(counts) or (self._counted and any(map(lt, counts, self._counted[-1][1:]))):
            self._counted.clear()  # A learner that was replaced goes on from its checkpoint.
        self._counted.append((now, *counts))
        while len(self._counted) > 2 and self._counted[1][0] <= now - RATES_S:
            self._counted.popleft()
        then, *before = self._counted[0]
        interval = max(now - then, 1e-9)
        return [(count - earlier) / interval for count, earlier in zip(counts, before, strict=True)]

    def summary(self, status: Status, reason: str, account: Account, rejected_frames: int) -> Summary:
        """Describe the whole session after everything stopped."""
        learner = self._learner()
        train_s, goal = learner.session_train_s, self._config.experiment.stop.env_steps
        rate = 1.0 / train_s if train_s else 0.0
        counts = account.produced, account.received, learner.session_consumed
        state = self._state(
            self.elapsed_s,
            account.produced,
            [count * rate for count in counts],
            None if status == "failed" else self._work.overall(train_s),  # Its failure held it back.
        )
        roles = role_states(self._plan, self.workers, WorkerView.busy_in_session)
        return Summary(
            **(vars(replace(state, roles=roles)) | vars(account)),
            experiment=self._config.experiment.name,
            status=status,
            reason=reason,
            overshoot=None if goal is None else max(0, learner.env_steps - goal),
            transport=self._plan.transport,
            mode=self._config.distribution.mode,
            groups=self._config.distribution.groups,
            evaluation=self.evaluation,
            rejected_frames=rejected_frames,
            last_report_only=tuple(sorted(self.unsure)),
        )

    def _state(
        self, elapsed_s: float, made: int, per_s: Sequence[float], bottleneck: Bottleneck | None
    ) -> Snapshot:
        """Gather the values that snapshots and the summary share; ``per_s`` are the three rates in order."""
        learner = self._learner()
        buffer = of_buffers([report for _, report in self._reports(BufferReport)])
        produced_per_s, received_per_s, consumed_per_s = per_s
        frames = [report.frames_per_step for _, report in self._reports(ActorReport)]
        of_groups = self.learners() if self._config.distribution.groups > 1 else {}
        return Snapshot(
            elapsed_s=elapsed_s,
            learner=learner,
            buffer=buffer,
            produced=made,
            produced_per_s=produced_per_s,
            received_per_s=received_per_s,
            consumed_per_s=consumed_per_s,
            replay_ratio=self._ratio(buffer, learner.session_consumed, made),
            staleness_p=self._staleness_p(buffer),
            bottleneck=bottleneck,
            averaging=self.averaging,
            population=self.population,
            split=self.split,
            by_group=tuple(GroupStanding.of(group, report) for group, report in of_groups.items()),
            extra=extra_reports(self._plan, self.workers),
            frames_per_step=max((known for known in frames if known is not None), default=None),
            evaluated=self._evaluations(),
        )

    def _ratio(self, buffer: BufferReport, consumed: int, produced: int) -> float | None:
        if self._config.learns_from_replay:
            # The buffer leaves out the warm-up steps, which serial training does not use either.
            return buffer.ratio
        return consumed / produced if produced and consumed else None

    def _reports(self, kind: type[R]) -> Iterator[tuple[int | None, R]]:
        """Yield the last reports of all roles of a kind, with the group of each."""
        for process in self._plan.processes:
            report = self.workers[process.rank].report
            for role_report in report.roles if report is not None else ():
                if isinstance(role_report, kind):
                    yield process.group, role_report

    def _learner(self) -> LearnerReport:
        """Merge the learners' reports; a learner without a report counts with its saved progress."""
        report = of_learners(list((self._earlier | self.learners()).values()))
        thresholds = dict.fromkeys(self._config.experiment.thresholds)
        return replace(report, time_to=report.time_to or thresholds)

    def _nearest(self, name: str) -> float | None:
        """Return the largest value over groups, the nearest to a goal: the first group there ends the job."""
        values = [getattr(learner, name) for learner in self.learners().values()]
        return max((value for value in values if value is not None), default=None)

    def _staleness_p(self, buffer: BufferReport) -> float | None:
        """Return P of Equation 2 for one group: a group draws batches from its own replay."""
        if buffer.replay is None:
            return None
        groups = len({group for group, _ in self._reports(BufferReport)})
        return self._config.batch_steps * groups / buffer.replay.capacity


def _first_report(progress: Progress) -> LearnerReport:
    """Build the report of a learner that goes on from saved progress and has not reported yet."""
    return LearnerReport(**{name: value for name, value in vars(progress).items() if name != "sessions"})


WINDOW_S: Final = 30.0
"""Seconds of history behind the pace: longer than the noise of single seconds, shorter than the whole run."""


class StopForecast:
    """Owns the recent values of the stop rules; extrapolates them linearly to the targets."""

    def __init__(self, targets: Mapping[str, float]) -> None:
        self._targets = dict(targets)
        self._history: deque[tuple[float, dict[str, float | None]]] = deque()

    def update(self, train_s: float, values: Mapping[str, float | None]) -> tuple[StopProgress, ...]:
        """Record the present values and forecast each stop rule.

        Args:
            train_s: seconds since the first environment step of this session, 0 before it; earlier values are
                forgotten, because they say nothing about the pace.
            values: stop rule -> its present value, None while there is none.

        Returns:
            The progress towards each rule, in the order of the targets.
        """
        if not train_s:
            self._history.clear()
        self._history.append((train_s, dict(values)))
        while len(self._history) > 2 and self._history[1][0] <= train_s - WINDOW_S:
            self._history.popleft()
        return tuple(
            StopProgress(rule, values[rule], target, self._eta_s(rule, target))
            for rule, target in self._targets.items()
        )

    def _eta_s(self, rule: str, target: float) -> float | None:
        known = [(at_s, past[rule]) for at_s, past in self._history]
        points = [(at_s, value) for at_s, value in known if value is not None]
        if not points:
            return None
        (first_s, first), (last_s, last) = points[0], points[-1]
        if last >= target:
            return 0.0
        if last <= first or last_s <= first_s:
            return None
        return (target - last) * (last_s - first_s) / (last - first)


class WorkerView:
    """The root's knowledge of one rank."""

    def __init__(self) -> None:
        self.report: Report | None = None
        self.pid: int | None = None
        self.restarts = 0
        self.state = "planned"
        self._marks: deque[tuple[float, float, Sequence[float]]] = deque(maxlen=MOST_MARKS)

    def update(self, report: Report) -> None:
        """Take a newer report."""
        last, self.report = self.report, report
        if last is None or last.incarnation != report.incarnation:
            self._marks.clear()
            self._marks.append((-math.inf, 0.0, [0.0] * len(report.busy_s)))

    @property
    def memory(self) -> int | None:
        """Bytes of the process's own memory; None if unknown, or if the process has ended."""
        return None if self.report is None or self.pid is None else self.report.memory

    def busy(self, now_s: float, since_s: float) -> list[float] | None:
        """Return each role's share of time at work; None if unknown, or if the process has ended.

        Args:
            now_s: seconds on any clock, later with each call.
            since_s: start of the interval, on the same clock; later with each call, too.
        """
        if self.report is None or self.pid is None:
            return None
        self._marks.append((now_s, self.report.running_s, self.report.busy_s))
        while len(self._marks) > 2 and self._marks[1][0] <= since_s:
            self._marks.popleft()
        (_, running_then_s, then), (_, running_s, now) = self._marks[0], self._marks[-1]
        interval_s = running_s - running_then_s
        if interval_s <= 0:
            return None
        return [min(1.0, (after - before) / interval_s) for after, before in zip(now, then, strict=True)]

    def busy_in_session(self) -> list[float] | None:
        """Return each role's share of its last incarnation's time at work; None if unknown."""
        if self.report is None or not self.report.running_s:
            return None
        return [seconds / self.report.running_s for seconds in self.report.busy_s]


def role_states(
    plan: Plan, views: Mapping[int, WorkerView], busy_in: Callable[[WorkerView], Sequence[float] | None]
) -> tuple[RoleStatus, ...]:
    """Describe every role of a job.

    Args:
        busy_in: returns the busy shares of a process's roles: in the interval of the bottleneck, or the two
            contradict, or in the session.
    """
    states = []
    for process in plan.processes:
        view = views[process.rank]
        busy: Sequence[float | None] = busy_in(view) or [None] * len(process.roles)
        for role, share in zip(process.roles, busy, strict=True):
            place = process.rank, role, process.group, process.host
            memory = own_memory() if role == "root" else view.memory
            states.append(
                RoleStatus(*place, view.pid, share, view.restarts, view.state, memory, process.cores)
            )
    return tuple(states)


def extra_reports(plan: Plan, views: Mapping[int, WorkerView]) -> dict[str, Mapping[str, Any]]:
    """Return the last reports of user roles, by name and rank."""
    return {
        f"{name}-{process.rank}": role_report.values
        for process in plan.trainers
        if (report := views[process.rank].report) is not None
        for name, role_report in zip(process.roles, report.roles, strict=True)
        if isinstance(role_report, UserReport)
    }


def choose_best(
    checkpoints: Path,
    learners: Mapping[int, LearnerReport],
    lost: Container[int],
    event: Callable[[str], None],
) -> int:
    """Link ``best`` to the best policy that any group has saved, and return that group."""
    means = {
        group: report.best_mean_100
        for group, report in sorted(learners.items())
        if report.best_mean_100 is not None and group not in lost
    }
    best = max(means, key=lambda group: means[group], default=0)
    try:
        point_best_at(checkpoints, best)
    except OSError as error:
        event(f"the best policy is group {best}'s, and the link to it cannot be written: {error}")
    return best

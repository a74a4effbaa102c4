"""The root's view of a job: what roles report and what the pages say, as snapshots and a summary."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tianji_cli.config.schema import JobConfig
from tianji_cli.files.counters import Production, ProductionFile
from tianji_cli.files.saved import point_best_at
from tianji_cli.plan.plan import ROOT_RANK, Plan
from tianji_cli.root.accounting import Account, Said, of_buffers, of_learners
from tianji_cli.root.bottleneck import MOST_MARKS, Receiver, WorkLog
from tianji_cli.telemetry.evaluation import Evaluating, Evaluation
from tianji_cli.telemetry.snapshot import (
    Averaging,
    GroupStanding,
    ReplayFill,
    ReplayRatio,
    Returns,
    RoleStatus,
    RoleSummary,
    Snapshot,
    Status,
    StopForecast,
    Summary,
)
from tianji_cli.wire.messages import PageReport, Report, read_report
from tianji_cli.wire.reports import Reception, Source, Spread


class Overview:
    """Everything the root knows, as snapshots while a run goes and as a summary when it is over.

    Attributes:
        workers: what is known of each rank.
        ended: pages of earlier incarnations on this host, and of all actors elsewhere, as last reported.
        unsure: ranks on hosts that were lost: of what they did only the last report is known.
        evaluation: how the greedy evaluation went.
        averaging: how the groups' parameters were averaged so far; None with one group.

    Args:
        config: the job.
        plan: its processes.
        production: the actors' pages.
        earlier_env_steps: samples that all groups received in earlier sessions of a resumed run.
    """

    def __init__(
        self, config: JobConfig, plan: Plan, production: ProductionFile, earlier_env_steps: int
    ) -> None:
        self._config = config
        self._plan = plan
        self._production = production
        self.earlier_env_steps = earlier_env_steps
        self._began = time.monotonic()
        self._last: tuple[float, int, int, int] = (self._began, 0, 0, 0)
        self._local_actors = [
            actor for process in plan.processes if plan.is_local(process.rank) for actor in process.actors
        ]
        self.workers = {process.rank: WorkerView() for process in plan.processes}
        self.workers[ROOT_RANK].state = "running"
        self.ended: dict[Source, Production] = {}
        self.unsure: set[int] = set()
        self.evaluation: Evaluation | None = None
        groups = config.distribution.groups
        self.averaging = Averaging(0, (0,) * groups) if groups > 1 else None
        self._work = WorkLog(config, plan)
        stop = config.experiment.stop.model_dump(exclude_none=True)
        self._forecast = StopForecast({rule: float(target) for rule, target in stop.items()})

    def productions(self) -> dict[Source, Production]:
        """Pages of all incarnations there ever were."""
        current = [self._production.read(actor) for actor in self._local_actors]
        return {**self.ended, **{(page.actor, page.incarnation): page for page in current}}

    def note(self, report: Report) -> None:
        """Take in what a worker reports of its roles."""
        process = self._plan.processes[report.rank]
        self.workers[report.rank].update(report)
        self.note_pages(report.pages)
        if process.group is None:
            return
        if self._plan.is_local(report.rank):
            produced = {actor: self._production.read(actor).produced for actor in process.actors}
        else:
            produced = {page.actor: page.produced for page in report.pages}
        self._work.note(process, report, produced)

    def note_pages(self, reports: Iterable[PageReport]) -> None:
        """Take in what was said of pages on other hosts."""
        for page in map(read_report, reports):
            known = self.ended.get((page.actor, page.incarnation))
            began_ns = known.first_step_ns if known is not None else 0
            # Of the beginning the first report is the most exact one.
            self.ended[page.actor, page.incarnation] = replace(
                page, first_step_ns=began_ns or page.first_step_ns
            )

    def settle_unsure(self) -> None:
        """Believe the buffers where they received more than the last report of a lost host says was made."""
        actors = {actor for rank in self.unsure for actor in self._plan.processes[rank].actors}
        for source, reception in self.receptions().items():
            page = self.ended.get(source)
            if source[0] in actors and page is not None and page.finished < reception.position:
                made = max(page.produced, reception.position)
                self.ended[source] = replace(
                    page, produced=made, unfinished=made - reception.position, pushed=reception.next_sequence
                )

    def receptions(self) -> dict[Source, Reception]:
        """What the buffers received, as of their last reports."""
        return {
            (actor, incarnation): Reception(*counts)
            for report in self._role_reports("buffer")
            for actor, incarnation, *counts in report["receptions"]
        }

    @property
    def received(self) -> int:
        """Samples that all groups received in this session, as of their learners' last reports."""
        return max(0, self._env_steps(self._learner()) - self.earlier_env_steps)

    def learners(self) -> dict[int, Said]:
        """What the learner of each group said last, by group; those are missing that have said nothing."""
        return self._by_group("learner")

    def note_averaging(self, rounds: int, missed: Sequence[int], lost: Sequence[int]) -> None:
        """Take in how far averaging is.

        Args:
            rounds: averages published in this session.
            missed: of each group: rounds that it was too late for.
            lost: groups that were given up.
        """
        self.averaging = Averaging(rounds, tuple(missed), tuple(lost))

    def note_evaluation(self, ended_by: str | None) -> None:
        """Take in how the greedy evaluation went.

        Args:
            ended_by: why the root has ended it; None if it has ended by itself.
        """
        said = next(iter(self._role_reports("evaluator")), {})
        self.evaluation = Evaluation.of(
            said.get("returns", ()),
            self._config.experiment.eval_episodes,
            said.get("cut_off", ended_by),
            said.get("win_rate"),
            said.get("agents"),
        )

    @property
    def evaluating(self) -> Evaluating | None:
        """How far the evaluation is; None before the evaluator has said so."""
        said = next(iter(self._role_reports("evaluator")), None)
        return None if said is None else Evaluating(**said["progress"])

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
        return self._production.produced + sum(page.produced for page in self.ended.values())

    def rejections(self) -> list[tuple[str, int, str]]:
        """What was rejected, by roles that rejected something: how many, and why the first of them."""
        found = []
        for process in self._plan.processes:
            report = self.workers[process.rank].report
            by_whom: dict[str, tuple[int, str]] = {}
            for role in report.roles if report is not None else ():
                # Roles of a process share its endpoint, and each reports it.
                by_whom |= {name: (count, why) for name, (count, why) in role.get("rejected", {}).items()}
            for name, (count, why) in by_whom.items():
                if count:
                    found.append((f"the {name} of {process.title}", count, why))
        return found

    @property
    def _frames_per_step(self) -> int | None:
        """Frames of the game that a step takes; None before any actor has said it."""
        said = (report.get("frames_per_step") for report in self._role_reports("actor"))
        return max((int(frames) for frames in said if frames is not None), default=None)

    @property
    def waits_for(self) -> Receiver | None:
        """The user role that held actors back at the last snapshot."""
        return self._work.waits_for

    def snapshot(self) -> Snapshot:
        """Describe the present moment; rates are over the time since the last snapshot."""
        learner, buffer = self._learner(), self._buffer()
        produced = self.produced
        received = self.received
        consumed = int(learner.get("session_consumed", 0))
        now = time.monotonic()
        then, produced_then, received_then, consumed_then = self._last
        interval = max(now - then, 1e-9)
        self._last = (now, produced, received, consumed)
        train_s, elapsed_s = self.session_train_s, self.elapsed_s
        env_steps = self.earlier_env_steps + received
        values = {
            "mean_return": self._nearest("mean_100"),
            "win_rate": self._nearest("win_rate"),
            "env_steps": float(env_steps),
            "wall_s": train_s,
        }
        bottleneck = self._work.current(elapsed_s)
        return Snapshot(
            elapsed_s=elapsed_s,
            train_s=float(learner.get("train_s", 0.0)),
            env_steps=env_steps,
            produced=self.earlier_env_steps + produced,
            consumed=int(learner.get("consumed", 0)),
            updates=int(learner.get("updates", 0)),
            version=int(learner.get("version", 0)),
            produced_per_s=(produced - produced_then) / interval,
            received_per_s=(received - received_then) / interval,
            consumed_per_s=(consumed - consumed_then) / interval,
            replay_ratio_target=float(learner.get("rho", 0.0)),
            replay_ratio_actual=self._ratio(buffer, consumed, produced),
            lag=_spread(learner, "lag"),
            episodes=int(learner.get("episodes", 0)),
            episodes_in_mean=int(learner.get("episodes_in_mean", 0)),
            mean_100=learner.get("mean_100"),
            best_mean_100=learner.get("best_mean_100"),
            losses=learner.get("losses", {}),
            roles=role_states(self._plan, self.workers, elapsed_s, self._work.window_began(elapsed_s)),
            stop=self._forecast.update(train_s, values),
            age=_spread(learner, "age"),
            uses=_spread(buffer, "uses"),
            replay=_replay(buffer),
            staleness_p=self._staleness_p(buffer),
            stale_priorities=int(buffer.get("stale_priorities", 0)),
            bottleneck=bottleneck,
            averaging=self.averaging,
            by_group=self._standings(),
            extra=extra_reports(self._plan, self.workers, self._config.roles),
            frames_per_step=self._frames_per_step,
            win_rate=learner.get("win_rate"),
            steps_given_up=buffer.get("steps_given_up"),
            evaluating=self.evaluating,
        )

    def summary(self, status: Status, reason: str, account: Account, rejected_frames: int) -> Summary:
        """Describe the whole session after everything stopped."""
        learner, buffer = self._learner(), self._buffer()
        experiment, distribution = self._config.experiment, self._config.distribution
        consumed = int(learner.get("session_consumed", 0))
        train_s = float(learner.get("session_train_s", 0.0))
        rate = 1.0 / train_s if train_s else 0.0
        env_steps, per_step = self._env_steps(learner), self._frames_per_step
        goal = experiment.stop.env_steps
        return Summary(
            experiment=experiment.name,
            status=status,
            reason=reason,
            wall_s=self.elapsed_s,
            train_s=float(learner.get("train_s", 0.0)),
            env_steps=env_steps,
            overshoot=None if goal is None else max(0, env_steps - goal),
            updates=int(learner.get("updates", 0)),
            transport=self._plan.transport,
            mode=distribution.mode,
            groups=distribution.groups,
            produced=account.produced,
            received=account.received,
            consumed=consumed,
            in_flight=account.in_flight,
            lost=account.lost,
            dropped=account.dropped,
            produced_per_s=account.produced * rate,
            frames=None if per_step is None else env_steps * per_step,
            frames_per_s=None if per_step is None else account.produced * rate * per_step,
            received_per_s=account.received * rate,
            consumed_per_s=consumed * rate,
            replay_ratio=ReplayRatio(
                float(learner.get("rho", 0.0)), self._ratio(buffer, consumed, account.produced)
            ),
            staleness=_spread(learner, "lag"),
            returns=Returns(
                int(learner.get("episodes", 0)),
                learner.get("mean_100"),
                learner.get("best_mean_100"),
                learner.get("win_rate"),
                int(learner.get("episodes_in_mean", 0)),
            ),
            time_to=dict(learner["time_to"]) if learner else dict.fromkeys(experiment.thresholds),
            evaluation=self.evaluation,
            rejected_frames=rejected_frames,
            last_report_only=tuple(sorted(self.unsure)),
            roles=role_summaries(self._plan, self.workers),
            sample_age=_spread(learner, "age"),
            uses=_spread(buffer, "uses"),
            replay=_replay(buffer),
            staleness_p=self._staleness_p(buffer),
            stale_priorities=int(buffer.get("stale_priorities", 0)),
            bottleneck=self._work.overall(train_s),
            averaging=self.averaging,
            by_group=self._standings(),
            extra=extra_reports(self._plan, self.workers, self._config.roles),
            steps_given_up=buffer.get("steps_given_up"),
        )

    def _ratio(self, buffer: Said, consumed: int, produced: int) -> float | None:
        if self._config.learns_from_replay:
            # It knows which steps were the warm-up, of which serial training makes no use either.
            ratio: float | None = buffer.get("ratio")
            return ratio
        return consumed / produced if produced and consumed else None

    def _role_reports(self, role: str) -> list[dict[str, Any]]:
        found = []
        for process in self._plan.carrying(role):
            report = self.workers[process.rank].report
            if report is not None:
                found.append(report.roles[process.roles.index(role)])
        return found

    def _by_group(self, role: str) -> dict[int, Said]:
        found: dict[int, Said] = {}
        for process in self._plan.carrying(role):
            report = self.workers[process.rank].report
            if report is not None and process.group is not None:
                found[process.group] = report.roles[process.roles.index(role)]
        return found

    def _learner(self) -> Said:
        return of_learners(list(self.learners().values()))

    def _buffer(self) -> Said:
        buffers, learners = self._by_group("buffer"), self.learners()
        uses = [float(learners.get(group, {}).get("session_consumed", 0)) for group in buffers]
        return of_buffers(list(buffers.values()), uses)

    def _env_steps(self, learner: Said) -> int:
        """Count what was received in all sessions; no less than in the earlier ones."""
        return max(self.earlier_env_steps, int(learner.get("env_steps", 0)))

    def _nearest(self, name: str) -> float | None:
        """What of all groups is nearest to a goal: the first of them there ends the job."""
        said = [learner.get(name) for learner in self.learners().values()]
        return max((value for value in said if value is not None), default=None)

    def _standings(self) -> tuple[GroupStanding, ...]:
        if self._config.distribution.groups == 1:
            return ()
        return tuple(
            GroupStanding(
                group,
                env_steps=int(learner["env_steps"]),
                updates=int(learner["updates"]),
                version=int(learner["version"]),
                mean_100=learner["mean_100"],
                best_mean_100=learner["best_mean_100"],
                consumed=int(learner["consumed"]),
            )
            for group, learner in self.learners().items()
        )

    def _staleness_p(self, buffer: Said) -> float | None:
        """P of Equation 2, of a group: batches are drawn from its own replay."""
        replay = _replay(buffer)
        if replay is None:
            return None
        return self._config.batch_steps * len(self._by_group("buffer")) / replay.capacity


def _spread(said: Said, name: str) -> Spread | None:
    spread = said.get(name)
    return None if spread is None else Spread(**spread)


def _replay(buffer: Said) -> ReplayFill | None:
    replay = buffer.get("replay")
    return None if replay is None else ReplayFill(**replay)


class WorkerView:
    """What the root knows of one rank.

    Attributes:
        report: its last one.
        pid: of its process; None while it has none.
        restarts: so far.
        state: one or two words.
    """

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

    def busy(self, now_s: float, since_s: float) -> list[float] | None:
        """Say which share of the time each of its roles has worked; None if that is unknown, or it has ended.

        Args:
            now_s: seconds on any clock, later with each call.
            since_s: from when on, on the same clock; later with each call, too.
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


def role_states(
    plan: Plan, views: Mapping[int, WorkerView], now_s: float, since_s: float
) -> tuple[RoleStatus, ...]:
    """Describe how every role of a job is doing.

    Args:
        plan: the processes of the job.
        views: what is known of each.
        now_s: seconds on any clock, later with each call.
        since_s: from when on it counts how busy they were: as for the bottleneck, or the two contradict.
    """
    return tuple(_states(plan, views, now_s, since_s))


def _states(
    plan: Plan, views: Mapping[int, WorkerView], now_s: float, since_s: float
) -> Iterator[RoleStatus]:
    for process in plan.processes:
        view = views[process.rank]
        busy = view.busy(now_s, since_s)
        for i, role in enumerate(process.roles):
            yield RoleStatus(
                process.rank,
                role,
                process.group,
                process.host,
                view.pid,
                busy[i] if busy else None,
                view.restarts,
                view.state,
            )


def role_summaries(plan: Plan, views: Mapping[int, WorkerView]) -> tuple[RoleSummary, ...]:
    """Describe how every role of a job did over the whole session."""
    return tuple(_summaries(plan, views))


def _summaries(plan: Plan, views: Mapping[int, WorkerView]) -> Iterator[RoleSummary]:
    for process in plan.processes:
        view = views[process.rank]
        for i, role in enumerate(process.roles):
            report = view.report
            busy = report.busy_s[i] / report.running_s if report and report.running_s else None
            yield RoleSummary(
                process.rank, role, process.group, process.host, process.cores, view.restarts, busy
            )


def extra_reports(
    plan: Plan, views: Mapping[int, WorkerView], names: Collection[str]
) -> dict[str, dict[str, Any]]:
    """Describe what user roles reported last, by name and rank.

    Messages that they refused are left out: those are counted with all others.

    Args:
        plan: the processes of the job.
        views: what is known of each.
        names: of the user's roles.
    """
    found = {}
    for process in plan.trainers:
        report = views[process.rank].report
        for name, said in zip(process.roles, report.roles if report else (), strict=False):
            if name in names:
                found[f"{name}-{process.rank}"] = {
                    key: value for key, value in said.items() if key != "rejected"
                }
    return found


def choose_best(
    checkpoints: Path,
    learners: Mapping[int, Mapping[str, Any]],
    lost: Container[int],
    event: Callable[[str], None],
) -> int:
    """Let ``best`` lead to the best policy that any group has saved, and say whose it is.

    Args:
        checkpoints: ``checkpoints/`` of the run.
        learners: what the learner of each group said last.
        lost: groups whose learners did not live to save what they said.
        event: tells the user something.
    """
    means = {
        group: said["best_mean_100"]
        for group, said in sorted(learners.items())
        if said.get("best_mean_100") is not None and group not in lost
    }
    best = max(means, key=lambda group: means[group], default=0)
    try:
        point_best_at(checkpoints, best)
    except OSError as error:
        event(f"the best policy is group {best}'s, and the link to it cannot be written: {error}")
    return best

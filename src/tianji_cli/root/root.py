"""The root: starts processes, receives their reports, ends the job, and is never busy for long.

A job goes through phases: *starting* until every worker but the examiner has registered, *training*, *winding
down* while the actors stop and the buffers receive their last fragments, *stopping* while the buffers in
processes of their own report what they received and the learners save, *evaluating*, *over*. Winding down and
stopping have time limits, so that nothing hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ProcessExit
from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.regular import open_to_append
from tianji_cli.launch.node import refuse_late
from tianji_cli.launch.pool import WorkerPool, WorkerProcess
from tianji_cli.plan.graph import RoleGraph, graph_of
from tianji_cli.plan.plan import EXAMINER, Plan
from tianji_cli.plan.spec import JobSpec, ProcessSpec
from tianji_cli.root.accounting import Account, reconcile
from tianji_cli.root.announcements import HANGS_S, Announcements, Rejections
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.goals import ProductionGoal, StopRules
from tianji_cli.root.job_view import Overview, choose_best
from tianji_cli.root.population import Standings
from tianji_cli.root.shutdown import EvaluationWatch, Outcome, Phase, Shutdown
from tianji_cli.root.tracing import Tracing
from tianji_cli.signals import StopSignals
from tianji_cli.telemetry.snapshot import Snapshot, Status, Summary
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import (
    Addresses,
    Arrive,
    AskClock,
    Began,
    Exited,
    Failed,
    Finished,
    PeerLost,
    Present,
    Register,
    Report,
    SpansOf,
    Stop,
    Stopped,
    Terminate,
    ToRoot,
    Traced,
    Wrote,
)
from tianji_cli.wire.reports import ExaminerReport, Source

TICK_S: Final = 1.0
FIRST_TICKS_S: Final = 0.2
FIRST_S: Final = 10.0
"""During the first ``FIRST_S``, ticks come every ``FIRST_TICKS_S``, for the learning curves of short runs."""
RUNNING: Final = frozenset({Phase.STARTING, Phase.TRAINING})
SHUTDOWN: Final = frozenset({Phase.WINDING_DOWN, Phase.STOPPING})
SLOW_UPDATES: Final = 10
"""Factor on the silence limit of an actor in a learner's process, since updates may be long."""
FINAL_MESSAGE_LIMIT_S: Final = 1.0
"""Seconds that the root waits for a message that a worker sent before it ended."""


class Root:
    """Runs a job from start to end.

    Args:
        begins: called once all processes that training needs have registered, before any of them learns it.
        enough: called at every tick; a reason ends training as a stop rule does.
    """

    def __init__(  # noqa: PLR0913 - the root is where everything meets
        self,
        config: JobConfig,
        job: JobSpec,
        *,
        control: ControlServer,
        pool: WorkerPool,
        production: ProductionFile,
        overview: Overview,
        signals: StopSignals,
        telemetry: Telemetry,
        endpoint: RootEndpoint,
        standings: Standings | None,
        losses: GroupLosses,
        tracing: Tracing,
        checkpoints: Path,
        begins: Callable[[], None],
        enough: Callable[[Snapshot], str | None],
    ) -> None:
        self._config = config
        self._job = job
        self._plan = plan = job.plan
        self._control = control
        self._pool = pool
        self._production = production
        self._overview = overview
        self._signals = signals
        self._telemetry = telemetry
        self._rejections = Rejections(overview, control, endpoint, telemetry.event)
        self._endpoint = endpoint
        self._standings = standings
        self._losses = losses
        self._tracing = tracing
        self._checkpoints = checkpoints
        self._begins = begins
        self._enough = enough
        self._phase = Phase.STARTING
        self._outcome: Outcome | None = None
        self._members = Membership(plan, graph_of(config), control)
        self._announcements = Announcements(plan, telemetry.event)
        self._rules = StopRules(config, overview)
        self._goal = ProductionGoal(config, plan, overview, control)
        self._evaluation: EvaluationWatch | None = None
        self._sent_last: set[int] = set()
        self._began = time.monotonic()
        self._next_tick = self._began
        saves_replay = config.distribution.buffer.save_with_checkpoint
        self._shutdown = Shutdown(
            plan, control, pool, saves_replay=saves_replay, give_up=self._give_up, event=telemetry.event
        )
        self._interruptions = 0
        self._stop_requested = False
        self._learner_ranks = {process.rank for process in plan.carrying("learner")}
        self._examiners = {process.rank for process in plan.carrying(EXAMINER)}
        self._limits_s = _silence_limits(config, plan, self._examiners, bound=losses.bound)
        self._raised: dict[int, str] = {}
        """Errors of actors that the root will start again, by rank."""
        self._replacing: set[int] = set()
        """Groups whose processes are ending before the root starts them anew."""
        self._replaced: set[int] = set()
        """Groups whose processes the root has started anew, and which have not registered yet."""

    def run(self) -> Summary:
        """Run the job; returns when every worker has ended."""
        for process in self._plan.trainers:
            self._start(process.rank)
        while self._phase is not Phase.OVER:
            self._sleep()
            self._check_signals()
            for message in self._control.receive():
                self._handle(message)
            self._endpoint.turn()
            if self._endpoint.failure:
                self._end("failed", self._endpoint.failure)
            self._check_workers()
            self._tick()
            if self._phase is Phase.TRAINING:
                self._goal.check(self._losses.killed)
            self._advance()
        self._tracing.close()
        self._telemetry.update(self._overview.snapshot())
        return self._summary()

    def _sleep(self) -> None:
        goal_at = self._goal.look_at if self._phase is Phase.TRAINING else float("inf")
        until = min(self._next_tick, self._shutdown.deadline, goal_at)
        self._endpoint.sleep(until, self._control, (self._signals.descriptor, *self._pool.descriptors))
        self._signals.clear()

    def _check_signals(self) -> None:
        if self._signals.count == self._interruptions:
            return
        self._interruptions = self._signals.count
        if self._interruptions == 1:
            self._request_stop(self._signals.last)
        else:
            self._telemetry.event(f"{self._signals.last} again: ending at once, without a last checkpoint")
            self._pool.kill_all()

    def _request_stop(self, what: str) -> None:
        """End the run in order; if training is over, end the evaluation."""
        if self._stop_requested:
            return
        self._stop_requested = True
        if self._outcome is None:
            self._end("stopped", what)
        elif self._outcome.status == "finished" and self._plan.carrying("evaluator"):
            self._outcome = Outcome("stopped", f"{self._outcome.reason}; no evaluation because of {what}")
            if self._phase is Phase.EVALUATING:
                self._pool.kill_all()

    def _handle(self, message: ToRoot) -> None:
        match message:
            case Arrive():
                self._telemetry.event(refuse_late(self._control, message))
            case Exited():
                self._overview.note_pages(message.pages)
                self._pool.handle(message)
            case Wrote():
                self._keep_output(message)
            case Began() | Present():
                self._pool.handle(message)
            case Register():
                self._welcome(message)
            case Report():
                self._note(message)
            case Stopped():
                self._sent_last.add(message.report.rank)
                self._shutdown.stopped.add(message.report.rank)
                self._note(message.report)
            case Finished():
                self._handle_finished(message)
            case Failed():
                self._handle_failure(message)
            case AskClock() | SpansOf() | Traced():
                self._tracing.handle(message)
            case Terminate():
                self._request_stop(f"SIGTERM to {self._title(message.rank)}")

    def _welcome(self, message: Register) -> None:
        if not self._members.is_current(message.rank, message.incarnation):
            return  # The process has died since, and its successor is on its way.
        view = self._overview.workers[message.rank]
        view.state, view.pid = "running", message.pid
        self._announcements.is_built(message.rank)
        self._members.register(message)
        if message.wiring is not None:
            self._endpoint.open(message.wiring)
        if self._standings is not None:
            self._standings.welcome(message.rank)
        self._introduce()
        self._goal.register(message.rank)
        if self._phase not in RUNNING:
            self._control.send(message.rank, Stop())

    def _introduce(self) -> None:
        # Training needs no examiner: it joins when it has built its environments.
        needed = self._losses.living - self._examiners
        if self._phase is Phase.STARTING and needed <= self._members.registered:
            self._begins()
        addresses = self._members.introduce(self._losses.living, needed, self._endpoint.address)
        if addresses is None:
            return
        self._endpoint.connect(addresses)
        if self._standings is not None:
            self._standings.returned |= self._replaced
            self._replaced.clear()
        if self._phase is Phase.STARTING:
            self._phase = Phase.TRAINING

    def _note(self, report: Report) -> None:
        names = self._plan.processes[report.rank].roles
        kinds = ["user" if name in self._config.roles else name for name in names]
        if not self._members.is_current(report.rank, report.incarnation):
            return
        if [role_report.role for role_report in report.roles] != kinds or len(report.busy_s) != len(kinds):
            self._control.reject(f"a report of {self._title(report.rank)} is not of its roles")
            return
        view = self._overview.workers[report.rank]
        last = view.report or report
        may_be_slow = last.incarnation == report.incarnation and report.rank not in self._examiners
        self._announcements.note_alive(report.rank, may_be_slow * (report.running_s - last.running_s))
        if view.state == "starting":
            view.state = "running"  # An evaluator registers nowhere: nothing is sent to it.
        self._overview.note(report)
        for row in self._overview.new_evaluations(report):
            self._telemetry.evaluation(row)
            if self._standings is not None:
                self._standings.note_evaluation(row["group"], row["version"], row["mean"])
            self._announcements.check_evaluation(row["cut_off"])
        for role_report in report.roles:
            if isinstance(role_report, ExaminerReport):
                self._announcements.check_film(role_report.film_failure)
        if report.rank in self._learner_ranks:
            self._finish_if(self._rules.steps_reached())

    def _keep_output(self, message: Wrote) -> None:
        """Append the output of a worker on another host to its log; that host keeps no copy."""
        if (worker := self._pool.handle(message)) is None:
            return
        try:
            with open(open_to_append(worker.spec.log), "ab") as log:
                log.write(message.output)
        except OSError as cause:
            self._announcements.lose_output(worker.spec.rank, cause)

    def _handle_finished(self, message: Finished) -> None:
        group = self._plan.processes[message.rank].group
        if message.rank in self._examiners:
            self._end("finished", message.reason)
        elif group is not None and group not in self._losses.causes:
            self._end("finished", self._rules.attributed(message.reason, group))

    def _handle_failure(self, message: Failed) -> None:
        self._sent_last.add(message.rank)
        self._overview.workers[message.rank].state = "failed"
        if self._is_given_up(message.rank):
            return
        if self._outlives_errors(message.rank):
            self._raised[message.rank] = f": {message.cause}"
        else:
            self._end("failed", _cause(self._job.process(message.rank), f": {message.cause}"))

    def _outlives_errors(self, rank: int) -> bool:
        """Whether the job survives an error, or an exit, of a rank's environment: actors restart."""
        restarts = self._config.environment.on_error == "restart" and not self._losses.bound
        return restarts and rank in self._shutdown.actors

    def _start(self, rank: int, incarnation: int = 0, env_steps: int = 0) -> None:
        if self._plan.is_local(rank):
            for actor in self._plan.processes[rank].actors:
                self._production.begin(actor, incarnation)
        self._members.begin(rank, incarnation)
        self._sent_last.discard(rank)
        self._shutdown.stopped.discard(rank)
        self._pool.start(self._job.process(rank, incarnation, env_steps))
        self._overview.workers[rank].state = "starting"
        self._announcements.begin(rank)

    def _check_workers(self) -> None:
        exited = self._pool.take_exited()
        if self._pool.fork_server_lost is not None:
            self._end("failed", self._pool.fork_server_lost)
        elif self._phase in SHUTDOWN or (
            self._phase is Phase.EVALUATING and self._pool.ranks <= self._shutdown.stopped
        ):
            self._pool.end_suspended_servers()
        deadline = time.monotonic() + FINAL_MESSAGE_LIMIT_S
        for worker in exited:
            assert worker.exit is not None
            self._handle_exit(worker, worker.exit, deadline)
            self._tracing.lose(worker.spec.rank, worker.exit.error or str(worker.exit))

    def _handle_exit(self, worker: WorkerProcess, exit_: ProcessExit, deadline: float) -> None:
        """Restart an actor or examiner that a signal killed, go on without a lost group, or end the run."""
        rank = worker.spec.rank
        if self._pool.is_lost(rank):
            self._overview.unsure.add(rank)
        elif worker.pid is not None and not worker.killed and not exit_.by_signal:
            self._await_final_messages(rank, deadline)
        # A process has done all its work by its last report, however it ends afterwards.
        has_stopped = rank in self._shutdown.stopped
        in_order = has_stopped and (exit_.status is None or exit_.status <= 0)
        view = self._overview.workers[rank]
        view.pid, view.state = None, "done" if in_order else str(exit_)
        if in_order and self._phase not in RUNNING:
            return
        self._losses.note(worker.spec, in_order=has_stopped)
        is_announced = worker.killed or (worker.hung and self._phase is Phase.EVALUATING)
        if is_announced or self._is_given_up(rank):
            self._start_replaced()
            return  # The root told the user why when it decided that.
        raised = self._raised.pop(rank, "")
        cause = _cause(worker.spec, raised or f" {exit_.error or exit_}")
        comes_again = rank in self._shutdown.actors | self._examiners
        left = exit_.status is not None and self._outlives_errors(rank)
        gone = self._pool.is_lost(rank) or (exit_.by_signal and not comes_again)
        if gone and self._may_replace(rank):
            self._replace_group(rank, cause)
        elif gone and self._can_continue_without(rank) and self._losses.lose({rank}, cause):
            self._drop_group(self._plan.processes[rank].group)
        elif not comes_again or not (exit_.by_signal or raised or left):
            self._end("failed", cause)
        elif self._phase in RUNNING:
            self._restart(worker.spec, cause)
        elif not worker.hung:
            self._telemetry.event(f"{cause} while it was stopping")

    def _drop_group(self, group: int | None) -> None:
        """Go on without a group that is lost."""
        ranks = self._losses.ranks_of(group)
        self._pool.kill(ranks)
        self._endpoint.lose(ranks & self._learner_ranks)
        self._members.leave(ranks)
        if self._phase is Phase.TRAINING:
            self._introduce()  # A role that waits for all of them must not wait for the lost ones.

    def _is_given_up(self, rank: int) -> bool:
        """Whether a rank belongs to a group that is lost, or that is ending to be started anew."""
        group = self._plan.processes[rank].group
        return self._losses.includes(rank) or (group in self._replacing and rank not in self._examiners)

    def _may_replace(self, rank: int) -> bool:
        """Whether the root can start the population member of a rank anew, as a copy of another."""
        if self._standings is None or self._losses.bound or self._phase is not Phase.TRAINING:
            return False
        if not self._others_live(rank) or self._pool.is_lost(rank):
            return False
        may_restart = self._pool.may_restart(self._announcements.worked_s)
        if not may_restart:
            most, group = self._config.distribution.max_restarts_per_minute, self._plan.processes[rank].group
            why = f"restarts are limited to {most} a minute"
            self._telemetry.event(f"member {group} is not started anew: {why}")
        return may_restart

    def _others_live(self, rank: int) -> bool:
        """Whether a group other than that of a rank is alive: neither lost nor being started anew."""
        gone = self._replacing | self._replaced | self._losses.causes.keys()
        return bool(set(self._plan.groups) - gone - {self._plan.processes[rank].group})

    def _can_continue_without(self, rank: int) -> bool:
        """Whether the job has begun and can go on without a rank's group; a population needs one at least."""
        is_last = self._standings is not None and not self._others_live(rank)
        return self._phase is not Phase.STARTING and not is_last

    def _replace_group(self, rank: int, cause: str) -> None:
        """Kill the remaining processes of a dead member; the root starts it anew when they are all gone."""
        group = self._plan.processes[rank].group
        assert group is not None
        assert self._standings is not None
        self._telemetry.event(f"{cause}; member {group} is started anew")
        ranks = self._losses.ranks_of(group) - self._examiners
        learners = ranks & self._learner_ranks
        self._replacing.add(group)
        self._standings.note_death(group)
        self._pool.kill(ranks)
        self._endpoint.lose(learners)
        self._members.leave(ranks)
        for examiner in self._examiners:
            for learner in learners:
                self._control.send(examiner, PeerLost(rank=learner))
        self._start_replaced()

    def _start_replaced(self) -> None:
        """Start the processes of dead members, as soon as all their old processes are gone."""
        for group in sorted(self._replacing):
            ranks = self._losses.ranks_of(group) - self._examiners
            if self._phase is Phase.TRAINING and not ranks & self._pool.ranks:
                self._replacing.discard(group)
                self._replaced.add(group)
                self._losses.forget_orphans(group)
                learner_report = self._overview.learners().get(group)
                reached = 0 if learner_report is None else learner_report.env_steps
                for rank in sorted(ranks):
                    self._overview.keep(rank)
                    self._start(rank, self._members.incarnation(rank) + 1, reached)

    def _await_final_messages(self, rank: int, deadline: float) -> None:
        """Receive the last messages of a worker, which may come after the news of its end."""
        while True:
            for message in self._control.receive():
                self._handle(message)
            remaining_s = deadline - time.monotonic()
            if rank in self._sent_last or remaining_s <= 0:
                return
            self._control.wait(remaining_s)

    def _restart(self, died: ProcessSpec, cause: str) -> None:
        rank = died.rank
        if not self._pool.may_restart(self._announcements.worked_s):
            most = self._config.distribution.max_restarts_per_minute
            self._end("failed", f"{cause}; restarts are limited to {most} a minute")
            return
        evaluation = self._config.experiment.evaluation
        filmed = rank in self._examiners and evaluation is not None and evaluation.video > 0
        self._telemetry.event(f"{cause}; restarting it" + (" without films" if filmed else ""))
        self._overview.keep(rank)
        of_group = self._losses.ranks_of(self._plan.processes[rank].group)
        for other in self._shutdown.receivers & of_group - {rank}:
            self._control.send(other, PeerLost(rank=rank))
        self._start(rank, died.incarnation + 1)

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + (TICK_S if now - self._began > FIRST_S else FIRST_TICKS_S)
        for rank, pid in self._pool.pids.items():
            self._overview.workers[rank].pid = pid
        self._note_groups()
        snapshot = self._overview.snapshot()
        self._telemetry.update(snapshot)
        self._rejections.report()
        self._announcements.check_servers(self._pool.suspended_servers)
        self._announcements.check_first_step(self._overview.session_train_s)
        self._announcements.check_waiting(self._overview.waits_for)
        self._announcements.check_remarks(self._overview.remarks)
        if self._phase is Phase.STARTING:
            self._announcements.check_start(self._pool.ranks - self._members.registered)
        if self._phase is Phase.TRAINING:
            self._end_hanging()
            self._announcements.check_training(self._pool.ranks, snapshot)
            self._announcements.check_memory(snapshot.roles)
            self._tracing.look(self._pool.ranks & self._members.registered, self._overview.learners())
        if self._evaluation is not None and self._evaluation.ended_by is not None:
            self._pool.kill_all()
        elif self._evaluation is not None and self._evaluation.is_late(self._overview.evaluating):
            self._pool.abort(self._pool.ranks, "hung")
        reached, stuck = self._rules.time_reached(), self._announcements.stuck
        if reached is not None and stuck is not None and self._outcome is None:
            hangs = " hangs, and nothing was made or learnt since"
            self._end("failed", f"{_cause(self._job.process(stuck), hangs)}: {reached}")
        self._finish_if(reached or self._enough(snapshot))

    def _note_groups(self) -> None:
        """Write the progress of the groups, and the lost ones, into the overview."""
        self._endpoint.report(self._overview)
        self._overview.note_lost(self._losses.causes)

    def _end_hanging(self) -> None:
        """Abort actors and examiners that do not return from a call such as a step; they restart."""
        present = self._pool.ranks & self._members.registered
        limits_s = {rank: limit_s for rank, limit_s in self._limits_s.items() if rank in present}
        for rank, how in self._announcements.check_hanging(limits_s, self._pool.is_suspended).items():
            if self._losses.bound:
                self._end("failed", _cause(self._job.process(rank), f" {how}"))
            self._pool.abort({rank}, how)

    def _finish_if(self, reached: str | None) -> None:
        """End the run in order when a rule holds."""
        if reached is not None and self._outcome is None:
            self._end("finished", reached)

    def _end(self, status: Status, reason: str) -> None:
        """Begin the end of the job; a first failure replaces an earlier outcome that was none."""
        if self._phase is Phase.EVALUATING and self._outcome is not None:
            reason = f"the evaluation failed, after training was over ({self._outcome.reason}): {reason}"
        if self._outcome is None or (status == "failed" and self._outcome.status != "failed"):
            self._outcome = Outcome(status, reason)
        if self._phase in RUNNING:
            to_kill = self._pool.ranks - self._members.registered  # These cannot receive a Stop yet.
            if self._phase is Phase.STARTING:
                self._pool.start_no_more()
                to_kill |= self._shutdown.actors  # Actors have made nothing, and a thousand stop slowly.
            self._phase = Phase.WINDING_DOWN
            self._tracing.cut()
            for view in self._overview.workers.values():
                view.state = "stopping" if view.state == "running" and view.pid is not None else view.state
            self._shutdown.begin()
            self._pool.kill(to_kill)
            self._endpoint.finish()

    def _advance(self) -> None:
        """Go on to the next phase when this one is done or its time is up."""
        if self._phase is Phase.WINDING_DOWN and self._shutdown.actors_are_gone():
            self._phase = Phase.STOPPING
        if self._phase is Phase.STOPPING and self._shutdown.all_are_gone():
            self._phase = self._evaluation_or_over()
        elif self._phase is Phase.EVALUATING and not self._pool.ranks:
            self._phase = Phase.OVER

    def _give_up(self, late: set[int]) -> None:
        if hanging := late & self._examiners:  # The job loses no training with an examiner.
            self._telemetry.event(f"{self._plan.titles(hanging)} did not stop in time and was killed")
        if not (late := late - self._examiners):
            return
        names = " and ".join(self._title(rank) for rank in sorted(late))
        cause = f"{names} did not stop in time and was killed"
        if not self._losses.lose(late, cause):
            self._end("failed", cause)

    def _evaluation_or_over(self) -> Phase:
        if self._config.distribution.groups > 1 and self._config.experiment.evaluation is None:
            learners, lost = self._overview.learners(), self._losses.causes
            with self._control.undisturbed():
                choose_best(self._checkpoints, learners, lost, self._telemetry.event)
        evaluators = self._plan.carrying("evaluator")
        if not evaluators or self._outcome is None or self._outcome.status != "finished":
            return Phase.OVER
        if not self._pool.can_start(evaluators[0].rank):
            self._outcome = Outcome(
                "finished", f"{self._outcome.reason}; no evaluation: the fork server was stopped"
            )
            return Phase.OVER
        self._telemetry.event(f"training is over ({self._outcome.reason}); evaluating")
        self._evaluation = EvaluationWatch(self._config.experiment.eval_max_s, self._telemetry.event)
        self._start(evaluators[0].rank)
        return Phase.EVALUATING

    def _summary(self) -> Summary:
        assert self._outcome is not None
        if self._outcome.status == "finished" and self._evaluation is not None:
            self._overview.note_evaluation(self._evaluation.ended_by)
        account = self._losses.account(self._overview)
        if account.unaccounted:
            self._telemetry.event(f"{account.unaccounted} samples are in none of the accounts: {account}")
        self._rejections.report()
        self._announcements.check_remarks(self._overview.remarks)
        self._note_groups()
        reason = self._losses.described(self._outcome.reason)
        return self._overview.summary(self._outcome.status, reason, account, self._rejections.total)

    def _title(self, rank: int) -> str:
        return self._plan.processes[rank].title


def _cause(own: ProcessSpec, what: str) -> str:
    return f"{own.title}{what} (its output: {own.log})"


def _silence_limits(
    config: JobConfig, plan: Plan, examiners: Iterable[int], *, bound: bool
) -> dict[int, float]:
    """Return the longest silence of processes that step environments, in seconds, by rank."""
    limit_s, evaluation = config.environment.step_limit_s, config.experiment.evaluation
    limits_s = {
        process.rank: limit_s * (SLOW_UPDATES if "learner" in process.roles else 1)
        for process in plan.carrying("actor")
    }
    if evaluation is not None and not bound:
        limits_s |= dict.fromkeys(examiners, evaluation.max_s + HANGS_S)
    return limits_s


class Membership:
    """Keeps the addresses of registered ranks, and sends each rank those of its neighbours."""

    def __init__(self, plan: Plan, graph: RoleGraph, control: ControlServer) -> None:
        self._control = control
        self._incarnations = dict.fromkeys(range(len(plan.processes)), 0)
        self._neighbours = graph.neighbours(plan)
        self._addresses: dict[int, str] = {}
        self._sent: dict[int, Mapping[int, str]] = {}

    @property
    def registered(self) -> set[int]:
        """Ranks whose addresses are known."""
        return set(self._addresses)

    def begin(self, rank: int, incarnation: int) -> None:
        """Note that a rank is started, perhaps again."""
        self._incarnations[rank] = incarnation
        self.leave([rank])

    def incarnation(self, rank: int) -> int:
        """Return the number of restarts of a rank."""
        return self._incarnations[rank]

    def is_current(self, rank: int, incarnation: int) -> bool:
        """Whether this is the present incarnation of a rank."""
        return self._incarnations[rank] == incarnation

    def register(self, message: Register) -> None:
        """Record the address of a rank."""
        self._addresses[message.rank] = message.address

    def leave(self, ranks: Iterable[int]) -> None:
        """Forget ranks that do not come back."""
        for rank in ranks:
            self._addresses.pop(rank, None)
            self._sent.pop(rank, None)

    def introduce(
        self, everyone: set[int], needed: set[int], root: Mapping[int, str]
    ) -> Mapping[int, str] | None:
        """Send each registered rank the addresses of its neighbours, unless it has them.

        Args:
            needed: ranks that must have registered before any rank begins.
            root: the root's own address by its rank, if it has one.

        Returns:
            The addresses, by rank; None while a needed rank is missing.
        """
        if not needed <= self._addresses.keys():
            return None
        addresses = self._addresses | dict(root)
        for rank in everyone & self._addresses.keys():
            known = {peer: addresses[peer] for peer in self._neighbours[rank] if peer in addresses}
            if self._sent.get(rank) != known:
                self._sent[rank] = known
                self._control.send(rank, Addresses(addresses=known))
        return addresses


class GroupLosses:
    """Remembers which processes died, and decides whether the job goes on without their groups.

    The job ends without group 0, which has its checkpoints, and goes on without any other group.

    Args:
        bound: an MPI launcher ends all processes when one dies.

    Attributes:
        bound: see above.
        causes: reason of each loss, by group.
        killed: incarnations of actors that did not stop in order.
        orphaned: numbers of the actors whose buffer died.
    """

    def __init__(self, plan: Plan, event: Callable[[str], None], *, bound: bool = False) -> None:
        self._plan = plan
        self._event = event
        self.bound = bound
        self._buffers = {process.rank for process in plan.carrying("buffer")}
        self._learners = {process.rank for process in plan.carrying("learner")}
        self._lost_receiver = False
        self.causes: dict[int, str] = {}
        self.killed: set[Source] = set()
        self.orphaned: set[int] = set()

    @property
    def living(self) -> set[int]:
        """Ranks of the groups that are not lost."""
        return {process.rank for process in self._plan.trainers if process.group not in self.causes}

    def includes(self, rank: int) -> bool:
        """Whether a rank belongs to a lost group."""
        return self._plan.processes[rank].group in self.causes

    def ranks_of(self, group: int | None) -> set[int]:
        """Find the ranks of a group."""
        return {process.rank for process in self._plan.trainers if process.group == group}

    def lose(self, ranks: Set[int], cause: str) -> bool:
        """Give up the groups of some ranks, and tell the user; return False if the job needs one of them."""
        groups = {self._plan.processes[rank].group for rank in ranks}
        if self.bound or not all(groups):
            return False
        for group in groups - self.causes.keys():
            assert group is not None
            self.causes[group] = cause
            self._event(f"group {group} is lost: {cause}; the others go on")
        return True

    def note(self, died: ProcessSpec, *, in_order: bool) -> None:
        """Record a process that has ended early; ``in_order`` if it had sent its last report."""
        process = self._plan.processes[died.rank]
        self.killed.update((actor, died.incarnation) for actor in process.actors)
        self._lost_receiver |= died.rank in self._buffers | self._learners and not in_order
        if died.rank in self._buffers and not in_order:
            for other in self._plan.trainers:
                if other.group == process.group:
                    self.orphaned.update(other.actors)

    def forget_orphans(self, group: int) -> None:
        """Forget the orphans of a group that is started anew: its old actors count as killed already."""
        for process in self._plan.trainers:
            if process.group == group:
                self.orphaned.difference_update(process.actors)

    def account(self, overview: Overview) -> Account:
        """Return the sample account, after everything stopped."""
        overview.settle_unsure()
        account = reconcile(overview.productions(), overview.receptions(), self.killed, self.orphaned)
        if not self._lost_receiver:
            return account
        return account.as_learnt(overview.received, all_known=not overview.unsure)

    def described(self, reason: str) -> str:
        """Add the lost groups to the reason of a job's end."""
        if not self.causes:
            return reason
        names = " and ".join(map(str, sorted(self.causes)))
        return f"{reason}; without group{'s' if len(self.causes) > 1 else ''} {names}, lost on the way"

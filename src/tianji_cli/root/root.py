"""The root: starts processes, receives their messages, hands them to its observers, and ends the job.

A job goes through phases: *starting* until every worker but the examiner has registered, *training*, *winding
down* while the actors stop and the buffers receive their last fragments, *stopping* while the buffers in
processes of their own report what they received and the learners save, *evaluating*, *over*. Winding down and
stopping have time limits, so that nothing hangs. The root is never busy for long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from tianji_cli.files.regular import open_to_append
from tianji_cli.launch.state_transfer import StateTransfer
from tianji_cli.plan.graph import INFERENCE
from tianji_cli.root.deaths import Deaths
from tianji_cli.root.job_view import choose_best
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import Outcome, Phase, RunningJob
from tianji_cli.root.shutdown import Shutdown
from tianji_cli.signals import StopSignals
from tianji_cli.telemetry.snapshot import Summary
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_cli.wire.messages import (
    Began,
    Exited,
    Failed,
    Present,
    Register,
    Report,
    SavedState,
    Stop,
    Stopped,
    Terminate,
    ToRoot,
    Wrote,
)
from tianji_cli.wire.records import job_number
from tianji_transports.core import Transport
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Wiring

TICK_S: Final = 1.0
FIRST_TICKS_S: Final = 0.2
FIRST_S: Final = 10.0
"""During the first ``FIRST_S``, ticks come every ``FIRST_TICKS_S``, for the learning curves of short runs."""
FINAL_MESSAGE_LIMIT_S: Final = 1.0
"""Seconds that the root waits for a message that a worker sent before it ended."""

ExchangeFactory = Callable[[Transport, int], Observer]
"""Builds the observer of several groups from the root's open endpoint and the job's number."""


class Root:
    """Runs a job from start to end.

    Args:
        observers: in the order in which they hear of each event.
        exchange: builds one more observer once the root's endpoint is open: it averages groups, or compares
            the members of a population.
    """

    def __init__(
        self,
        job: RunningJob,
        observers: Iterable[Observer],
        exchange: ExchangeFactory,
        signals: StopSignals,
        telemetry: Telemetry,
    ) -> None:
        self._job = job
        self._observers = list(observers)
        self._exchange = exchange
        self._signals = signals
        self._telemetry = telemetry
        self._deaths = Deaths(job)
        self._shutdown = Shutdown(job, self._deaths)
        self._interruptions = 0
        self._stop_requested = False
        self._states = StateTransfer()
        self._began = self._next_tick = time.monotonic()

    def run(self) -> Summary:
        """Run the job; returns when every worker has ended."""
        for rank in sorted(self._job.living):
            self._job.start(rank)
        while self._job.phase is not Phase.OVER:
            self._sleep()
            self._check_signals()
            self._receive()
            self._take_turns()
            self._check_exits()
            self._introduce()
            self._tick()
            self._advance()
        for observer in self._observers:
            observer.on_end()
        self._telemetry.update(self._job.overview.snapshot())
        return self._summary()

    def _sleep(self) -> None:
        until = min(self._next_tick, self._shutdown.deadline)
        if self._job.outcome is None:
            until = min([until, *(observer.deadline for observer in self._observers)])
        descriptors = self._signals.descriptor, *self._job.pool.descriptors
        try:
            self._job.endpoint.sleep(until, self._job.control, descriptors)
        except TransportError as error:
            self._lose_groups(error)
        self._signals.clear()

    def _check_signals(self) -> None:
        if self._signals.count == self._interruptions:
            return
        self._interruptions = self._signals.count
        if self._interruptions == 1:
            self._request_stop(self._signals.last)
        else:
            self._job.event(f"{self._signals.last} again: ending at once, without a last checkpoint")
            self._job.pool.kill_all()

    def _request_stop(self, what: str) -> None:
        """End the job in order; if training is over, end the evaluation."""
        job = self._job
        if self._stop_requested:
            return
        self._stop_requested = True
        if job.outcome is None:
            job.finish(what, "stopped")
        elif job.outcome.status == "finished" and job.plan.carrying("evaluator"):
            job.outcome = Outcome("stopped", f"{job.outcome.reason}; no evaluation because of {what}")
            if job.phase is Phase.EVALUATING:
                job.pool.kill_all()

    def _receive(self) -> None:
        for message in self._job.control.receive():
            self._handle(message)

    def _handle(self, message: ToRoot) -> None:
        """Record a message, and hand it to the observers."""
        match message:
            case Register() | Report() | Stopped() | Failed() if not self._is_expected(message):
                return
            case Register():
                self._welcome(message)
            case Report():
                self._record(message)
            case Stopped():
                self._job.members.sent_last.add(message.report.rank)
                self._job.members.stopped.add(message.report.rank)
                self._handle(message.report)
            case Failed():
                self._deaths.note_failure(message)
            case Terminate() if message.rank not in self._job.lost_ranks:
                self._request_stop(f"SIGTERM to {self._job.title(message.rank)}")
            case Exited():
                self._job.overview.note_pages(message.pages)
                self._job.pool.handle(message)
            case Began() | Present():
                self._job.pool.handle(message)
            case Wrote() | SavedState():
                self._keep(message)
        for observer in self._observers:
            observer.on_message(message)

    def _is_expected(self, message: Register | Report | Stopped | Failed) -> bool:
        """Whether a message comes from the present process of a rank, and a report is of its roles."""
        message = message.report if isinstance(message, Stopped) else message
        job, rank = self._job, message.rank
        if not job.members.is_current(rank, message.incarnation):
            return False  # The process has died since, and its successor is on its way.
        if isinstance(message, Report):
            names = job.plan.processes[rank].roles
            kinds = ["user" if name in {*job.config.roles, INFERENCE} else name for name in names]
            if [one.role for one in message.roles] != kinds or len(message.busy_s) != len(kinds):
                job.control.reject(f"a report of {job.title(rank)} is not of its roles")
                return False
        return True

    def _welcome(self, message: Register) -> None:
        view = self._job.overview.workers[message.rank]
        view.state, view.pid = "running", message.pid
        self._job.members.register(message)
        self._deaths.note_return(message.rank)
        if message.wiring is not None:
            self._open_endpoint(message.wiring)
        if self._job.outcome is not None:
            self._job.control.send(message.rank, Stop())

    def _open_endpoint(self, wiring: Wiring) -> None:
        try:
            transport = self._job.endpoint.open(wiring)
        except TransportError as error:
            self._lose_groups(error)
            return
        if transport is not None:
            self._observers.append(self._exchange(transport, job_number(wiring.job)))

    def _lose_groups(self, error: TransportError) -> None:
        self._job.fail(f"the root cannot reach the groups: {error}")

    def _record(self, report: Report) -> None:
        view = self._job.overview.workers[report.rank]
        if view.state == "starting":
            view.state = "running"  # An evaluator registers nowhere: nothing is sent to it.
        self._job.overview.note(report)
        for row in self._job.overview.new_evaluations(report):
            self._telemetry.evaluation(row)

    def _keep(self, message: Wrote | SavedState) -> None:
        """Keep what another host keeps no copy of: a worker's output, or the state of a role."""
        if isinstance(message, SavedState):
            self._keep_state(message)
        else:
            self._keep_output(message)

    def _keep_output(self, message: Wrote) -> None:
        """Append the output of a worker to its log."""
        if (worker := self._job.pool.handle(message)) is None:
            return
        try:
            with open(open_to_append(self._job.spec.log(worker.rank)), "ab") as log:
                log.write(message.output)
        except OSError as cause:
            rank = worker.rank
            lost = f"what {self._job.title(rank)} writes to its log is lost: {cause}"
            self._job.show_once(("output", rank), lost)

    def _keep_state(self, message: SavedState) -> None:
        """Make what a role has saved on a host that cannot reach the run directory the newest state here."""
        try:
            self._states.keep(self._job.spec, message)
        except LookupError as cause:
            self._job.control.reject(f"a saved state is of no role: {cause}")
        except OSError as cause:
            self._job.fail(f"the state of {self._job.title(message.rank)} cannot be saved: {cause}")

    def _take_turns(self) -> None:
        """Let the observers work on what has come, while the job trains."""
        for observer in self._observers:
            if self._job.outcome is None:
                try:
                    observer.on_turn()
                except TransportError as error:
                    self._lose_groups(error)

    def _check_exits(self) -> None:
        """Handle the processes that have ended."""
        job = self._job
        exited = job.pool.take_exited()
        stops = job.phase in {Phase.WINDING_DOWN, Phase.STOPPING}
        if job.pool.fork_server_lost is not None:
            job.fail(job.pool.fork_server_lost)
        elif stops or (job.phase is Phase.EVALUATING and job.pool.ranks <= job.members.stopped):
            job.pool.end_suspended_servers()
        deadline = time.monotonic() + FINAL_MESSAGE_LIMIT_S
        for worker in exited:
            assert worker.exit is not None
            rank = worker.rank
            left = worker.pid is not None and not worker.killed and not worker.exit.by_signal
            if left and not job.pool.is_lost(rank):
                self._await_final_messages(rank, deadline)
            self._deaths.handle(worker, worker.exit)
            for observer in self._observers:
                observer.on_exit(worker)

    def _await_final_messages(self, rank: int, deadline: float) -> None:
        """Receive the last messages of a worker, which may come after the news of its end."""
        while True:
            self._receive()
            remaining_s = deadline - time.monotonic()
            if rank in self._job.members.sent_last or remaining_s <= 0:
                return
            self._job.control.wait(remaining_s)

    def _introduce(self) -> None:
        """Introduce new processes to their neighbours once all are there; training begins with the first."""
        job = self._job
        # Training needs no examiner: it joins when it has built its environments.
        needed = job.living - job.examiners
        if job.phase is Phase.STARTING and job.outcome is None and needed <= job.members.registered:
            for observer in self._observers:
                observer.on_begin()
            job.phase = Phase.TRAINING
        if addresses := job.members.introduce(needed, job.examiners, job.endpoint.address):
            job.endpoint.connect(addresses)
            self._deaths.note_introduced()

    def _tick(self) -> None:
        now = time.monotonic()
        if now < self._next_tick:
            return
        self._next_tick = now + (TICK_S if now - self._began > FIRST_S else FIRST_TICKS_S)
        overview = self._job.overview
        for rank, pid in self._job.pool.pids.items():
            overview.workers[rank].pid = pid
        overview.note_lost(self._job.lost)
        snapshot = overview.snapshot()
        self._telemetry.update(snapshot)
        for observer in self._observers:
            observer.on_tick(snapshot)

    def _advance(self) -> None:
        """Go on to the next phase when this one is done or its time is up."""
        job = self._job
        if job.outcome is not None and job.phase in {Phase.STARTING, Phase.TRAINING}:
            self._wind_down()
        if job.phase is Phase.WINDING_DOWN and self._shutdown.actors_are_gone():
            job.phase = Phase.STOPPING
        if job.phase is Phase.STOPPING and self._shutdown.all_are_gone():
            job.phase = self._evaluation_or_over()
        elif job.phase is Phase.EVALUATING and not job.pool.ranks:
            job.phase = Phase.OVER

    def _wind_down(self) -> None:
        """Begin the end of the job, which has an outcome."""
        job = self._job
        to_kill = job.pool.ranks - job.members.registered  # These cannot receive a Stop yet.
        if job.phase is Phase.STARTING:
            job.pool.start_no_more()
            to_kill |= job.producers  # Actors have made nothing, and a thousand stop slowly.
        job.phase = Phase.WINDING_DOWN
        for observer in self._observers:
            observer.on_wind_down()
        for view in job.overview.workers.values():
            view.state = "stopping" if view.state == "running" and view.pid is not None else view.state
        self._shutdown.begin()
        job.pool.kill(to_kill)
        job.endpoint.finish()

    def _evaluation_or_over(self) -> Phase:
        job = self._job
        if job.config.distribution.groups > 1 and job.config.experiment.evaluation is None:
            with job.control.undisturbed():
                choose_best(job.spec.checkpoints, job.overview.learners(), job.lost, job.event)
        evaluators = job.plan.carrying("evaluator")
        if not evaluators or job.outcome is None or job.outcome.status != "finished":
            return Phase.OVER
        if not job.pool.can_start(evaluators[0].rank):
            reason = f"{job.outcome.reason}; no evaluation: the fork server was stopped"
            job.outcome = Outcome("finished", reason)
            return Phase.OVER
        job.event(f"training is over ({job.outcome.reason}); evaluating")
        job.start(evaluators[0].rank)
        return Phase.EVALUATING

    def _summary(self) -> Summary:
        job = self._job
        assert job.outcome is not None
        account = self._deaths.account()
        if account.unaccounted:
            job.event(f"{account.unaccounted} samples are in none of the accounts: {account}")
        job.overview.note_lost(job.lost)
        reason = self._deaths.described(job.outcome.reason)
        rejected = sum(count for _, count, _ in job.rejections())
        return job.overview.summary(job.outcome.status, reason, account, rejected)

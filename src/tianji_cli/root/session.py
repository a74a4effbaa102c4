"""One session of a job: waits for its hosts, makes the plan, starts the processes, runs the root, sums up."""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.checks import host_warnings
from tianji_cli.config.loader import dump_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, UsageError, os_errors_as
from tianji_cli.files.counters import ProductionFile
from tianji_cli.files.directories import remove_stale
from tianji_cli.files.initial import INIT, described, initial_document
from tianji_cli.files.lineage import Lineage
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.files.saved import (
    LAST,
    Progress,
    begin_own_best,
    checkpoints_of,
    keep_best,
    link_best_to_best_evaluated,
    saved_progress,
)
from tianji_cli.launch.mpi import World
from tianji_cli.launch.node import LocalNode, Node
from tianji_cli.launch.pool import WorkerPool
from tianji_cli.launch.state_transfer import StateTransfer
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import (
    ROOT_RANK,
    Plan,
    expected_hosts,
    files_elsewhere,
    make_plan,
    plan_for_ranks,
    this_host,
)
from tianji_cli.quantities import several
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.hosts import LateHosts, Rendezvous
from tianji_cli.root.observers.adaptation import Adaptation
from tianji_cli.root.observers.announcements import Announcements
from tianji_cli.root.observers.attendance import Attendance
from tianji_cli.root.observers.averaging import ParameterAveraging
from tianji_cli.root.observers.goals import ProductionGoal, StopRules
from tianji_cli.root.observers.hangs import EvaluationWatch, HangWatch
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.observers.population import Comparison, Standings, members_of
from tianji_cli.root.observers.tracing import Tracing
from tianji_cli.root.observers.trackers import TrackerProcesses
from tianji_cli.root.root import ExchangeFactory, Root
from tianji_cli.root.running_job import RunningJob, restartable
from tianji_cli.signals import StopSignals
from tianji_cli.telemetry.chart import LearningCurve, read_learning_curve
from tianji_cli.telemetry.display import choose_display, nonblocking
from tianji_cli.telemetry.machine import last_session, note_session
from tianji_cli.telemetry.run_state import last_row
from tianji_cli.telemetry.snapshot import Snapshot, Summary
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_cli.telemetry.trackers import TENSORBOARD
from tianji_cli.telemetry.tracking import flat_values
from tianji_cli.wire.address import (
    LOOPBACK,
    JobKey,
    RootAddress,
    engine_options,
    own_address,
    parse_address,
    write_new_key,
)
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Welcome
from tianji_envs import registry as environments

KEY_FILE: Final = "job.key"
PRODUCTION_FILE: Final = "production.bin"


@dataclass(frozen=True)
class RunRequest:
    """Request for a session: the job, its directory, and the way to start it.

    Attributes:
        run: directory of the run's files.
        resumed: training goes on from the run's last checkpoint.
        changes: changes of a resumed run to the way it judges policies, in words.
        listen: host and port of the control channel; None chooses them.
        world: the ranks, if an MPI launcher has started them.
        node: this host; None if an MPI launcher has started the processes.
        files: the user's files for hosts that join.
        code: digests of the user's modules, by name.
        enough: called at every tick; a reason ends the session as a stop rule does.
        key: the job's key, which hosts that joined an earlier session have; None for a new one.
    """

    job: JobConfig
    run: RunDirectory
    resumed: bool = False
    changes: Sequence[str] = ()
    quiet: bool = False
    listen: tuple[str, int] | None = None
    world: World | None = None
    node: LocalNode | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    enough: Callable[[Snapshot], str | None] = lambda _snapshot: None
    key: JobKey | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the control channel: loopback if no other host takes part."""
        if self.listen is not None:
            return self.listen
        hosts = {host.name for host in self.world.hosts} if self.world is not None else set()
        return (own_address() if self.job.distribution.hosts.max > 1 or len(hosts) > 1 else LOOPBACK), 0


@dataclass(frozen=True)
class Result:
    """Result of a session.

    Attributes:
        summary: the summary as written to the run's directory.
        must_abort: MPI ranks remain that cannot end by themselves.
        begun: False if a resumed run did not begin and stays unchanged.
        again: request for the session that goes on by itself where this one was cut short; None if none does.
    """

    summary: Summary
    must_abort: bool
    begun: bool = True
    again: RunRequest | None = None


def run_session(request: RunRequest) -> Result:
    """Start the processes of a job, wait until they have ended, and write the summary.

    Raises:
        UsageError: the run has nothing to go on from, or another process works on it.
        RunFailed: nothing could be started.
        Interruption: the user did not wait for all hosts.
    """
    job, run = request.job, request.run
    progress, number = _goes_on_from(request)
    earlier_env_steps = sum(of_group.env_steps for of_group in progress)
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        telemetry = _telemetry(request, earlier_env_steps, stack)
        initial = _announce(request, progress, telemetry)
        names = [name for name in job.experiment.track if name != TENSORBOARD]
        trackers = TrackerProcesses(names, run, telemetry.position, telemetry.event)
        stack.callback(trackers.close)
        if not request.resumed:  # A resumed run has no config of this session yet.
            trackers.begin()
        with _failures_to_start(run):
            control = ControlServer(stack.enter_context(_key_file(run, request.key)), *request.address)
            stack.callback(control.close)
        rendezvous = Rendezvous(control, signals, telemetry, _welcome(request))
        stack.callback(rendezvous.dismiss)
        plan, nodes = _meet(request, control, rendezvous, telemetry)
        _check_places(request, plan, nodes, telemetry)
        control.ranks = len(plan.processes)
        with _failures_to_start(run):
            production = stack.enter_context(_production_file(run, plan))
        spec = _new_job(request, progress, plan, control.address)
        endpoint = RootEndpoint(plan, engine_options(request.address[0], control.address.key))
        pool = WorkerPool(spec, nodes, job.distribution.max_restarts_per_minute)
        stack.callback(remove_stale)  # Removes what killed workers could not remove themselves.
        stack.callback(endpoint.close)
        stack.callback(pool.close)
        _send_states(spec, nodes, control)
        bound = request.world is not None
        running = RunningJob(job, spec, control, pool, production, endpoint, telemetry.event, bound)
        running.leave_seats(running.living - nodes.keys())
        if bound and (ranks := restartable(job, plan)):
            titles = plan.titles(ranks)
            telemetry.event(f"an MPI launcher ends all processes when one dies: no restart of {titles}")
        session = SessionRecord(request, number, earlier_env_steps, telemetry)
        observers, exchange = _observers(request, running)
        observers = [session, *observers, LateHosts(running, rendezvous), trackers]
        root = Root(running, observers, exchange, signals, telemetry)
        summary = replace(root.run(), init=initial, session=number)
        with control.undisturbed():
            _remove_lockstep_stores(run)
            plots = job.experiment.plots and summary.status != "stopped"
            again = None if signals.count else _goes_on_by_itself(request, running, earlier_env_steps)
            if again is not None:
                telemetry.event("the run begins again, from its last checkpoint")
                pool.keep_hosts()
            result = Result(telemetry.close(summary, plots=plots), pool.must_abort, telemetry.begun, again)
            trackers.finish(signals)
            return result


def _announce(
    request: RunRequest, progress: Sequence[Progress], telemetry: Telemetry
) -> dict[str, Any] | None:
    """Show warnings, and what the run begins with, which it returns; write the config of a new run."""
    job, run = request.job, request.run
    for warning in (*run.check(), *job.notes, *host_warnings(job), *_steps_back(request, progress)):
        telemetry.event(warning)
    if not request.resumed:
        run.write_config(dump_config(job))
    initial = initial_document(run)
    for line in described(None if request.resumed else initial):
        telemetry.event(line)
    return initial


def _goes_on_from(request: RunRequest) -> tuple[tuple[Progress, ...], int]:
    """Read the progress of each group, and choose a session number that the run has not used yet.

    Raises:
        UsageError: the run has nothing to go on from.
    """
    if not request.resumed:
        return (), 1
    saved = saved_progress(request.run.checkpoints, request.job.distribution.groups)
    with _failures_to_start(request.run):
        request.run.complete()
    number = max(last_session(request.run), *(progress.sessions + 1 for progress in saved)) + 1
    return tuple(replace(progress, sessions=number - 1) for progress in saved), number


def _steps_back(request: RunRequest, progress: Sequence[Progress]) -> Iterator[str]:
    """Yield warnings about the losses of a resumed run since its last rows: steps, or a whole group."""
    run, goes_on_at = request.run, sum(of_group.env_steps for of_group in progress)
    for group, of_group in enumerate(progress):
        if group and not of_group.env_steps and (checkpoints_of(run.checkpoints, group) / LAST).exists():
            yield f"group {group} was not in the last session: it begins with what group 0 has learnt"
    row = last_row(run.metrics) if request.resumed else None
    if row is not None and row.env_steps > goes_on_at:
        lost = row.env_steps - goes_on_at
        yield f"goes on at {goes_on_at} env steps: the last {lost} before the run ended are in no checkpoint"


class SessionRecord(Observer):
    """Records the beginning of a session; a resumed run changes here."""

    def __init__(self, request: RunRequest, number: int, env_steps: int, telemetry: Telemetry) -> None:
        self._request = request
        self._number = number
        self._env_steps = env_steps
        self._telemetry = telemetry

    def on_begin(self) -> None:
        """Record the session, which nothing refuses from here on.

        This first writes, under new names, what may not fit on the disk; the line of the session is decisive.

        Raises:
            RunFailed: it cannot be written; RunDirectoryError: likewise.
        """
        request, number = self._request, self._number
        run, job, text = request.run, request.job, dump_config(request.job)
        hidden = run.path / f".config-{number}.toml"
        differs = request.resumed and run.config.read_text(encoding="utf-8") != text
        with _failures_to_start(run), ExitStack() as unless_it_begins:
            unless_it_begins.callback(hidden.unlink, missing_ok=True)
            if differs:
                write_whole(hidden, text.encode())
            kept = keep_best(run.checkpoints, number - 1) if request.changes else ""
            if request.resumed:
                self._telemetry.begin()
            note_session(run, self._env_steps, request.code, number)
            if differs:
                hidden.rename(run.path / f"config-{number}.toml")
            if request.resumed and job.experiment.evaluation is not None:
                link_best_to_best_evaluated(run.checkpoints)
            if request.changes:
                begin_own_best(run.checkpoints)
                changes, again = "; ".join(request.changes), f"tianji eval {shlex.quote(str(run.path))}"
                self._telemetry.event(
                    f"{changes}: this session begins its own best policy; the best until now stays as "
                    f"checkpoint {kept} ({again} --checkpoint {kept})"
                )


def _telemetry(request: RunRequest, earlier_env_steps: int, stack: ExitStack) -> Telemetry:
    """Open the display and the metrics; the process that holds the metrics holds the run and its files."""
    job, run = request.job, request.run
    stream = stack.enter_context(nonblocking(sys.stderr))
    title = f"{job.experiment.name} ({run.path})"
    curve = partial(read_learning_curve, run.metrics) if request.resumed else LearningCurve
    display = choose_display(title, quiet=request.quiet, stream=stream, curve=curve)
    stack.callback(display.close)
    tracked = TENSORBOARD in job.experiment.track
    hyperparameters = flat_values(job.model_dump(mode="json")) if tracked else None
    return Telemetry(run, display, earlier_env_steps if request.resumed else None, hyperparameters)


def _observers(request: RunRequest, job: RunningJob) -> tuple[list[Observer], ExchangeFactory]:
    """List the observers of a job, and choose that of several groups: averaging, or a population."""
    observers: list[Observer] = [
        Announcements(job),
        HangWatch(job),
        StopRules(job, request.enough),
        ProductionGoal(job),
        Attendance(job),
        Tracing(job, request.run),
        EvaluationWatch(job),
    ]
    if job.config.distribution.actor.num.varies:
        observers.append(Adaptation(job))
    if job.config.population is None:
        return observers, partial(ParameterAveraging, job)
    lineage = Lineage.of_run(request.run.path) if request.resumed else Lineage(request.run.path)
    standings = Standings(job, lineage)
    return [*observers, standings], partial(Comparison, job, standings)


def _remove_lockstep_stores(run: RunDirectory) -> None:
    """Remove the files that learners meet by, in case one learner never came."""
    with contextlib.suppress(OSError):  # A leftover file is no reason to lose a summary.
        for store in run.path.glob("all_reduce-*"):
            store.unlink(missing_ok=True)


def _meet(
    request: RunRequest, control: ControlServer, rendezvous: Rendezvous, telemetry: Telemetry
) -> tuple[Plan, Mapping[int, Node]]:
    """Wait for the hosts, and place the roles; return the plan, and the node of each worker by rank."""
    job, world = request.job, request.world
    if world is not None:
        plan = plan_for_ranks(job, world.hosts)
        world.brief(control.address)
        return plan, dict(enumerate(rendezvous.ranks(world.hosts), start=1))
    assert request.node is not None, "without an MPI launcher this host starts processes"
    here, hosts = this_host(), job.distribution.hosts
    if hosts.max > 1:
        missing, more = hosts.min - 1, hosts.max - hosts.min
        wanted = several(missing, "more host") if missing else f"{several(more, 'more host')} may join"
        also = f", and for up to {more} later" if missing and more else ""
        join = f"tianji join {control.address.address} --key {request.run.path / KEY_FILE}"
        telemetry.event(f"waiting for {wanted}{also}: {join}" if missing else f"{wanted}: {join}")
    joined = rendezvous.hosts(hosts.min - 1, hosts.max - 1) if hosts.min > 1 else []
    plan = make_plan(job, expected_hosts(job, [here, *(node.host for node in joined)]))
    placed = {process.host for process in plan.processes}
    for node in joined:
        if node.host.name not in placed:
            telemetry.event(f"{node.host.name} leaves again: the config places nothing there")
            node.end_job()
    return plan, _node_of_each(plan, {here.name: request.node, **{node.host.name: node for node in joined}})


def _node_of_each(plan: Plan, by_host: Mapping[str, Node]) -> dict[int, Node]:
    """Find the node of each rank but the root's by its host; ranks on empty seats have none."""
    workers = (process for process in plan.processes if process.rank != ROOT_RANK)
    return {process.rank: by_host[process.host] for process in workers if process.host in by_host}


def _welcome(request: RunRequest) -> Welcome:
    """Write the welcome for hosts that join."""
    job = request.job
    return Welcome(
        host=this_host().name,
        experiment=job.experiment.name,
        run=str(request.run.path.absolute()),
        files=dict(request.files),
        may_leave=job.distribution.hosts.varies,
    )


def _check_places(request: RunRequest, plan: Plan, nodes: Mapping[int, Node], telemetry: Telemetry) -> None:
    """Announce the hosts whose files end with the job, and those between which gradients go in plain.

    Ranks of an MPI launcher count as sharing directories.

    Raises:
        RunFailed: a host needs checkpoints that it cannot reach.
    """
    for group in plan.groups:
        learners = plan.carrying("learner", group) + plan.carrying("follower", group)
        if len(hosts := {one.host for one in learners}) > 1:
            between = ", ".join(sorted(hosts))
            telemetry.event(f"gradients of group {group} go over the network, unencrypted: {between}")
    cut_off = {plan.processes[rank].host for rank, node in nodes.items() if node.reaches_run is False}
    run, goes_on = request.run.path.absolute(), request.resumed or request.job.experiment.init_from
    share = f"and cannot reach {run}: share it between the hosts, under the same path"
    for process in plan.carrying("learner") + plan.carrying("follower"):
        keeps = process.group == 0 and "learner" in process.roles
        if process.host in cut_off and (goes_on or keeps):
            does = "go on with" if request.resumed else "begin" if goes_on else "keep the checkpoints of"
            raise RunFailed(f"{process.host} is to {does} group {process.group} {share}")
    for place in files_elsewhere(plan, request.job):
        if place.host not in cut_off:
            continue
        telemetry.event(
            f"{place.host} cannot reach the run directory: {place.what} stay there and are removed when the "
            "job is over"
        )


def _send_states(job: Job, nodes: Mapping[int, Node], control: ControlServer) -> None:
    """Send the states of user roles to the hosts that cannot read them in the run directory."""
    for rank, node in nodes.items():
        if node.reaches_run is False:
            for state in StateTransfer().unsent(job, rank):
                control.send(node.name, state)


def _new_job(request: RunRequest, progress: tuple[Progress, ...], plan: Plan, root: RootAddress) -> Job:
    run = request.run.path.absolute()
    return Job(
        # The processes of a host tell members from strangers by this id: it must not be guessed.
        id=f"{os.getpid()}-{secrets.token_hex(16)}",
        config=dump_config(request.job),
        plan=plan,
        directory=run,
        run=run,
        progress=progress,
        own_best=bool(request.changes),
        init=run / INIT if request.job.experiment.init_from and not request.resumed else None,
        members=members_of(request.job, request.run.checkpoints if request.resumed else None),
        root=root,
        path=tuple(sys.path),
        production=run / PRODUCTION_FILE,
        interface=request.address[0],
        modules={} if request.node is None else request.node.built.modules,
        fresh=_wants_fresh_process(request.job),
    )


def job_to_build(
    job: JobConfig, plan: Plan, where: Path, init: Path | None = None, *, resumed: bool = False
) -> Job:
    """Describe the job for a trial build before it starts.

    Args:
        job: the config.
        where: the run's directory, or the directory for runs; it need not exist yet.
        init: file of tensors that the job begins with.
        resumed: the job resumes a run, whose checkpoints have to fit.

    Raises:
        UsageError: the run has nothing to go on from.
    """
    there = next(place for place in (where.absolute(), *where.absolute().parents) if place.is_dir())
    fresh = _wants_fresh_process(job)
    progress = saved_progress(there / "checkpoints", len(plan.groups)) if resumed else ()
    path = tuple(sys.path)
    return Job("", dump_config(job), plan, there, there, progress=progress, init=init, path=path, fresh=fresh)


def _wants_fresh_process(job: JobConfig) -> bool:
    """Whether the job's environment must not be built in a forked process.

    Every process builds an environment, at least to learn the layout of a fragment.
    """
    return environments.find(job.environment.type).wants_fresh_process


def _goes_on_by_itself(request: RunRequest, job: RunningJob, earlier_env_steps: int) -> RunRequest | None:
    """Return the request for another session if this one lost what it needs, and had saved any progress."""
    if not (job.died and job.config.distribution.restart) or job.bound:
        return None
    try:
        saved = saved_progress(request.run.checkpoints, job.config.distribution.groups)
    except UsageError:
        return None  # There is no checkpoint yet.
    if sum(of_group.env_steps for of_group in saved) <= earlier_env_steps:
        return None  # It would be the same again.
    root = job.control.address
    return replace(request, resumed=True, changes=(), listen=parse_address(root.address), key=root.key)


@contextmanager
def _key_file(run: RunDirectory, key: JobKey | None = None) -> Iterator[JobKey]:
    """Keep the job's key in its directory while it runs; `tianji launch` may have put it there before."""
    path = run.path / KEY_FILE
    try:
        if key is not None:
            key.write(path)
        yield JobKey.read(path) if path.exists() else write_new_key(path)
    finally:
        with contextlib.suppress(OSError):  # A key that cannot be removed must not hide another error.
            path.unlink()


def _failures_to_start(run: RunDirectory) -> AbstractContextManager[None]:
    return os_errors_as(RunFailed, f"cannot start a run in {run.path}")


@contextmanager
def _production_file(run: RunDirectory, plan: Plan) -> Iterator[ProductionFile]:
    path = run.path / PRODUCTION_FILE
    path.unlink(missing_ok=True)
    production = ProductionFile(path, len(plan.pages))
    try:
        yield production
    finally:
        with contextlib.suppress(OSError):
            production.remove()

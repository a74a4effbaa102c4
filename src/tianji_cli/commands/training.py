"""A training, from the options of `tianji train` to the exit status: plan, first build, run, result."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tianji_cli.commands.seeds import numbers_of, resume_seeds, train_seeds
from tianji_cli.commands.trace import check_seconds, leave, requested
from tianji_cli.conditions import check_machine
from tianji_cli.config.best import differences
from tianji_cli.config.checks import check_devices, crosses_hosts
from tianji_cli.config.loader import load_config, load_run_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError, RunFailed, TianjiError, UsageError, os_errors_as
from tianji_cli.files.campaigns import SeedsDirectory
from tianji_cli.files.directories import is_occupied, remove_stale
from tianji_cli.files.film import FilmError, check_library
from tianji_cli.files.initial import Source, described
from tianji_cli.files.modules import digests
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.files.saved import goals_reached, saved_progress
from tianji_cli.launch.extensions import collect_files
from tianji_cli.launch.mpi import (
    World,
    check_size,
    code_of_job,
    run_under_mpiexec,
    serve,
    started_again,
)
from tianji_cli.launch.node import LocalNode
from tianji_cli.launch.ranks import LEFT_OVER, Launch, left_over
from tianji_cli.launch.server_process import ServerProcess
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import (
    Plan,
    PlannedProcess,
    expected_hosts,
    files_elsewhere,
    make_plan,
    plan_for_ranks,
)
from tianji_cli.quantities import ranges, several
from tianji_cli.root.session import Result, RunRequest, job_to_build, run_session
from tianji_cli.signals import INTERRUPTED
from tianji_cli.telemetry.machine import changed_code
from tianji_cli.telemetry.metrics import load_tensorboard, read_summary
from tianji_cli.telemetry.progress import say, status
from tianji_cli.telemetry.report import document_of, print_lines, print_result
from tianji_cli.telemetry.snapshot import Summary
from tianji_cli.telemetry.tables import print_table, write_json
from tianji_cli.telemetry.trackers import TENSORBOARD, check_trackers
from tianji_cli.wire.address import parse_address, resolve

MAX_ROWS: Final = 64
"""Maximum rows of a plan on the screen; more processes are summed up (--json lists them all)."""

PICTURES: Final = (".svg", ".png", ".pdf")
"""Kinds of files that ``--dry-run`` draws a graph into."""

MOST_RANGES: Final = 4
"""Maximum ranges of numbers in a cell."""


@dataclass(frozen=True)
class Options:
    """Options of `tianji train`, as the user gave them; None stands for one that was not given."""

    config: str | None
    env: str | None
    agent: str | None
    overrides: Sequence[str]
    name: str | None
    out: Path | None
    resume: str | None
    init_from: str | None
    run_in: Path | None
    listen: str | None
    transport: str | None
    device: str | None
    seeds: str | None
    trace: float | None
    dry_run: bool
    quiet: bool
    json_to: str | None

    @property
    def place(self) -> Path:
        """Directory of runs."""
        return DEFAULT_OUT if self.out is None else self.out

    @property
    def is_silent(self) -> bool:
        """Whether nothing but JSON is shown."""
        return self.quiet or self.json_to == "-"

    @property
    def settings(self) -> list[str]:
        """Values of ``--set``, and of options that stand for a key of the config."""
        keys = {
            "distribution.transport": self.transport,
            "distribution.device": self.device,
            "experiment.name": self.name,
            "experiment.init_from": self.init_from,
        }
        options = [f"{key}={json.dumps(value)}" for key, value in keys.items() if value is not None]
        return [*self.overrides, *options]

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and port of ``--listen``."""
        if self.listen is None:
            return None
        host, port = parse_address(self.listen)
        return resolve(host), port

    def check(self, launch: Launch | None) -> None:
        """Refuse a command line that names no job, or several, or asks several seeds for what one can do.

        Raises:
            UsageError: the message has a remedy.
        """
        if (self.config, self.env, self.resume).count(None) != 2:
            raise UsageError(
                "name a config to train, an environment (--env ID) or a run to go on with (--resume RUN), "
                "and not several of them"
            )
        if self.init_from is not None and self.resume is not None:
            raise UsageError(
                "--init-from is how a new run begins; --resume goes on with a run, which has begun already"
            )
        if self.agent is not None and self.env is None:
            raise UsageError("--agent goes with --env; a config says it itself, as agent.type")
        if self.seeds is not None:
            if self.resume is not None:
                raise UsageError("--seeds begins with several seeds; --resume NAME/seeds-N goes on with them")
            if self.run_in is not None or self.listen is not None or (launch is not None and launch.size > 1):
                raise UsageError(
                    "--seeds trains on this host, in directories of its own: without --run and --listen, "
                    "started once"
                )
            numbers_of(self.seeds, 0)
        if self.trace is not None:
            check_seconds("--trace", self.trace)
            if self.seeds is not None:
                raise UsageError("--trace traces one run: tianji trace RUN traces one of several that go on")


def run_training(options: Options, launch: Launch | None, early: ServerProcess | None) -> int:
    """Do what the options ask for; returns the exit status.

    Args:
        launch: rank of this process, if an MPI launcher has started it.
        early: a fork server that was started before.

    Raises:
        UsageError, RunFailed: as of `tianji train`.
    """
    if launch is not None and launch.rank > 0:
        return 0 if options.dry_run else serve(launch)
    quiet, json_to = options.quiet, options.json_to
    with ExitStack() as stack:
        ranks = None if options.dry_run or launch is None or launch.size == 1 else launch
        world = None if ranks is None else stack.enter_context(World(ranks))
        options.check(launch)
        remove_stale()
        if options.resume is not None and not options.dry_run:
            seeds = SeedsDirectory.find(options.resume, options.place)
            if seeds is not None:
                if early is not None:
                    early.close()  # Each seed has a fork server of its own.
                return resume_seeds(seeds, options.settings, quiet=quiet, json_to=json_to)
        job, earlier = _read_config(options)
        changes = () if earlier is None or options.dry_run else _changes(job, earlier)
        if earlier is not None and not options.dry_run and _is_at_its_goal(job, earlier, json_to, changes):
            return 0
        job, source = (job, None) if earlier is not None else _with_source(job, options.place)
        plan = make_plan(job, expected_hosts(job))
        # MPI ranks have the files where they were started.
        files = collect_files(job) if job.distribution.hosts.max > 1 and world is None else {}
        by_mpiexec = False
        if not options.dry_run:  # Quick checks come before anything is built.
            _check_needs(job)
            by_mpiexec = options.seeds is None and _wants_mpiexec(job, plan, launch, world)
            if earlier is None:
                _check_new(job, options.run_in, options.place)
        with status("importing torch, building environment and model once", quiet=options.is_silent):
            where = earlier.path if earlier else options.run_in or options.place
            init = source.place if source else None
            spec = job_to_build(job, plan, where, init, resumed=earlier is not None)
            if TENSORBOARD in job.experiment.track and not options.dry_run:
                load_tensorboard()  # While the fork server imports torch.
            node = _node_that_built(spec, world, early, stack)
        begun = None if source is None or node is None else source.document(node.built.init)
        if options.dry_run:
            print_plan(plan, job, json_to, options.out, described(begun))
            return 0
        if options.seeds is not None or by_mpiexec:
            stack.close()  # The trainings have fork servers of their own, or ranks that start by themselves.
        if options.seeds is not None:
            return train_seeds(job, options.seeds, options.place, quiet=quiet, json_to=json_to)
        address = options.address
        run = earlier or _directory_for(job, options, source, begun)
        code = code_of_job(run) if node is None else digests(node.built.modules)
        resumed = earlier is not None
        changes = (*changes, *changed_code(run, code)) if resumed else ()
        starter = node if world is None else None  # MPI ranks are running already.
        request = RunRequest(job, run, resumed, changes, quiet, address, world, starter, files, code)
        return (
            run_under_mpiexec(job, len(plan.processes), run, code, resumed=resumed)
            if by_mpiexec
            else _run(request, options.trace, json_to)
        )


def _read_config(options: Options) -> tuple[JobConfig, RunDirectory | None]:
    """Read the config of a new run, or of the earlier one that is resumed; returns this one, too."""
    if options.resume is not None:
        earlier = RunDirectory.find(options.resume, options.place)
        earlier.check()  # The run's config names modules that will run.
        return load_run_config(str(earlier.config), options.settings), earlier
    if options.env is not None:
        return _by_defaults(options.env, options), None
    return load_config(str(options.config), options.settings), None


def _check_needs(job: JobConfig) -> None:
    """Refuse a job that needs a missing GPU or package.

    Raises:
        UsageError: names what is missing, and the command that installs a package.
    """
    check_devices(job)
    check_trackers(job.experiment.track)
    evaluation = job.experiment.evaluation
    if evaluation is not None and evaluation.video:
        try:
            check_library()
        except FilmError as cause:
            raise UsageError(f"experiment.evaluation.video: {cause}") from cause


def _check_new(job: JobConfig, run_in: Path | None, place: Path) -> None:
    """Refuse a place where a new run cannot be made, before anything is made there."""
    if run_in is None:
        RunDirectory.next(job.experiment.name, place).check()
    else:
        RunDirectory.adopt(run_in)


def _directory_for(
    job: JobConfig, options: Options, source: Source | None, begun: Mapping[str, Any] | None
) -> RunDirectory:
    """Make or adopt the directory of a new run, and copy the policy that it begins with."""
    if options.run_in is None:
        run = RunDirectory.create(job.experiment.name, options.place)
    else:
        run = RunDirectory.adopt(options.run_in)
    if source is not None and begun is not None:
        source.keep(run, begun)
    return run


def _with_source(job: JobConfig, out: Path) -> tuple[JobConfig, Source | None]:
    """Find the source of ``init_from``, and make its name valid in every directory."""
    if job.experiment.init_from is None:
        return job, None
    source = Source.find(job, out)
    begun = job.experiment.model_copy(update={"init_from": source.init_from})
    return job.model_copy(update={"experiment": begun}), source


def _by_defaults(env: str, options: Options) -> JobConfig:
    """Make a config of defaults, and tell the user if tianji has a tuned one."""
    agent = options.agent or "ppo"
    # This imports gymnasium; commands with a config do without until the config is checked.
    from tianji_cli.config.without_file import config_without_file, tuned_config  # noqa: PLC0415

    if not options.is_silent and (tuned := tuned_config(env, agent)) is not None:
        say(f"{tuned} is tuned for this environment: tianji train {tuned}")
    return config_without_file(env, agent, options.settings)


def _run(request: RunRequest, trace_s: float | None, json_to: str | None) -> int:
    result = run_session(request) if trace_s is None else _run_traced(request, trace_s, json_to)
    while result.again is not None:
        result = run_session(result.again)
    if result.begun:
        graph = request.job.graph
        if (graph.channels or graph.slots) and request.job.experiment.plots:
            try:
                _draw(make_plan(request.job, expected_hosts(request.job)), request.run.plots / "graph.svg")
            except UsageError as cause:  # The training is worth more.
                say(str(cause))
        goes_on = _goes_on(result.summary, request.job, request.run)
        print_result(result.summary, request.run, json_to, goes_on=goes_on)
    else:
        say(f"the session did not begin: {request.run.path} is as it was")
    return _exit_status(result, request.world)


def _run_traced(request: RunRequest, seconds: float, json_to: str | None) -> Result:
    """Run a session that traces itself."""
    run = request.run
    with requested(run, seconds) as place:
        result = run_session(request)
        try:
            traced = place.read_result()
            if traced is None:
                say(f"nothing was traced: training was over ({result.summary.reason}) before it could begin")
            else:
                leave(run, place, traced, run.trace, quiet=json_to == "-")
        except TianjiError as cause:  # The training is worth more.
            say(f"the trace is lost: {cause}")
    return result


def _exit_status(result: Result, world: World | None) -> int:
    """Return the exit status, after ending MPI ranks that cannot end by themselves.

    Raises:
        RunFailed: the run has failed.
    """
    summary = result.summary
    if result.must_abort and world is not None:
        finished = summary.status == "finished"
        world.abort(*(("the evaluation was ended", 0) if finished else (summary.reason, 1)))
    if summary.status == "failed":
        raise RunFailed(summary.reason)
    return INTERRUPTED if summary.status == "stopped" else 0


def _node_that_built(
    spec: Job, world: World | None, early: ServerProcess | None, stack: ExitStack
) -> LocalNode | None:
    """Build environment, model and layout once; closes the node if the workers are MPI ranks.

    Raises:
        UsageError: this machine lacks something, or the job cannot be built.
    """
    if world is not None and started_again():
        return None  # The command that started mpiexec has built everything already.
    check_machine(spec.plan.transport)
    if names := left_over():
        say(f"{', '.join(names)}: {LEFT_OVER}")
    if early is not None and spec.fresh:  # Workers that begin anew have no use for what it imports.
        early.close()
        early = None
    with ExitStack() as only_to_build:
        node = (stack if world is None else only_to_build).enter_context(LocalNode(early))
        node.build_once(spec, say)
        return node


def _wants_mpiexec(job: JobConfig, plan: Plan, launch: Launch | None, world: World | None) -> bool:
    """Whether to start mpiexec; refuses MPI ranks that do not fit the plan."""
    transport, hosts, processes = job.distribution.transport, job.distribution.hosts.max, len(plan.processes)
    if world is not None:
        check_size(world.size, processes)
        names = list(dict.fromkeys(plan_for_ranks(job, world.hosts).hosts.values()))
        if len(names) > 1 and not crosses_hosts(transport.remote):
            raise UsageError(
                f"the ranks are on {', '.join(names)}, and transport {transport.remote!r} stays inside a host"
            )
        return False
    if "mpi" not in {transport.local, transport.remote if hosts > 1 else ""}:
        return False
    if launch is not None:
        check_size(launch.size, processes)
    if hosts > 1:
        raise UsageError(
            "over several hosts mpi is started by its launcher: "
            f"mpiexec -hosts A,B -n {processes} tianji train ..., or tianji launch slurm"
        )
    return True


def _check_earlier(earlier: RunDirectory) -> None:
    """Refuse a run that cannot be resumed.

    Raises:
        UsageError: the run has no checkpoint, or a process still works on it.
    """
    if not (earlier.checkpoints / "last").exists():
        raise UsageError(f"{earlier.path} has no checkpoint to go on from")
    if is_occupied(earlier.checkpoints):
        raise UsageError(f"{earlier.path} belongs to a run that is still going, or saving: wait for its end")


def _goes_on(summary: Summary, job: JobConfig, run: RunDirectory) -> bool:
    """Whether --resume would train: not if only the evaluation is missing."""
    try:
        return summary.status != "finished" and not goals_reached(
            run.checkpoints, job.experiment.stop, job.distribution.groups
        )
    except UsageError:
        return False  # There is no checkpoint.


def _changes(job: JobConfig, run: RunDirectory) -> tuple[str, ...]:
    """Describe the settings by which a run would judge policies differently than up to its last checkpoint.

    Raises:
        UsageError: the run cannot be resumed.
    """
    _check_earlier(run)
    place = run.config_of(saved_progress(run.checkpoints, 1)[0].sessions + 1)
    try:
        before = load_run_config(str(place))
    except ConfigError:
        return (f"{place} cannot be read any more without --set",)
    if before.experiment.init_from != job.experiment.init_from:
        raise UsageError("experiment.init_from: the run has begun already; --init-from begins a new one")
    return differences(before, job)


def _is_at_its_goal(job: JobConfig, run: RunDirectory, json_to: str | None, changes: Sequence[str]) -> bool:
    """Whether a run has reached its goal; if so, print that and how to go on, and change nothing."""
    own_best = bool(changes or changed_code(run))  # Other settings or code judged the best until now.
    reached = goals_reached(run.checkpoints, job.experiment.stop, job.distribution.groups, own_best=own_best)
    if not reached:
        return False
    if json_to is not None and (summary := read_summary(run.summary)) is not None:
        write_json(document_of(summary, run), json_to)
    if json_to == "-":
        return True
    goals = job.experiment.stop.model_dump()
    text = "; ".join(
        f"{where}, and experiment.stop.{rule} is {goals[rule]}" for rule, where in reached.items()
    )
    path = shlex.quote(str(run.path))
    moved = "".join(f" --set experiment.stop.{rule}=..." for rule in reached)
    print_lines([f"{run.path} has reached its goal, and nothing was changed: {text}"])
    print_lines(
        [
            f"move the goal to go on: tianji train --resume {path}{moved}",
            f"evaluate it:            tianji eval {path}",
        ],
        to_copy=True,
    )
    return True


def _draw(plan: Plan, path: Path) -> None:
    """Draw a plan's graph.

    Raises:
        UsageError: the file cannot be written.
    """
    from tianji_cli.runs.graph import draw_graph  # noqa: PLC0415 - matplotlib takes half a second

    with os_errors_as(UsageError, f"cannot write {path}"):
        draw_graph(plan, path)


def print_plan(
    plan: Plan, job: JobConfig, json_to: str | None, picture: Path | None, more: Iterable[str] = ()
) -> None:
    """Print the processes of a plan and their edges, or write them as JSON; draw a picture if asked for."""
    if picture is not None and picture.suffix in PICTURES:
        _draw(plan, picture)
    rows: list[dict[str, Any]] = [
        {
            "rank": process.rank,
            "roles": list(process.roles),
            "group": process.group,
            "host": process.host,
            "cores": list(process.cores),
            "device": process.device,
        }
        for process in plan.processes
    ]
    channels = [
        {"name": edge.name, "sender": sender, "receiver": receiver}
        for edge in plan.channels
        for sender, receiver in edge.roles
    ]
    edges = {"channels": channels, "slots": list(map(asdict, plan.slots))}
    if not write_json({"transport": plan.transport, "processes": rows, **edges}, json_to):
        return
    headings = ("rank", "roles", "group", "host", "cores", "device")
    cells = [_cells(alike) for alike in _alike(plan.processes)]
    print_table(headings, cells, f"{len(rows)} processes")
    print_lines([f"transport {plan.transport}", *_below_table(plan, job), *more])


def _below_table(plan: Plan, job: JobConfig) -> Iterator[str]:
    if any(process.device.startswith("cuda:") for process in plan.processes):
        yield "cuda:N where a host has fewer GPUs: they go round"
    for channel in plan.channels:
        receivers = sum(len(plan.carrying(role, plan.groups[0])) for role in channel.receivers)
        share = ", each sends to one" if channel.route == "share" and receivers > 1 else ""
        yield f"{', '.join(channel.senders)} -> {', '.join(channel.receivers)}: {channel.name}{share}"
    for slot in plan.slots:
        yield f"{slot.writer} => {', '.join(slot.readers)}: {slot.name}, the newest"
    hosts = job.distribution.hosts
    here, *others = dict.fromkeys(process.host for process in plan.processes)
    if others:
        more = f" and {len(others) - MAX_ROWS} more" if len(others) > MAX_ROWS else ""
        yield f"taken: {here}; empty until a host joins: {', '.join(others[:MAX_ROWS])}{more}"
    if hosts.varies:
        begins = "this host" if hosts.min == 1 else f"{hosts.min} hosts"
        yield f"training begins on {begins}; {several(hosts.max - hosts.min, 'more host')} may come and go"
    if (num := job.distribution.actor.num).varies:
        yield f"{num.first} to begin with: of {num.min} to {num.max} actors, as many work as train fastest"
    cut_off = list(files_elsewhere(plan, job))
    for elsewhere in cut_off[:MAX_ROWS]:
        yield f"{elsewhere.what} are kept only if {elsewhere.host} reaches the run directory by its path"
    if len(cut_off) > MAX_ROWS:
        yield f"and so on, {len(cut_off)} in all"


def _alike(processes: Sequence[PlannedProcess]) -> Iterable[Sequence[PlannedProcess]]:
    """Sort processes into rows of a table: a row for each if there are few, else one for all of a kind."""
    if len(processes) <= MAX_ROWS:
        return [[process] for process in processes]
    rows: dict[tuple[Any, ...], list[PlannedProcess]] = {}
    for process in processes:
        kind = process.device.partition(":")[0]
        rows.setdefault((process.roles, kind), []).append(process)
    return rows.values()


def _cells(alike: Sequence[PlannedProcess]) -> tuple[str, ...]:
    counted = Counter(alike[0].roles).items()
    roles = " + ".join(role if number == 1 else f"{number} {role}s" for role, number in counted)
    if len(alike) > 1:
        roles = f"{len(alike)} times {roles}"
    groups = sorted({process.group for process in alike if process.group is not None})
    cores = sorted({core for process in alike for core in process.cores})
    hosts = list(dict.fromkeys(process.host for process in alike))
    devices = list(dict.fromkeys(process.device for process in alike))
    return (
        _ranges([process.rank for process in alike]),
        roles,
        _ranges(groups) or "-",
        hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts",
        (ranges(cores) if len(alike) > 1 else ",".join(map(str, cores))) or "any",
        devices[0] if len(devices) == 1 else f"{devices[0]} to {devices[-1]}",
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Write ascending numbers as ranges; only the first and last number if there are many gaps."""
    text = ranges(numbers)
    return text if text.count(",") < MOST_RANGES else f"{numbers[0]} to {numbers[-1]}"

"""`tianji train`: makes a plan, starts it, and stays until it is over."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tianji_cli.cluster.cleanup import remove_stale
from tianji_cli.cluster.graph import RoleGraph, graph_of
from tianji_cli.cluster.interfaces import parse_address, resolve
from tianji_cli.cluster.mpi_ranks import Launch, World, check_size, launched, serve
from tianji_cli.cluster.mpiexec import run_under_mpiexec
from tianji_cli.cluster.occupation import is_occupied
from tianji_cli.cluster.plan import Plan, expected_hosts, make_plan, plan_for_ranks
from tianji_cli.cluster.run_files import files_elsewhere
from tianji_cli.cluster.session import Order, run_session
from tianji_cli.config.checks import check_devices, crosses_hosts
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.interruption import INTERRUPTED
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.rundir import DEFAULT_OUT, RunDirectory


def train(  # noqa: PLR0913 - as many as the command has options
    config: str | None,
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    out: Path | None = None,
    resume: str | None = None,
    run_in: Path | None = None,
    listen: str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    json_to: str | None = None,
) -> int:
    """Run a job from a config, or go on with an earlier run.

    Started by mpiexec or srun with several tasks, all ranks come here: the first is the root, the others
    serve it.

    Args:
        config: path or name of the config; None with ``resume``.
        overrides: ``SECTION.KEY=VALUE`` settings that replace the config's.
        name: of the experiment, in place of the config's.
        out: directory for runs, in place of ``experiments``.
        resume: the run to go on with.
        run_in: a run directory that `tianji launch` has made, and nobody has used yet.
        listen: ``tcp://HOST:PORT`` where other hosts reach the control channel.
        dry_run: print the plan and start nothing.
        quiet: show no progress.
        json_to: file for the summary, ``-`` for stdout.

    Returns:
        The exit status: 0 done, 130 interrupted.

    Raises:
        UsageError: the command does not fit together, or wants a GPU; ConfigError: the config cannot be run.
        RunFailed: the run began and could not be finished.
    """
    launch = launched()
    if launch is not None and launch.rank > 0:
        return serve(launch)
    with ExitStack() as stack:
        world = stack.enter_context(World(launch)) if launch is not None and launch.size > 1 else None
        if (config is None) == (resume is None):
            raise UsageError("name a config to train, or a run to go on with (--resume RUN), and not both")
        remove_stale()
        overrides = [*overrides, *([f"experiment.name={json.dumps(name)}"] if name else [])]
        place = DEFAULT_OUT if out is None else out
        earlier = RunDirectory.find(resume, place) if resume is not None else None
        if earlier is not None:
            earlier.check()  # Its config names modules that will run.
        job = load_config(str(earlier.config) if earlier else str(config), overrides)
        plan = make_plan(job, expected_hosts(job))
        if dry_run:
            print_plan(plan, graph_of(job), job.roles, json_to)
            return 0
        check_devices(job)
        address = (resolve(parse_address(listen)[0]), parse_address(listen)[1]) if listen else None
        by_mpiexec = _wants_mpiexec(job, plan, launch, world)
        run = _run_directory(job, place, earlier, run_in)
        if by_mpiexec:
            return run_under_mpiexec(len(plan.processes), run, resumed=earlier is not None)
        order = Order(job, run, earlier is not None, quiet, address, world)
        result = run_session(order)
        print_result(result.summary, run, json_to)
        if result.doomed and world is not None:
            world.abort(result.summary.reason)
        if result.summary.status == "failed":
            raise RunFailed(result.summary.reason)
        return INTERRUPTED if result.summary.status == "stopped" else 0


def _wants_mpiexec(job: JobConfig, plan: Plan, launch: Launch | None, world: World | None) -> bool:
    """Say whether mpiexec is still to be started; refuse ranks that the plan has no use for."""
    transport, hosts, processes = job.distribution.transport, job.distribution.hosts, len(plan.processes)
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


def _run_directory(
    job: JobConfig, place: Path, earlier: RunDirectory | None, run_in: Path | None
) -> RunDirectory:
    if run_in is not None:
        return RunDirectory.adopt(run_in)
    if earlier is None:
        return RunDirectory.create(job.experiment.name, place)
    if not (earlier.checkpoints / "last").exists():
        raise UsageError(f"{earlier.path} has no checkpoint to go on from")
    if is_occupied(earlier.checkpoints):
        raise UsageError(f"{earlier.path} belongs to a run that is still going, or saving: wait for its end")
    return earlier


def print_plan(plan: Plan, graph: RoleGraph, roles: Collection[str], json_to: str | None) -> None:
    """Print who would run where, and who would be connected to whom.

    Args:
        plan: who runs where.
        graph: who is connected to whom.
        roles: names of the user's.
        json_to: file to write it to, ``-`` for standard output; None for none.
    """
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
    if json_to is not None:
        from tianji_cli.telemetry.report import write_json  # noqa: PLC0415

        write_json({"transport": plan.transport, "processes": rows, **asdict(graph)}, json_to)
    if json_to == "-":
        return
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(title=f"{len(rows)} processes, transport {plan.transport}", title_justify="left")
    for heading in ("rank", "roles", "group", "host", "cores", "device"):
        table.add_column(heading)
    for row in rows:
        cores = ",".join(map(str, row["cores"])) or "any"
        group = "-" if row["group"] is None else str(row["group"])
        table.add_row(str(row["rank"]), " + ".join(row["roles"]), group, row["host"], cores, row["device"])
    console = Console()
    console.print(table)
    if any(process.device.startswith("cuda:") for process in plan.processes):
        console.print("cuda:N where a host has fewer GPUs: they go round", highlight=False)
    for channel in graph.channels:
        console.print(f"{channel.sender} -> {channel.receiver}: {channel.name}", highlight=False)
    for slot in graph.slots:
        console.print(f"{slot.writer} => {', '.join(slot.readers)}: {slot.name}, the newest", highlight=False)
    for elsewhere in files_elsewhere(plan, roles):
        console.print(
            f"{elsewhere.what} are kept only if {elsewhere.host} reaches the run directory by its path",
            highlight=False,
        )

"""`tianji train`: makes a plan, starts it, and stays until it is over."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tianji_cli.cluster.cleanup import remove_stale
from tianji_cli.cluster.control import ControlServer
from tianji_cli.cluster.crew import Crew
from tianji_cli.cluster.launcher import LocalLauncher
from tianji_cli.cluster.occupation import is_occupied
from tianji_cli.cluster.plan import ROOT_RANK, Plan, make_plan
from tianji_cli.cluster.signals import StopSignals
from tianji_cli.cluster.worker import Assignment
from tianji_cli.config.checks import host_warnings
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.data.production import ProductionFile
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.interruption import INTERRUPTED
from tianji_cli.roles.overview import Overview
from tianji_cli.roles.root import Root
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.telemetry.snapshot import Summary
from tianji_cli.telemetry.telemetry import Telemetry, choose_display


def train(
    config: str | None,
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    out: Path | None = None,
    resume: str | None = None,
    dry_run: bool = False,
    quiet: bool = False,
    json_to: str | None = None,
) -> int:
    """Run a job from a config, or go on with an earlier run.

    Args:
        config: path or name of the config; None with ``resume``.
        overrides: ``SECTION.KEY=VALUE`` settings that replace the config's.
        name: of the experiment, in place of the config's.
        out: directory for runs, in place of ``experiments``.
        resume: the run to go on with.
        dry_run: print the plan and start nothing.
        quiet: show no progress.
        json_to: file for the summary, ``-`` for stdout.

    Returns:
        The exit status: 0 done, 130 interrupted.

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        RunFailed: the run began and could not be finished.
    """
    if (config is None) == (resume is None):
        raise UsageError("name a config to train, or a run to go on with (--resume RUN), and not both")
    remove_stale()
    overrides = [*overrides, *([f"experiment.name={json.dumps(name)}"] if name else [])]
    place = DEFAULT_OUT if out is None else out
    earlier = RunDirectory.find(resume, place) if resume is not None else None
    job = load_config(str(earlier.config) if earlier else str(config), overrides)
    plan = make_plan(job)
    if dry_run:
        print_plan(plan, json_to)
        return 0
    run = earlier or RunDirectory.create(job.experiment.name, place)
    if earlier and not (run.checkpoints / "last").exists():
        raise UsageError(f"{run.path} has no checkpoint to go on from")
    if earlier and is_occupied(run.checkpoints):
        raise UsageError(f"{run.path} belongs to a run that is still going, or saving: wait for its end")
    summary = run_job(job, plan, run, resumed=earlier is not None, quiet=quiet)
    print_result(summary, run, json_to)
    if summary.status == "failed":
        raise RunFailed(summary.reason)
    return INTERRUPTED if summary.status == "stopped" else 0


def run_job(job: JobConfig, plan: Plan, run: RunDirectory, *, resumed: bool, quiet: bool) -> Summary:
    """Start the processes of a plan, stay until they have ended, and write down what came of it.

    Raises:
        UsageError: the run has nothing to go on from, or belongs to somebody else.
        RunFailed: nothing could be started.
    """
    earlier_env_steps = _saved_env_steps(run) if resumed else 0
    job_id = f"{os.getpid()}-{secrets.token_hex(4)}"
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals())
        display = choose_display(f"{job.experiment.name} ({run.path})", quiet=quiet, stream=sys.stderr)
        stack.callback(display.close)
        # Whoever has the metrics has the run: nothing of another's is touched before this.
        telemetry = Telemetry(run, display, earlier_env_steps if resumed else None)
        for warning in host_warnings(job):
            telemetry.event(warning)
        run.write_config(dump_config(job))
        with _failures_to_start(run):
            launcher = LocalLauncher(run.log("root", ROOT_RANK))
            stack.callback(launcher.close)
            control = ControlServer(len(plan.processes))
            stack.callback(control.close)
            production = stack.enter_context(_production_file(run, plan))
            key_file = run.path / "job.key"
            key_file.unlink(missing_ok=True)
            stack.callback(key_file.unlink, missing_ok=True)
            control.key.write(key_file)

        def log(rank: int) -> Path:
            return run.log("-".join(dict.fromkeys(plan.processes[rank].roles)), rank)

        def assign(rank: int, incarnation: int) -> Assignment:
            return Assignment(
                job_id, run.path, plan, rank, incarnation, resumed, control.key, log(rank), tuple(sys.path)
            )

        crew = Crew(launcher, assign, job.distribution.max_restarts_per_minute)
        stack.callback(remove_stale)  # What workers that were killed could not remove themselves.
        stack.callback(crew.close)
        root = Root(
            job,
            plan,
            control=control,
            crew=crew,
            production=production,
            overview=Overview(job, plan, production, earlier_env_steps),
            signals=signals,
            telemetry=telemetry,
            log=log,
        )
        summary = root.run()
        return telemetry.close(summary, plots=summary.status != "stopped")


def print_plan(plan: Plan, json_to: str | None) -> None:
    """Print who would run where."""
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

        write_json({"transport": plan.transport, "processes": rows}, json_to)
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
    Console().print(table)


@contextmanager
def _failures_to_start(run: RunDirectory) -> Iterator[None]:
    try:
        yield
    except OSError as cause:
        raise RunFailed(f"cannot start a run in {run.path}: {cause.strerror or cause}") from cause


@contextmanager
def _production_file(run: RunDirectory, plan: Plan) -> Iterator[ProductionFile]:
    path = run.path / "production.bin"
    path.unlink(missing_ok=True)
    production = ProductionFile(path, plan.num_actors)
    try:
        yield production
    finally:
        production.remove()


def _saved_env_steps(run: RunDirectory) -> int:
    """Samples that the checkpoint to be resumed had received; read here without torch."""
    try:
        state = json.loads((run.checkpoints / "last" / "state.json").read_text(encoding="utf-8"))
        return int(state["progress"]["env_steps"])
    except (OSError, ValueError, KeyError) as cause:
        raise UsageError(f"{run.path} has no readable checkpoint to go on from: {cause}") from cause

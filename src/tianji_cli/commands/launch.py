"""`tianji launch slurm`: makes the directory of a run or a sweep, and submits a batch script in it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.options import Config, Name, Override
from tianji_cli.commands.sweep import begin, check_installed, tree_of
from tianji_cli.config.loader import dump_config, resolve
from tianji_cli.errors import UsageError
from tianji_cli.files.campaigns import SweepDirectory
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, write_whole
from tianji_cli.launch.slurm import Request, batch_script, require_slurm, script_of, submit, sweep_script
from tianji_cli.telemetry.progress import say
from tianji_cli.wire.address import write_new_key


def slurm(  # noqa: PLR0913 - the options of a command are its parameters
    config: Config,
    *,
    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="How many nodes to ask for; distribution.hosts by default."),
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Do the sweep that CONFIG describes.")] = False,
    array: Annotated[int, typer.Option(min=1, help="With --sweep: how many jobs, on a node each.")] = 1,
    print_only: Annotated[bool, typer.Option("--print", help="Print the script, and make nothing.")] = False,
    partition: Annotated[str | None, typer.Option(help="Where to queue.")] = None,
    time: Annotated[
        str | None, typer.Option(metavar="LIMIT", help="As Slurm writes it, such as 2:00:00.")
    ] = None,
    account: Annotated[str | None, typer.Option(help="Whom to charge.")] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each node; what the plan uses by default.")
    ] = None,
    overrides: Override = None,
    name: Name = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Runs are in DIR, not experiments/; with --sweep its own directory."
        ),
    ] = None,
) -> int:
    """Submit a job to Slurm, or show what would be submitted.

    Example: tianji launch slurm ppo_cartpole --nodes 2

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        SlurmError: Slurm is not there, or does not take the job.
    """
    request = Request(nodes or 1, partition, time, account, cpus_per_node)
    if sweep:
        return _launch_sweep(config, overrides or (), name, out, array, request, print_only=print_only)
    if array > 1:
        raise UsageError("--array goes with --sweep, whose jobs share the trials")
    tree = tree_of(config, overrides or (), name)
    if nodes is not None:
        tree.assign(("distribution", "hosts"), nodes, "--nodes")
    job = resolve(tree, cpus_per_node)
    request = replace(request, nodes=job.distribution.hosts.max)
    place = (DEFAULT_OUT if out is None else out).absolute()
    tianji = Path(sys.executable).with_name("tianji")
    if print_only:
        run = RunDirectory.next(job.experiment.name, place)
        sys.stdout.write(batch_script(job, run.path, request, tianji))
        return 0
    require_slurm()
    run = RunDirectory.create(job.experiment.name, place)
    try:
        for warning in run.check():
            say(f"warning: {warning}")
        run.write_config(dump_config(job))
        write_new_key(run.path / "job.key")
        script = script_of(run.path)
        write_whole(script, batch_script(job, run.path, request, tianji).encode())
        number = submit(script)
    except BaseException:
        shutil.rmtree(run.path)  # The job was not submitted, so the run never begins.
        raise
    sys.stdout.write(f"submitted job {number}: {script}\n")
    return 0


def _launch_sweep(
    config: str,
    overrides: Sequence[str],
    name: str | None,
    out: Path | None,
    array: int,
    request: Request,
    *,
    print_only: bool,
) -> int:
    if request.nodes > 1:
        raise UsageError("each trial of a sweep is on one node: --array says how many nodes share the trials")
    check_installed()
    from tianji_cli.runs.sweep.space import plan_sweep  # noqa: PLC0415 - only this needs it

    plan = plan_sweep(tree_of(config, overrides, name), None)
    tianji = Path(sys.executable).with_name("tianji")
    if print_only:
        place = out or SweepDirectory.next(plan.job.experiment.name)
        sys.stdout.write(sweep_script(plan.job, place.absolute(), array, request, tianji))
        return 0
    require_slurm()
    if out is not None and SweepDirectory(out).is_there:
        raise UsageError(f"{out} has a sweep already: sbatch {script_of(out)} has more jobs take part")
    directory = begin(plan, out)
    try:
        (directory.path / "logs").mkdir()
        script = script_of(directory.path.absolute())
        write_whole(script, sweep_script(plan.job, script.parent, array, request, tianji).encode())
        number = submit(script)
    except BaseException:
        shutil.rmtree(directory.path)  # The job was not submitted, so there are no trials.
        raise
    sys.stdout.write(f"submitted job {number}: {script}\n")
    return 0

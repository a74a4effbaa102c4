"""`tianji launch slurm`: makes a run directory, writes a batch script into it and submits it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.options import Config, Name, Override, Runs
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, write_whole
from tianji_cli.launch.slurm import Request, batch_script, require_slurm, script_of, submit
from tianji_cli.wire.address import write_new_key


def slurm(  # noqa: PLR0913 - the options of a command are its parameters
    config: Config,
    *,
    nodes: Annotated[int, typer.Option(min=1, help="How many nodes to ask for.")],
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
    out: Runs = None,
) -> int:
    """Submit a job to Slurm, or show what would be submitted.

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        SlurmError: Slurm is not there, or does not take the job.
    """
    request = Request(nodes, partition, time, account, cpus_per_node)
    settings = [*(overrides or ()), f"distribution.hosts={request.nodes}"]
    settings += [f"experiment.name={json.dumps(name)}"] if name else []
    job = load_config(config, settings, request.cpus_per_node)
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
            sys.stderr.write(f"tianji: warning: {warning}\n")
        run.write_config(dump_config(job))
        write_new_key(run.path / "job.key")
        script = script_of(run.path)
        write_whole(script, batch_script(job, run.path, request, tianji).encode())
        number = submit(script)
    except BaseException:
        shutil.rmtree(run.path)  # It was not run, and will not be.
        raise
    sys.stdout.write(f"submitted job {number}: {script}\n")
    return 0

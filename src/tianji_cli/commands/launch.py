"""`tianji launch slurm`: makes a run directory, writes a batch script into it and submits it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory, write_whole
from tianji_cli.launch.slurm import Request, batch_script, require_slurm, script_of, submit
from tianji_cli.wire.keys import write_new_key


def launch_slurm(
    config: str,
    request: Request,
    *,
    overrides: Sequence[str] = (),
    name: str | None = None,
    out: Path | None = None,
    print_only: bool = False,
) -> int:
    """Submit a job to Slurm, or show what would be submitted.

    Args:
        config: path or name of the config.
        request: what to ask Slurm for.
        overrides: ``SECTION.KEY=VALUE`` settings that replace the config's.
        name: of the experiment, in place of the config's.
        out: directory for runs, in place of ``experiments``.
        print_only: print the script and make nothing.

    Returns:
        The exit status, 0.

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        SlurmError: Slurm is not there, or does not take the job.
    """
    settings = [*overrides, f"distribution.hosts={request.nodes}"]
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

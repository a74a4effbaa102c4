"""The batch script that runs a job under Slurm, from public commands, as a user would write it by hand.

With MPI, `srun` starts all ranks, each on the node where the plan has it. With any other engine the first
node trains and listens, and the others join it. An array of jobs, on a node each, shares the trials of a
sweep.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import TianjiError
from tianji_cli.plan.plan import Plan, expected_hosts, make_plan

WARNING_S: Final = 60
"""Seconds before the time limit at which Slurm tells a job to stop and save."""

HEADER: Final = """\
#!/bin/bash
# Written by `tianji launch slurm`. All nodes must see the directories below under the same paths.
{options}

run={run}
tianji={tianji}
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
"""

RANKS: Final = """\

# The node of each rank, as the plan has it: a group's ranks share one as far as there are as many groups.
export SLURM_HOSTFILE="$run/hosts"
for node in {hosts}; do echo "${{nodes[$node]}}"; done >"$SLURM_HOSTFILE"
srun --mpi=pmi2 --ntasks={processes} --distribution=arbitrary --overcommit --kill-on-bad-exit=1 \\
    "$tianji" train "$run/config.toml" --run "$run" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: the root saves and ends the job.
trap 'scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
"""

ONE_NODE: Final = """\

"$tianji" train "$run/config.toml" --run "$run" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: save, and end in order.
trap 'kill -TERM "$training"' TERM
"""

HOSTS: Final = """\

# This script runs on the first node, which trains and listens. The others join it with the job's key.
head=$(scontrol show node "${{nodes[0]}}" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
address="tcp://$head:$((20000 + SLURM_JOB_ID % 20000))"
"$tianji" train "$run/config.toml" --run "$run" --listen "$address" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: save, and end in order.
trap 'kill -TERM "$training"' TERM

# One that cannot take part ends the job: it would be waited for in vain.
others=$(IFS=,; echo "${{nodes[*]:1}}")
{{
    srun --mpi=none --nodes={others} --ntasks={others} --ntasks-per-node=1 --nodelist="$others" \\
        --cpus-per-task={cpus} --kill-on-bad-exit=1 "$tianji" join "$address" --key "$run/job.key" ||
        kill -TERM "$training" 2>/dev/null
}} &
"""

SWEEP: Final = """\
#!/bin/bash
# Written by `tianji launch slurm --sweep`. All nodes must see the directory below under the same path.
{options}

sweep={sweep}
{tianji} sweep "$sweep/sweep.toml" --out "$sweep" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: trials save, and wait for others to go on with them.
trap 'kill -TERM "$training"' TERM
"""

WAIT: Final = """\

# A signal interrupts `wait`, not the training. Its exit status is the job's, which ends with this script.
until wait "$training"; status=$?; ! kill -0 "$training" 2>/dev/null; do :; done
exit "$status"
"""


class SlurmError(TianjiError):
    """Slurm is missing, or does not take the job; the message holds its error output."""


@dataclass(frozen=True)
class Request:
    """Resources to request from Slurm.

    Attributes:
        partition: partition to queue in; Slurm's default if None.
        time: limit, in Slurm's notation.
        account: account to charge.
        cpus_per_node: CPUs of each node; as many as the plan puts to work on one if None.
    """

    nodes: int
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    cpus_per_node: int | None = None


def batch_script(job: JobConfig, run: Path, request: Request, tianji: Path) -> str:
    """Write the script of a job.

    Args:
        job: the job, whose ``distribution.hosts`` is the number of nodes.
        run: the run directory, on a file system that all nodes share.
        tianji: the command, on a file system that all nodes share.
    """
    plan = make_plan(job, expected_hosts(job))
    cpus = request.cpus_per_node or _busiest(plan)
    header = HEADER.format(
        options="\n".join(f"#SBATCH {option}" for option in _options(job, run, request, cpus)),
        run=shlex.quote(str(run)),
        tianji=shlex.quote(str(tianji)),
    )
    return header + _start(job, plan, request, cpus) + WAIT


def sweep_script(job: JobConfig, sweep: Path, array: int, request: Request, tianji: Path) -> str:
    """Write the script of a sweep.

    Args:
        job: config of each trial, apart from its parameters.
        sweep: directory of the sweep, on a file system that all nodes share.
        array: number of jobs that take part.
        tianji: the command, on a file system that all nodes share.
    """
    cpus = request.cpus_per_node or _busiest(make_plan(job, expected_hosts(job)))
    options = _options(job, sweep, request, cpus)
    options = [option.replace("slurm-%j.out", "slurm-%A-%a.out") for option in options]
    options.append(f"--array=0-{array - 1}")
    header = SWEEP.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        sweep=shlex.quote(str(sweep)),
        tianji=shlex.quote(str(tianji)),
    )
    return header + WAIT


def script_of(run: Path) -> Path:
    """Path of a run's script."""
    return run / "job.sbatch"


def require_slurm() -> None:
    """Make sure that jobs can be submitted from here.

    Raises:
        SlurmError: they cannot.
    """
    if shutil.which("sbatch") is None:
        raise SlurmError(
            "sbatch is not on this machine's PATH: launch from a login node of the cluster, "
            "or print the script with --print and submit it there"
        )


def submit(script: Path) -> int:
    """Submit a script.

    Returns:
        The job's number.

    Raises:
        SlurmError: Slurm does not take it.
    """
    command = ["sbatch", "--parsable", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SlurmError(done.stderr.strip() or f"sbatch ended with status {done.returncode}")
    # On a federation the cluster's name follows the number.
    return int(done.stdout.strip().partition(";")[0])


def _options(job: JobConfig, run: Path, request: Request, cpus: int) -> list[str]:
    options = {
        "job-name": job.experiment.name,
        "nodes": str(request.nodes),
        "mincpus": str(cpus),
        "partition": request.partition,
        "time": request.time,
        "account": request.account,
        "output": str(run / "logs" / "slurm-%j.out"),
        "signal": f"B:TERM@{WARNING_S}",
    }
    return [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value is not None]


def _busiest(plan: Plan) -> int:
    """Count the CPUs that the trainers of one node use, on the node with the most."""
    used: Counter[str] = Counter()
    for process in plan.trainers:
        used[process.host] += process.threads
    return max(used.values())


def _start(job: JobConfig, plan: Plan, request: Request, cpus: int) -> str:
    transport = job.distribution.transport
    if "mpi" in {transport.local, transport.remote if request.nodes > 1 else ""}:
        names = [host.name for host in expected_hosts(job)]
        hosts = " ".join(str(names.index(process.host)) for process in plan.processes)
        return RANKS.format(hosts=hosts, processes=len(plan.processes))
    if request.nodes == 1:
        return ONE_NODE
    return HOSTS.format(others=request.nodes - 1, cpus=cpus)

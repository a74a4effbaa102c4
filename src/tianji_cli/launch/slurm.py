"""The batch script that runs a job under Slurm, from public commands, as a user would write it by hand.

With MPI, `srun` starts all ranks, each on the node where the plan has it. With any other engine the first
node trains and listens, and the others join it. An array of jobs, on a node each, shares the trials of a
sweep.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import TianjiError
from tianji_cli.files.rundir import write_whole
from tianji_cli.plan.plan import Plan, cores_at_work, expected_hosts, make_plan

TIANJI: Final = Path(sys.executable).with_name("tianji")
"""The command, on a file system that all nodes share."""
WARNING_S: Final = 60
"""Seconds before the time limit at which Slurm tells a job to stop and save."""

HEADER: Final = """\
#!/bin/bash
# Written by `tianji launch slurm`. All nodes must see the directories below under the same paths.
{options}

{runs}
tianji={tianji}
nodes=({nodes})
{what}"""

NODES: Final = '$(scontrol show hostnames "$SLURM_JOB_NODELIST")'
NODES_OF_TWO_PARTITIONS: Final = """\
$(
    scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0"
    scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1"
)"""

NEW: Final = """\
what=("$run/config.toml" --run "$run")
"""
RESUMED: Final = """\
what=(--resume "$run"{settings})
rm -f "$run/job.key"
"""
REQUEUED: Final = """
# A job that Slurm has queued again goes on from its last checkpoint, or begins anew if there is none yet.
if [ -e "$run/checkpoints/last" ]; then
    what=(--resume "$run")
else
    rm -f "$run/metrics.jsonl" "$run/summary.json"
fi
rm -f "$run/job.key"
"""

RANKS: Final = """\

# The node of each rank, as the plan has it: a group's ranks share one as far as there are as many groups.
export SLURM_HOSTFILE="$run/hosts"
for node in {hosts}; do echo "${{nodes[$node]}}"; done >"$SLURM_HOSTFILE"
srun --mpi=pmi2 --ntasks={processes} --distribution=arbitrary --overcommit --kill-on-bad-exit=1 \\
    "$tianji" train "${{what[@]}}" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: the root saves and ends the job.
trap 'warned=1; scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM
"""

ONE_NODE: Final = """\

"$tianji" train "${what[@]}" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: save, and end in order.
trap 'warned=1; kill -TERM "$training"' TERM
"""

HOSTS: Final = """\

# This script runs on the first node, which trains and listens. The others join it with the job's key.
address=$(scontrol show node "${{nodes[0]}}" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
address="tcp://$address:$((20000 + SLURM_JOB_ID % 20000))"
"$tianji" train "${{what[@]}}" --listen "$address" &
training=$!

# Slurm's warning before the time limit is a Ctrl-C: save, and end in order.
trap 'warned=1; kill -TERM "$training"' TERM

# Each joins by itself, so that the training goes on without a node that is lost.
join() {{
    until [ -e "$run/job.key" ]; do kill -0 "$training" || return; sleep 1; done
    srun --mpi=none {step} --nodes=1 --ntasks=1 --nodelist="$1" --cpus-per-task={cpus} \\
        "$tianji" join "$address" --key "$run/job.key"{or_else}
}}
for node in "${{nodes[@]:1}}"; do join "$node" & done
"""

ENDS: Final = """ || {
        # Before it has begun, the training would wait in vain.
        [ "$run/sessions.jsonl" -nt "$run/job.key" ] || kill -TERM "$training" 2>/dev/null
    }"""

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
{requeue}exit "$status"
"""

REQUEUE: Final = """\
# It was stopped before it was over, and has saved: Slurm ends this script, and queues the job again.
if [ -n "$warned" ] && [ "$status" = 130 ] &&
    [[ $(scontrol show job "$SLURM_JOB_ID") != *JobState=CANCELLED* ]]; then
    scontrol requeue "$SLURM_JOB_ID" && exec sleep 60
fi
"""


class SlurmError(TianjiError):
    """Slurm is missing, or does not take the job; the message holds its error output."""


@dataclass(frozen=True)
class Request:
    """Resources and options of a job under Slurm.

    Attributes:
        partition: partition to queue in; Slurm's default if None.
        time: limit, in Slurm's notation.
        account: account to charge.
        cpus_per_node: CPUs of each node; as many as the plan puts to work on one if None.
        gpus: GPUs of each node, in Slurm's notation; with ``actor_partition`` of the first alone.
        actor_partition: partition of all nodes but the first: the job is heterogeneous.
        requeue: a job that was stopped or lost a node is queued again, and goes on.
        lines: further options of sbatch, as they are.
    """

    nodes: int
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    cpus_per_node: int | None = None
    qos: str | None = None
    gpus: str | None = None
    actor_partition: str | None = None
    requeue: bool = False
    lines: Sequence[str] = ()


def batch_script(
    job: JobConfig, runs: Sequence[Path], request: Request, resumed: Sequence[str] | None = None
) -> str:
    """Write the script of a job, or of an array of jobs that differ by their seed.

    Args:
        job: the job, whose ``distribution.hosts`` is the number of nodes.
        runs: the run directories, on a file system that all nodes share; several make an array.
        resumed: values of ``--set`` for a run that goes on; None for a new one.
    """
    plan = make_plan(job, expected_hosts(job))
    root, others = cores_at_work(plan)
    cpus = request.cpus_per_node or (max(root, others) if request.actor_partition is None else root)
    of_others = request.cpus_per_node or others
    names = " ".join(shlex.quote(str(run)) for run in runs)
    if resumed is None:
        what = NEW + (REQUEUED if request.requeue else "")
    else:
        what = RESUMED.format(settings="".join(f" --set {shlex.quote(setting)}" for setting in resumed))
    header = HEADER.format(
        options="\n".join(f"#SBATCH {option}" for option in _options(job, runs, request, cpus, of_others)),
        runs=f"run={names}" if len(runs) == 1 else f'runs=({names})\nrun="${{runs[$SLURM_ARRAY_TASK_ID]}}"',
        tianji=shlex.quote(str(TIANJI)),
        nodes=NODES if request.actor_partition is None else NODES_OF_TWO_PARTITIONS,
        what=what,
    )
    return header + _start(job, plan, request, of_others) + _wait(request)


def sweep_script(job: JobConfig, sweep: Path, array: int, request: Request) -> str:
    """Write the script of a sweep.

    Args:
        job: config of each trial, apart from its parameters.
        sweep: directory of the sweep, on a file system that all nodes share.
        array: number of jobs that take part.
    """
    plan = make_plan(job, expected_hosts(job))
    cpus = request.cpus_per_node or max(cores_at_work(plan))
    options = _common_options(job, request, cpus)
    options += [f"--output={shlex.quote(str(sweep / 'logs' / 'slurm-%A-%a.out'))}", f"--array=0-{array - 1}"]
    header = SWEEP.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        sweep=shlex.quote(str(sweep)),
        tianji=shlex.quote(str(TIANJI)),
    )
    return header + _wait(request)


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


def submit(script: Path, text: str) -> str:
    """Write a script and submit it.

    Returns:
        A line that names the job.

    Raises:
        SlurmError: Slurm does not take it.
    """
    write_whole(script, text.encode())
    command = ["sbatch", "--parsable", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SlurmError(done.stderr.strip() or f"sbatch ended with status {done.returncode}")
    # On a federation the cluster's name follows the number.
    return f"submitted job {done.stdout.strip().partition(';')[0]}: {script}\n"


def _common_options(job: JobConfig, request: Request, cpus: int) -> list[str]:
    options = {
        "job-name": job.experiment.name,
        "nodes": str(request.nodes if request.actor_partition is None else 1),
        "mincpus": str(cpus),
        "partition": request.partition,
        "time": request.time,
        "account": request.account,
        "qos": request.qos,
        "gpus-per-node": request.gpus,
        "signal": f"B:TERM@{WARNING_S}",
    }
    written = [f"--{name}={shlex.quote(value)}" for name, value in options.items() if value is not None]
    return [*written, *request.lines]


def _options(
    job: JobConfig, runs: Sequence[Path], request: Request, cpus: int, of_others: int
) -> Iterator[str]:
    yield from _common_options(job, request, cpus)
    if len(runs) > 1:
        yield f"--output={shlex.quote(str(runs[0].parent / 'slurm-%A-%a.out'))}"
        yield f"--array=0-{len(runs) - 1}"
    else:
        yield f"--output={shlex.quote(str(runs[0] / 'logs' / 'slurm-%j.out'))}"
    if request.requeue:
        yield "--requeue"
        yield "--open-mode=append"
    if _joins(job, request):
        yield "--no-kill"
    if request.actor_partition is not None:
        yield "hetjob"
        yield f"--nodes={request.nodes - 1}"
        yield f"--mincpus={of_others}"
        yield f"--partition={shlex.quote(request.actor_partition)}"


def _joins(job: JobConfig, request: Request) -> bool:
    """Whether other nodes join the first, without MPI."""
    transport = job.distribution.transport
    return request.nodes > 1 and "mpi" not in {transport.local, transport.remote}


def _start(job: JobConfig, plan: Plan, request: Request, cpus: int) -> str:
    if _joins(job, request):
        hosts = job.distribution.hosts
        step = "" if request.actor_partition is None else "--het-group=1"
        return HOSTS.format(cpus=cpus, step=step, or_else=" ||:" if hosts.varies else ENDS)
    transport = job.distribution.transport
    if "mpi" in {transport.local, transport.remote if request.nodes > 1 else ""}:
        names = [host.name for host in expected_hosts(job)]
        hosts_of_ranks = " ".join(str(names.index(process.host)) for process in plan.processes)
        return RANKS.format(hosts=hosts_of_ranks, processes=len(plan.processes))
    return ONE_NODE


def _wait(request: Request) -> str:
    return WAIT.format(requeue=REQUEUE if request.requeue else "")

"""`tianji launch`: submits a run or a sweep to Slurm, or a job to Kubernetes; trains with hosts of Ray."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.options import Config, ConfigToTrain, Name, Override, Resume
from tianji_cli.commands.seeds import numbers_of
from tianji_cli.commands.sweep import begin, check_installed, tree_of
from tianji_cli.config.loader import dump_config, fill_in_later_keys, resolve
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import Tree
from tianji_cli.errors import UsageError
from tianji_cli.files.campaigns import SweepDirectory
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.launch.extensions import collect_files
from tianji_cli.launch.kubernetes import Pods, apply, manifests
from tianji_cli.launch.ray import Resources, connect, train
from tianji_cli.launch.slurm import Request, batch_script, require_slurm, script_of, submit, sweep_script
from tianji_cli.telemetry.progress import say
from tianji_cli.wire.address import JobKey, write_new_key


def slurm(  # noqa: PLR0913 - the options of a command are its parameters
    config: ConfigToTrain = None,
    *,
    resume: Resume = None,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Queue it again when it is stopped or loses a node; it goes on.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(metavar="N|LIST", help="An array of jobs, one for each seed: 5, or 3,7,11.")
    ] = None,
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
    gpus: Annotated[
        str | None,
        typer.Option(metavar="[TYPE:]N", help="GPUs of each node; with --actor-partition: the first."),
    ] = None,
    actor_partition: Annotated[
        str | None, typer.Option(help="Where all nodes but the first come from, such as one without GPUs.")
    ] = None,
    qos: Annotated[str | None, typer.Option(help="Quality of service.")] = None,
    sbatch: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="An option of sbatch as it is; may be repeated."),
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
    request = Request(
        nodes=nodes or 1,
        partition=partition,
        time=time,
        account=account,
        cpus_per_node=cpus_per_node,
        qos=qos,
        gpus=gpus,
        actor_partition=actor_partition,
        requeue=requeue,
        lines=tuple(sbatch or ()),
    )
    _check_together(config, resume, seeds, array, request, sweep=sweep)
    settings, place = overrides or (), (out or DEFAULT_OUT).absolute()
    if sweep and config is not None:
        said = _launch_sweep(config, settings, name, out, array, request, print_only=print_only)
    elif resume is not None:
        run = RunDirectory.find(resume, place)
        said = _go_on(run, settings, nodes, name, request, print_only=print_only)
    else:
        job, request = _for_nodes(tree_of(str(config), settings, name), nodes, request)
        numbers = [job.experiment.seed] if seeds is None else numbers_of(seeds, job.experiment.seed)
        said = _begin([_with_seed(job, seed) for seed in numbers], place, request, print_only=print_only)
    sys.stdout.write(said)
    return 0


def _for_nodes(tree: Tree, nodes: int | None, request: Request) -> tuple[JobConfig, Request]:
    """Resolve a config for the nodes to ask for, and ask for as many as it has hosts.

    Raises:
        UsageError: there is one node, and others are to come from a partition of their own.
    """
    if nodes is not None:
        tree.assign(("distribution", "hosts"), nodes, "--nodes")
    job = resolve(tree, request.cpus_per_node)
    if request.actor_partition is not None and job.distribution.hosts.max == 1:
        raise UsageError("--actor-partition is where the nodes beside the first come from, and there is one")
    return job, replace(request, nodes=job.distribution.hosts.max)


def _go_on(
    run: RunDirectory,
    overrides: Sequence[str],
    nodes: int | None,
    name: str | None,
    request: Request,
    *,
    print_only: bool,
) -> str:
    """Submit a job that goes on with a run; return what to say of it, or the script."""
    run.check()  # The run's config names modules that will run.
    tree = tree_of(str(run.config), overrides, name)
    fill_in_later_keys(tree)
    job, request = _for_nodes(tree, nodes, request)
    settings = [*overrides, *([] if nodes is None else [f"distribution.hosts={nodes}"])]
    place = run.path.absolute()
    script = batch_script(job, [place], request, settings)
    if print_only:
        return script
    require_slurm()
    return submit(script_of(place), script)


def _begin(jobs: Sequence[JobConfig], place: Path, request: Request, *, print_only: bool) -> str:
    """Submit new runs of jobs that differ by their seed; return what to say of it, or the script."""
    if print_only:
        first = RunDirectory.next(jobs[0].experiment.name, place).path
        paths = [first.with_name(str(int(first.name) + more)) for more in range(len(jobs))]
        return batch_script(jobs[0], paths, request)
    require_slurm()
    runs = []
    try:
        for job in jobs:
            run = RunDirectory.create(job.experiment.name, place)
            runs.append(run)
            run.write_config(dump_config(job))
            write_new_key(run.path / "job.key")
        for warning in runs[0].check():
            say(f"warning: {warning}")
        paths = [run.path for run in runs]
        return submit(script_of(paths[0]), batch_script(jobs[0], paths, request))
    except BaseException:
        for run in runs:
            shutil.rmtree(run.path)  # The job was not submitted, so the run never begins.
        raise


def _check_together(
    config: str | None, resume: str | None, seeds: str | None, array: int, request: Request, *, sweep: bool
) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: the message has a remedy.
    """
    if (config is None) == (resume is None):
        raise UsageError("name a config to train, or a run to go on with (--resume RUN), and not both")
    if array > 1 and not sweep:
        raise UsageError("--array goes with --sweep, whose jobs share the trials; --seeds makes one of seeds")
    if seeds is not None and (resume is not None or sweep):
        raise UsageError("--seeds begins new runs, one for each seed: without --resume and --sweep")
    if sweep and (resume is not None or request.requeue):
        raise UsageError("a sweep goes on in each job that takes part: sbatch its script once more")
    if request.actor_partition is not None and (sweep or seeds is not None):
        raise UsageError("--actor-partition makes a heterogeneous job, of which Slurm has no arrays: one run")


def _with_seed(job: JobConfig, seed: int) -> JobConfig:
    return job.model_copy(update={"experiment": job.experiment.model_copy(update={"seed": seed})})


def _launch_sweep(
    config: str,
    overrides: Sequence[str],
    name: str | None,
    out: Path | None,
    array: int,
    request: Request,
    *,
    print_only: bool,
) -> str:
    """Submit the jobs of a sweep; return what to say of it, or the script."""
    if request.nodes > 1:
        raise UsageError("each trial of a sweep is on one node: --array says how many nodes share the trials")
    check_installed()
    from tianji_cli.runs.sweep.space import plan_sweep  # noqa: PLC0415 - only this needs it

    plan = plan_sweep(tree_of(config, overrides, name), None)
    if print_only:
        place = out or SweepDirectory.next(plan.job.experiment.name)
        return sweep_script(plan.job, place.absolute(), array, request)
    require_slurm()
    if out is not None and SweepDirectory(out).is_there:
        raise UsageError(f"{out} has a sweep already: sbatch {script_of(out)} has more jobs take part")
    directory = begin(plan, out)
    try:
        (directory.path / "logs").mkdir()
        script = script_of(directory.path.absolute())
        return submit(script, sweep_script(plan.job, script.parent, array, request))
    except BaseException:
        shutil.rmtree(directory.path)  # The job was not submitted, so there are no trials.
        raise


def k8s(  # noqa: PLR0913 - the options of a command are its parameters
    config: Config,
    *,
    image: Annotated[str, typer.Option(help="Image with tianji and what the environment needs.")],
    hosts: Annotated[
        str | None,
        typer.Option(metavar="N|MIN-MAX", help="Pods, as 4 or 1-8; distribution.hosts by default."),
    ] = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the manifests, and apply none.")] = False,
    shm: Annotated[str, typer.Option(metavar="SIZE", help="Shared memory of each pod.")] = "1Gi",
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Memory of each pod.")] = None,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each pod.")] = 0,
    claim: Annotated[
        str | None,
        typer.Option(help="PersistentVolumeClaim for the run (ReadWriteMany); else it goes with its pod."),
    ] = None,
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each pod; what the plan uses by default.")
    ] = None,
    overrides: Override = None,
    name: Name = None,
) -> int:
    """Write the manifests of a job for Kubernetes, and apply them by kubectl.

    Example: tianji launch k8s ppo_cartpole --hosts 1-8 --image registry.example/tianji --print

    Raises:
        UsageError: the command does not fit together; ConfigError: the config cannot be run.
        RunFailed: kubectl does not take them.
    """
    job = _for_hosts(tree_of(config, overrides or (), name), hosts, cpus_per_node)
    pods = Pods(image, shm, memory, gpus, claim)
    title = job.experiment.name.replace("_", "-").lower()
    text = manifests(job, title, collect_files(job), pods, JobKey.new())
    if print_only:
        sys.stdout.write(text)
        return 0
    apply(text)
    return 0


def ray(
    config: Config,
    *,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="N|MIN-MAX", help="Hosts, as 4 or 1-8; distribution.hosts by default."),
    ] = None,
    address: Annotated[str, typer.Option(help="Address of the cluster: auto, or HOST:PORT.")] = "auto",
    cpus_per_node: Annotated[
        int | None, typer.Option(min=1, help="CPUs of each host; what the plan uses by default.")
    ] = None,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of each host but this one.")] = 0.0,
    overrides: Override = None,
    name: Name = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Runs are in DIR, not experiments/.")
    ] = None,
) -> int:
    """Train on this host, with others that a Ray cluster gives.

    Example: tianji launch ray ppo_cartpole --hosts 1-8

    Returns:
        The exit status of `tianji train`.

    Raises:
        UsageError: there is no Ray, or one host alone; ConfigError: the config cannot be run.
    """
    job = _for_hosts(tree_of(config, overrides or (), name), hosts, cpus_per_node)
    if job.distribution.hosts.max == 1:
        raise UsageError("one host needs no Ray: --hosts 1-8 asks for up to seven others")
    place = (out or DEFAULT_OUT).absolute()
    return train(connect(address), job, place, Resources(cpus_per_node, gpus), say)


def _for_hosts(tree: Tree, hosts: str | None, cpus_per_node: int | None) -> JobConfig:
    """Resolve a config for hosts that other jobs may share; ``hosts`` is as in ``--hosts``."""
    if hosts is not None:
        tree.assign(("distribution", "hosts"), _range_of(hosts), "--hosts")
    distribution = tree.values.setdefault("distribution", {})
    unset = isinstance(distribution, dict) and "pin_cores" not in distribution
    job = resolve(tree, cpus_per_node)
    if unset and not job.distribution.names_cores(job.roles):  # Others may be on the same node.
        job = job.model_copy(
            update={"distribution": job.distribution.model_copy(update={"pin_cores": False})}
        )
    return job


def _range_of(text: str) -> dict[str, int]:
    """Read ``--hosts``.

    Raises:
        UsageError: it is neither a number nor a range.
    """
    least, dash, most = text.partition("-")
    numbers = [least, most if dash else least]
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise UsageError(f"--hosts {text} is neither a number, as 4, nor a range, as 1-8")
    return {"min": int(numbers[0]), "max": int(numbers[1])}

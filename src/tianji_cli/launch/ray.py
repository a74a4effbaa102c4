"""A job's hosts on Ray: the root trains where the command runs, and tasks on other nodes join it.

Ray finds the nodes. A task that finds no room waits, which tells an autoscaler to bring a node; one whose
node is lost runs again where there is room, and takes an empty seat. Ray carries the job's key and the hosts'
output, and nothing of a sample.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.loader import dump_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, UsageError, describe
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import bound_command, python_command
from tianji_cli.plan.plan import ROOT_RANK, busiest, expected_hosts, make_plan
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.wire.address import JobKey, free_port, write_new_key

AGAIN_S: Final = 5.0
"""Seconds after which a host that could not join, or has given the root up, tries again."""
LONG_S: Final = 1e8
"""Longer than any job. Ray interrupts a task between two calls, and only a wait with a limit makes some."""
ANSWER_S: Final = 5.0
"""Seconds in which the cluster has to answer."""
END_S: Final = 10.0
"""Seconds in which tasks have to end when the training is over."""
PATIENCE_S: Final = 5.0
"""Seconds without the root's cores after which the command says that it waits for them."""


@dataclass(frozen=True)
class Resources:
    """Resources of each host.

    Attributes:
        cpus: of each host; as many as the plan puts to work on one if None.
        gpus: of each host beside the root's.
    """

    cpus: int | None = None
    gpus: float = 0.0


def connect(address: str) -> Any:
    """Connect to a Ray cluster; return the package.

    Raises:
        UsageError: there is no Ray here, or none at the address.
    """
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as cause:
        raise UsageError("tianji launch ray needs Ray: pip install 'tianji[ray]'") from cause
    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), ANSWER_S).close()
        ray.init(address, logging_level="warning")
    except (OSError, OverflowError, RuntimeError, ValueError) as cause:
        raise UsageError(
            f"no Ray cluster at {address} ({describe(cause)}): ray start --head begins one here, "
            "and --address HOST:PORT names another"
        ) from cause
    return ray


def train(ray: Any, job: JobConfig, out: Path, each: Resources, say: Callable[[str], None]) -> int:
    """Train in a new run directory below ``out``, with hosts of a cluster, until the training is over.

    Args:
        say: shows the user a message.

    Returns:
        The exit status of `tianji train`.
    """
    plan = make_plan(job, expected_hosts(job))
    hosts, first = set(plan.hosts.values()), {plan.hosts[ROOT_RANK]}
    here = ray.util.get_node_ip_address()
    address = f"tcp://{here}:{free_port(here)}"
    root = _keep_cores(ray, each.cpus or busiest(plan, first), say)
    run = RunDirectory.create(job.experiment.name, out)
    run.write_config(dump_config(job))
    place = run.path.absolute()
    key = write_new_key(place / "job.key")
    command = python_command("tianji_cli", "train", str(run.config), "--run", str(place), "--listen", address)
    for number in STOP_SIGNALS:  # Not SIG_IGN, which the training would inherit.
        signal.signal(number, lambda _number, _frame: None)
    training = subprocess.Popen(bound_command(command, signal.SIGTERM))
    for number in (signal.SIGTERM, signal.SIGHUP):  # A Ctrl-C reaches it through the terminal.
        signal.signal(number, lambda number, _frame: training.send_signal(number))
    needs = {"num_cpus": each.cpus or busiest(plan, hosts - first), "num_gpus": each.gpus}
    host = ray.remote(take_part).options(max_retries=-1, scheduling_strategy="SPREAD", **needs)
    others = [host.remote(address, key.public, key.secret) for _ in range(job.distribution.hosts.max - 1)]
    status = training.wait()
    _end(ray, others)
    ray.kill(root)
    ray.shutdown()
    return status


def _end(ray: Any, tasks: Sequence[Any]) -> None:
    """End tasks: those that are still there after ``END_S`` by force."""
    for task in tasks:
        ray.cancel(task)
    _, left = ray.wait(tasks, num_returns=len(tasks), timeout=END_S)
    for task in left:
        ray.cancel(task, force=True)


def take_part(address: str, public: str, secret: str) -> None:
    """Join a job from this node, again and again until Ray ends this task: it is over when its root is.

    Raises:
        RunFailed: the root refuses this host, as one with another version.
    """
    with temporary_directory("tianji-ray-") as place:
        key = place / "job.key"
        JobKey(public, secret).write(key)
        command = python_command("tianji_cli", "join", address, "--key", str(key))
        while (status := _run(command)) != UsageError.exit_status:
            time.sleep(AGAIN_S if status else 0.0)
    raise RunFailed(f"{address} refuses this host; its output says why")


def _run(command: Sequence[str]) -> int:
    """Run a command; if Ray ends this task meanwhile, the command ends in order."""
    with subprocess.Popen(bound_command(command, signal.SIGTERM)) as joined:
        try:
            return joined.wait(LONG_S)
        finally:
            joined.terminate()


class RootCores:
    """Keeps the cores of the root's host for it: Ray gives them to no task meanwhile."""

    def are_kept(self) -> bool:
        """Answer as soon as Ray has given them."""
        return True


def _keep_cores(ray: Any, cores: int, say: Callable[[str], None]) -> Any:
    """Take cores of this node for the root, as many as it has; return the Ray actor that holds them."""
    here = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == here)
    cpus = min(float(cores), node["Resources"].get("CPU", 0.0))
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    kept = ray.remote(RootCores).options(num_cpus=cpus, scheduling_strategy=affinity).remote()
    answer = kept.are_kept.remote()
    if not ray.wait([answer], timeout=PATIENCE_S)[0]:
        say(f"waiting for {cpus:g} CPUs of this node, which other tasks of Ray have")
    ray.get(answer)
    return kept

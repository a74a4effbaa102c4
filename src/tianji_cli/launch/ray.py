"""A job's hosts on Ray: the root trains where the command runs, and tasks on other nodes join it.

Ray finds the nodes. A task that finds no room waits, which tells an autoscaler to bring a node; one whose
node is lost runs again where there is room, and takes an empty seat. Ray carries the job's key and the hosts'
output, and nothing of a sample.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.loader import dump_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError, describe
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import bound_command, python_command
from tianji_cli.plan.plan import Plan, cores_at_work, expected_hosts, make_plan
from tianji_cli.signals import STOP_SIGNALS, raise_signals
from tianji_cli.wire.address import JobKey, free_port, write_new_key

RETRY_S: Final = 5.0
"""Seconds after which a host that could not join, or was dismissed, tries again."""
WAIT_LIMIT_S: Final = 1e8
"""Longer than any job. ``Popen.wait`` polls if it has a limit, and Ray interrupts only between two polls."""
CONNECT_LIMIT_S: Final = 5.0
"""Seconds in which the cluster has to answer."""
CANCEL_LIMIT_S: Final = 10.0
"""Seconds in which tasks have to end when the training is over."""
NOTICE_S: Final = 5.0
"""Seconds without the root's cores after which the command says that it waits for them."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the tasks."""


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
    """Connect to the Ray cluster that this machine is a node of; return the package.

    Raises:
        UsageError: there is no Ray here, or none at the address.
    """
    path = [*sys.path]
    try:
        import ray  # noqa: PLC0415 - an extra
    except ImportError as cause:
        raise UsageError("tianji launch ray needs Ray: pip install 'tianji[ray]'") from cause
    finally:
        sys.path[:] = path  # Ray puts packages of its own first, which processes of the job would take.
    if "://" in address:
        raise UsageError(f"--address {address}: the root trains here, so this has to be a node: HOST:PORT")
    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdecimal():  # Ray itself would try for minutes.
            socket.create_connection((host, int(port)), CONNECT_LIMIT_S).close()
    except (OSError, OverflowError) as cause:
        raise UsageError(f"no Ray cluster at {address}: {describe(cause)}") from cause
    try:
        ray.init(address, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as cause:
        begins = "--head begins one here" if address == "auto" else f"--address {address} makes it one"
        raise UsageError(
            f"this is no node of a Ray cluster ({describe(cause)}): ray start {begins}"
        ) from cause
    raise_signals()  # Ray has taken SIGTERM.
    return ray


def train(ray: Any, job: JobConfig, out: Path, per_host: Resources, say: Callable[[str], None]) -> int:
    """Train in a new run directory below ``out``, with hosts of a cluster, until the training is over.

    Args:
        per_host: resources of each host.
        say: shows the user a message.

    Returns:
        The exit status of `tianji train`.
    """
    plan = make_plan(job, expected_hosts(job))
    of_root, of_others = (per_host.cpus or cores for cores in cores_at_work(plan))
    root = _keep_root(ray, plan, of_root, say)
    here = ray.util.get_node_ip_address()
    address = f"tcp://{here}:{free_port(here)}"
    run = RunDirectory.create(job.experiment.name, out)
    place = run.path.absolute()
    try:
        run.write_config(dump_config(job))
        key = write_new_key(place / "job.key")
        needs = {"num_cpus": of_others, "num_gpus": per_host.gpus}
        host = ray.remote(take_part).options(max_retries=-1, scheduling_strategy="SPREAD", **needs)
        command = ("train", str(run.config), "--run", str(place), "--listen", address)
        with subprocess.Popen(
            bound_command(python_command("tianji_cli", *command), signal.SIGTERM)
        ) as training:
            try:
                _forward_signals(training)
                others = job.distribution.hosts.max - 1
                tasks = [host.remote(address, key.public, key.secret) for _ in range(others)]
                status = _watch(ray, training, tasks, say)
            finally:
                training.terminate()
        _cancel(ray, tasks)
    finally:
        (place / "job.key").unlink(missing_ok=True)
        if not run.sessions.exists():
            shutil.rmtree(place)  # The run never began.
        ray.kill(root)
        ray.shutdown()
    return status if status >= 0 else 128 - status


def _forward_signals(training: subprocess.Popen[bytes]) -> None:
    """Forward the signals that ask to stop, except those that this command was started to ignore."""
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: training.send_signal(number))


def _watch(
    ray: Any, training: subprocess.Popen[bytes], tasks: Sequence[Any], say: Callable[[str], None]
) -> int:
    """Wait for a training's end, and return its status; say why tasks fail, as on a node without tianji."""
    pending = list(tasks)
    while True:
        try:
            return training.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            failed = ray.wait(pending, num_returns=len(pending), timeout=0)[0] if pending else []
        for task in failed:
            pending.remove(task)
            try:
                ray.get(task)
            except ray.exceptions.RayError as cause:
                say(f"one host fewer can join: {describe(cause)}")


def _cancel(ray: Any, tasks: Sequence[Any]) -> None:
    """End tasks, by force those that are still there after ``CANCEL_LIMIT_S``."""
    for task in tasks:
        ray.cancel(task)
    _, left = ray.wait(list(tasks), num_returns=len(tasks), timeout=CANCEL_LIMIT_S)
    for task in left:
        ray.cancel(task, force=True)


def take_part(address: str, public: str, secret: str) -> None:
    """Join the job from this node, and rejoin until Ray cancels this task."""
    with temporary_directory("tianji-host-") as place:
        key = place / "job.key"
        JobKey(public, secret).write(key)
        command = python_command("tianji_cli", "join", address, "--key", str(key))
        while True:
            _run(command)
            time.sleep(RETRY_S)


def _run(command: Sequence[str]) -> None:
    """Run a command, which ends with this task.

    It is killed, so that the root sees a lost host: a SIGTERM would be the user's wish to end the job.
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # Ray's.
    with subprocess.Popen(bound_command(command, signal.SIGKILL), env=environment) as joined:
        try:
            joined.wait(WAIT_LIMIT_S)
        finally:
            joined.kill()


class RootResources:
    """Keeps cores and GPUs of the root's host for it: Ray gives them to no task meanwhile."""

    def ready(self) -> bool:
        """Return once Ray has scheduled this actor."""
        return True


def _keep_root(ray: Any, plan: Plan, cores: int, say: Callable[[str], None]) -> Any:
    """Take cores and GPUs of this node for the root, as far as it has them; return the Ray actor for it."""
    here = ray.get_runtime_context().get_node_id()
    (node,) = (node for node in ray.nodes() if node["NodeID"] == here)
    devices = {process.device for process in plan.processes if plan.is_local(process.rank)}
    wanted = {"CPU": float(cores), "GPU": float(sum(device.startswith("cuda") for device in devices))}
    cpus, gpus = (min(wanted[kind], node["Resources"].get(kind, 0.0)) for kind in ("CPU", "GPU"))
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(here, soft=False)
    options = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": affinity}
    kept = ray.remote(RootResources).options(**options).remote()
    answer, said, began_s = kept.ready.remote(), False, time.monotonic()
    while not ray.wait([answer], timeout=LOOK_S)[0]:
        if not said and time.monotonic() - began_s > NOTICE_S:
            said = True
            say(f"waiting for {cpus:g} CPUs of this node, which other tasks of Ray have")
    ray.get(answer)
    return kept

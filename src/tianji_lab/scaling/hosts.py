"""Runs a training over several hosts: this host trains and listens, and a command makes each other host join.

The command is the user's way to another host, such as ``ssh HOST``. It starts `tianji join` there, with the
key that this host has written, on a file system that all hosts see.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tianji_cli.errors import RunFailed, UsageError, os_errors_as
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import Child, supervised, wait_for_exit
from tianji_cli.plan.plan import this_host
from tianji_cli.quantities import several
from tianji_cli.root.session import KEY_FILE, PRODUCTION_FILE
from tianji_cli.runs.campaign import training_command
from tianji_cli.wire.address import free_port, is_loopback, own_address, resolve
from tianji_lab.training import END_S

SSH: Final = "ssh -o BatchMode=yes {host}"
"""Default way to another host. Without BatchMode ssh would ask for a password, with no terminal to ask at."""
SRUN: Final = "srun --mpi=none --overlap -N1 -n1 {cpus}-w {host}"
HOST: Final = "{host}"
LOOK_S: Final = 0.05
"""Seconds between two looks for a training's files: its key, and the one it makes when all hosts joined."""
ARRIVE_S: Final = 120.0
"""Maximum seconds until all other hosts have joined a training."""
LIST_S: Final = 30.0
"""Maximum seconds in which Slurm has to list the nodes of an allocation."""
WAY: Final = '"ssh {host}" is one'


@dataclass(frozen=True)
class Others:
    """Hosts of a training beside this one.

    Attributes:
        join_with: command that runs another command on a host; the host's name replaces ``{host}``.
        address: of this host, for the others.
    """

    names: tuple[str, ...]
    join_with: str
    address: str

    def join(self, host: str, address: str, key: Path) -> list[str]:
        """Build the command that makes a host join."""
        way = [word.replace(HOST, host) for word in shlex.split(self.join_with)]
        tianji = Path(sys.executable).with_name("tianji")
        words = [str(tianji), "join", address, "--key", str(key), "--quiet"]
        # ssh passes the words to a shell on the other host.
        return way + ([shlex.quote(word) for word in words] if Path(way[0]).name == "ssh" else words)


def others_of(
    names: Sequence[str] | None,
    join_with: str | None,
    listen: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Others | None:
    """Find the hosts that take part beside this one.

    Args:
        names: the user's; None for the other nodes of a Slurm allocation, if there is one.
        join_with: the user's way to a host; None for Slurm's inside an allocation, and ssh elsewhere.
        listen: name or address of this host for the others; None finds one.

    Raises:
        UsageError: the user's way names no command, or Slurm does not list the allocated nodes.
    """
    nodelist = environment.get("SLURM_JOB_NODELIST")
    is_allocated = nodelist is not None and int(environment.get("SLURM_JOB_NUM_NODES", "1")) > 1
    if names is None and nodelist is not None and is_allocated:
        nodes = _nodes(nodelist)
        names = [node for node in nodes if node != this_host().name]
    if not names:
        if join_with is not None:
            raise UsageError("--join-with is the way to other hosts, and there are none; --hosts names them")
        return None
    if len(set(names)) < len(names):
        raise UsageError(f"--hosts {','.join(names)} names a host twice")
    cpus = environment.get("SLURM_CPUS_ON_NODE")
    # A step of Slurm gets one CPU of a node unless it asks for more.
    slurm = SRUN.replace("{cpus}", f"--cpus-per-task={cpus} " if cpus else "")
    way = join_with or (slurm if is_allocated else SSH)
    _check_way(way, names)
    address = resolve(listen) if listen is not None else own_address()
    if is_loopback(address) and listen is None:
        raise UsageError("no other host reaches this one: it has no address but loopback; --listen names one")
    return Others(tuple(names), way, address)


def _check_way(way: str, names: Sequence[str]) -> None:
    """Refuse a way to other hosts that is no command, or that leads to one host only."""
    try:
        words = shlex.split(way)
    except ValueError as cause:
        raise UsageError(f"--join-with {way!r} is no command: {cause}; {WAY}") from cause
    if not words:
        raise UsageError(f"--join-with {way!r} names no command; {WAY}")
    if len(names) > 1 and not any(HOST in word for word in words):
        raise UsageError(
            f"--join-with {way!r} leads to the same place for {several(len(names), 'host')}; {WAY}"
        )


def train_over_hosts(
    config: str, overrides: Sequence[str], *, others: Others, name: str, place: Path
) -> RunDirectory:
    """Run `tianji train` to its end, with other hosts.

    Args:
        config: path or name of the config, whose ``distribution.hosts`` counts all hosts.

    Returns:
        The run's directory.

    Raises:
        RunFailed: the training failed or was stopped, or a host did not take part.
    """
    run = RunDirectory.create(name, place.absolute())
    key = run.path / KEY_FILE
    address = f"tcp://{others.address}:{free_port(others.address)}"
    options = ("--name", name, "--run", str(run.path), "--listen", address, "--quiet")
    children: list[Child] = []
    with supervised(children, END_S):
        training = _start(training_command(overrides, config, *options))
        children.append(training)
        if _wait_for_key(training, key):
            for host in others.names:
                children.append(_start(others.join(host, address, key)))  # noqa: PERF401 - those that began are to be ended
            failed = _gather(training, children[1:], run.path / PRODUCTION_FILE, others)
            failed = failed or _wait(training, children[1:])
            if failed is not None:
                host = others.names[children.index(failed) - 1]
                raise RunFailed(f"host {host} did not take part:\n{failed.wait().last_words}")
        exit_ = training.wait()
    if exit_.status != 0:
        raise RunFailed(f"a training of {name} failed:\n{exit_.last_words}")
    return run


def _start(command: Sequence[str]) -> Child:
    with os_errors_as(RunFailed, f"cannot run {command[0]}"):
        return Child(command)


def _wait_for_key(training: Child, key: Path) -> bool:
    """Wait until a training has written its key; returns False if it ends before."""
    while not key.exists():
        if wait_for_exit([training], LOOK_S):
            return False
    return True


def _gather(training: Child, joined: Sequence[Child], begun: Path, others: Others) -> Child | None:
    """Wait until a training has all its hosts; returns the first joining process that ends before.

    Args:
        begun: the file that the training makes when all hosts are there.

    Raises:
        RunFailed: the hosts take too long.
    """
    deadline = time.monotonic() + ARRIVE_S
    while not begun.exists():
        ended = wait_for_exit([training, *joined], LOOK_S)
        if ended:
            return None if training in ended else ended[0]
        if time.monotonic() > deadline:
            raise RunFailed(
                f"{', '.join(others.names)}: not all of them have joined within {ARRIVE_S:g} s; "
                f"{others.join_with!r} has to run a command there that reaches {others.address}"
            )
    return None


def _wait(training: Child, joined: Sequence[Child]) -> Child | None:
    """Wait for the end of a training; returns the first joining process that fails before."""
    running = list(joined)
    while training not in (ended := wait_for_exit([training, *running], None)):
        for child in ended:
            running.remove(child)
            if child.wait().status != 0:
                return child
    return None


def _nodes(nodelist: str) -> list[str]:
    """Have Slurm expand a list of nodes such as ``n[1-4]``.

    Raises:
        UsageError: Slurm does not list the nodes.
    """
    command = ["scontrol", "show", "hostnames", nodelist]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIST_S)
    except (OSError, subprocess.SubprocessError) as cause:
        raise UsageError(f"scontrol does not list the nodes of {nodelist}; --hosts names them") from cause
    return completed.stdout.split()

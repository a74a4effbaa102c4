"""A training over several hosts: this one trains and listens, and a command brings each of the others in.

That command is the user's way to another host, such as ``ssh HOST``; what it starts there is `tianji join`,
with the key that this host has written, on a file system that all of them see.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from tianji_cli.bench.training import END_S, training_command
from tianji_cli.cluster.children import end_groups, end_with_parent, last_lines
from tianji_cli.cluster.interfaces import is_loopback, own_address, resolve
from tianji_cli.cluster.plan import this_host
from tianji_cli.cluster.session import KEY_FILE
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.telemetry.rundir import RunDirectory

SSH: Final = "ssh {host}"
SRUN: Final = "srun --mpi=none --overlap -N1 -n1 {cpus}-w {host}"
HOST: Final = "{host}"
LOOK_MS: Final = 50
"""Between two looks for the key that a training writes."""
LIST_S: Final = 30.0
"""How long Slurm may take to list the nodes of an allocation."""


@dataclass(frozen=True)
class Others:
    """The hosts beside this one.

    Attributes:
        names: of them.
        join_with: command that runs another on a host, whose name takes the place of ``{host}``.
        address: where they reach this host.
    """

    names: tuple[str, ...]
    join_with: str
    address: str

    def join(self, host: str, address: str, key: Path) -> list[str]:
        """Command that has a host join.

        Args:
            host: its name.
            address: of the training's control channel.
            key: the file with the training's key.
        """
        way = [word.replace(HOST, host) for word in shlex.split(self.join_with)]
        tianji = Path(sys.executable).with_name("tianji")
        words = [str(tianji), "join", address, "--key", str(key), "--quiet"]
        # What ssh starts goes through a shell there.
        return way + ([shlex.quote(word) for word in words] if Path(way[0]).name == "ssh" else words)


def others_of(
    names: Sequence[str] | None,
    join_with: str | None,
    listen: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Others | None:
    """Find out which hosts take part beside this one.

    Args:
        names: as the user names them; None for the other nodes of a Slurm allocation, where there is one.
        join_with: the user's way to a host; None for Slurm's inside an allocation, and ssh elsewhere.
        listen: name or address where they reach this host; None finds one.
        environment: variables of the process.

    Raises:
        UsageError: the user's way names no command, or Slurm does not say what was allocated.
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
    # A step gets one CPU of a node unless it asks for more.
    slurm = SRUN.replace("{cpus}", f"--cpus-per-task={cpus} " if cpus else "")
    way = join_with or (slurm if is_allocated else SSH)
    if not shlex.split(way):
        raise UsageError('--join-with "" names no command; "ssh {host}" is one')
    address = resolve(listen) if listen is not None else own_address()
    if is_loopback(address) and listen is None:
        raise UsageError("no other host reaches this one: it has no address but loopback; --listen names one")
    return Others(tuple(names), way, address)


def train_over_hosts(
    config: str, overrides: Sequence[str], others: Others, *, name: str, place: Path
) -> RunDirectory:
    """Run `tianji train` to its end, with other hosts.

    Args:
        config: path or name of the config, whose ``distribution.hosts`` counts all of them.
        overrides: ``SECTION.KEY=VALUE`` settings.
        others: the hosts beside this one.
        name: of the experiment.
        place: where its run directory is made.

    Returns:
        The run's directory.

    Raises:
        RunFailed: it failed, a host did not take part, or somebody stopped it.
    """
    run = RunDirectory.create(name, place.absolute())
    key = run.path / KEY_FILE
    address = f"tcp://{others.address}:{_free_port(others.address)}"
    options = ("--name", name, "--run", str(run.path), "--listen", address, "--quiet")
    with ExitStack() as stack:
        training = _Child(training_command(config, overrides, *options), stack)
        children = [training]
        try:
            _wait_for_key(training, key)
            for host in others.names:
                children.append(_Child(others.join(host, address, key), stack))  # noqa: PERF401 - those that began are to be ended
            failed = _wait(training, children[1:])
        except BaseException:
            _end(children)
            raise
        if failed is not None:
            _end(children)
            who = others.names[children.index(failed) - 1]
            raise RunFailed(f"host {who} did not take part:\n{failed.last_words}")
        end_groups([child.process for child in children], END_S)
        if training.process.returncode != 0:
            raise RunFailed(f"a training of {name} failed:\n{training.last_words}")
    return run


class _Child:
    """A process that this one has started, and what it says."""

    def __init__(self, command: Sequence[str], stack: ExitStack) -> None:
        self._errors: IO[bytes] = TemporaryFile()  # noqa: SIM115 - the stack closes it
        stack.callback(self._errors.close)
        try:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                process_group=0,
                preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - no thread is there
            )
        except OSError as cause:
            raise RunFailed(f"cannot run {command[0]}: {cause.strerror}") from cause
        self.descriptor = os.pidfd_open(self.process.pid)
        stack.callback(os.close, self.descriptor)

    @property
    def has_succeeded(self) -> bool:
        """Whether it exited with 0; it has ended, and its number stays its own."""
        ended = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return ended is not None and (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)

    @property
    def last_words(self) -> str:
        """The last lines that it wrote to its standard error; its status if there are none."""
        return "\n".join(last_lines(self._errors) or [f"exit status {self.process.returncode}"])


def _wait_for_key(training: _Child, key: Path) -> None:
    """Wait until a training has written its key; one that ends before that is found out by ``_wait``."""
    poller = select.poll()
    poller.register(training.descriptor, select.POLLIN)
    while not key.exists() and not poller.poll(LOOK_MS):
        pass


def _wait(training: _Child, joined: Sequence[_Child]) -> _Child | None:
    """Wait for the end of a training; give the first other process that fails before."""
    poller = select.poll()
    by_descriptor = {child.descriptor: child for child in (training, *joined)}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    while True:
        ended = [by_descriptor[descriptor] for descriptor, _ in poller.poll()]
        if training in ended:
            return None
        for child in ended:
            poller.unregister(child.descriptor)
            if not child.has_succeeded:
                return child


def _end(children: Sequence[_Child]) -> None:
    for child in children:
        child.process.terminate()
    end_groups([child.process for child in children], END_S)


def _free_port(address: str) -> int:
    with socket.socket() as free:
        try:
            free.bind((address, 0))
        except OSError as cause:
            raise UsageError(f"{address} is no address of this host: {cause.strerror}") from cause
        return int(free.getsockname()[1])


def _nodes(nodelist: str) -> list[str]:
    """Write out a list of nodes such as ``n[1-4]``.

    Raises:
        UsageError: Slurm does not.
    """
    command = ["scontrol", "show", "hostnames", nodelist]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIST_S)
    except (OSError, subprocess.SubprocessError) as cause:
        raise UsageError(f"scontrol does not list the nodes of {nodelist}; --hosts names them") from cause
    return said.stdout.split()

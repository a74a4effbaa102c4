"""`tianji` commands that begin with everything imported: one warm process forks them.

Four fifths of a short training are imports. Here a process that has made them all forks each command, and
the command's fork server, which stands ready as its child before the command begins. Processes, sessions,
groups, signals and exit statuses are those of a command that a shell starts. What differs: all have one seed
of hashes in common; the fork server has neither the umask nor the limits that the command has set itself; the
interpreter is not taken apart at the end. What depends on these, or on how a command begins, begins cold.

The children of such a command that run modules of TianJi's (trainings that are measured, workers of a
benchmark) are forked from it.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, Final

import setproctitle

from tianji_cli.signals import STOP_SIGNALS, Interruption

PRELOAD: Final = (
    "tianji_cli.__main__",
    "tianji_cli.commands.train",
    "tianji_cli.commands.training",
    "tianji_cli.commands.eval",
    "tianji_cli.commands.export",
    "tianji_cli.commands.join",
    "tianji_cli.telemetry.plots",
    "tianji_cli.telemetry.metrics",
    "tensorboard.compat.proto.event_pb2",
    "torch.onnx",
    "onnx",
    "tianji_lab.bench.run",
    "tianji_lab.profile.run",
    "tianji_lab.scaling.study",
    "tianji_lab.scaling.plots",
    "tianji_lab.staleness.plots",
    "tianji_cli.runs.sweep.results",
    "tianji_cli.runs.sweep.run",
)
PR_SET_CHILD_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER of Linux's prctl.h: orphans among its descendants become its children."""
MOST_BYTES: Final = 1 << 16
TIANJI: Final = Path(sys.executable).with_name("tianji")

Tianji = Callable[..., None]
"""Runs a command with these arguments to its end, which has to be a good one."""


class WarmCommand:
    """The methods of `subprocess.Popen` that tests use, for a command that the warm process forked."""

    def __init__(self, pid: int, commands: WarmCommands) -> None:
        self.pid = pid
        self._commands = commands
        self._files: Sequence[IO[str]] = ()
        self._said: list[str] = []
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        if self.returncode is None:
            self.returncode = self._commands.ended(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it goes on.
        """
        if self.returncode is None:
            self.returncode = self._commands.ended(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("tianji", timeout or 0.0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end; what it has said and complained of, if that is kept."""
        self.wait(timeout)
        for file in self._files:
            with file:
                file.seek(0)
                self._said.append(file.read())
        self._files = ()
        out, err = self._said
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class WarmCommands:
    """Owns the warm process; entered once in a session of tests."""

    def __enter__(self) -> WarmCommands:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ended: dict[int, int] = {}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=os.environ | {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")},
            )
        return self

    def __exit__(self, *_exception: object) -> None:
        self._channel.close()
        self._process.wait()

    def begin(
        self, arguments: Sequence[str], out: int, err: int, cwd: Path, environment: Mapping[str, str]
    ) -> WarmCommand:
        """Begin `tianji ARGUMENTS...` in a session of its own, with nothing to read."""
        told = {"arguments": list(arguments), "cwd": str(cwd), "environment": dict(environment)}
        socket.send_fds(self._channel, [json.dumps(told).encode()], [out, err])
        return WarmCommand(self._hear_begin(), self)

    def begin_kept(self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> WarmCommand:
        """Begin a command, and keep what it says for `communicate`."""
        files = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 - closed by `communicate`
        out, err = (file.fileno() for file in files)
        command = self.begin(arguments, out, err, cwd, environment)
        command._files = files
        return command

    def adopt(self, arguments: Sequence[str], streams: Sequence[int]) -> int:
        """Begin a child of this process, which is to wait for it, as `python_command` says; its pid."""
        told = {"arguments": list(arguments), "cwd": os.getcwd(), "environment": dict(os.environ)}
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._channel, [json.dumps(told | {"parent": os.getpid()}).encode()], streams)
            return self._hear_begin()
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)

    def ended(self, pid: int, timeout: float | None) -> int | None:
        """Wait for the end of a command; its exit status, or None if it goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while pid not in self._ended:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._channel], (), (), left_s)[0]:
                return None
            number, status = self._hear()
            assert status is not None
            self._ended[number] = status
        return self._ended.pop(pid)

    def _hear_begin(self) -> int:
        """The number of the process that was asked for."""
        while True:
            number, status = self._hear()
            if status is None:
                self._ended.pop(number, None)  # Of an earlier process with this number.
                return number
            self._ended[number] = status

    def _hear(self) -> tuple[int, int | None]:
        data = self._channel.recv(MOST_BYTES)
        assert data, "the warm process has ended"
        number, status = json.loads(data)
        return number, status


def serve(channel: socket.socket) -> None:
    """Fork commands until the session that asks for them is over; those that are left end with it."""
    poller = select.poll()
    poller.register(channel, select.POLLIN)
    commands: dict[int, BaseProcess] = {}
    while True:
        for descriptor, _ in poller.poll():
            if descriptor in commands:
                poller.unregister(descriptor)
                os.close(descriptor)
                ended = commands.pop(descriptor)
                channel.send(json.dumps([ended.pid, ended.exitcode]).encode())
                continue
            data, descriptors, *_ = socket.recv_fds(channel, MOST_BYTES, 3)
            if not data:
                for left in commands.values():
                    assert left.pid is not None
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(left.pid, signal.SIGKILL)
                return
            told = json.loads(data)
            if "parent" in told:
                begun = forked(beget_child, channel, told, descriptors, list(commands))
                begun.join()
            else:
                begun = forked(become_command, channel, told, descriptors, list(commands))
            for given in descriptors:
                os.close(given)
            if "parent" in told:
                continue
            assert begun.pid is not None
            watched = os.pidfd_open(begun.pid)
            commands[watched] = begun
            poller.register(watched, select.POLLIN)


def forked(work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Fork a process that works and ends.

    The standard library ends such a process without taking apart what was imported before the fork, which
    would copy all of it first: a quarter of a second. What is to be done at an exit is done.
    """
    process = multiprocessing.get_context("fork").Process(target=_work, args=(work, *arguments))
    process.start()
    return process


def _work(work: Callable[..., None], *arguments: Any) -> None:
    try:
        work(*arguments)
    finally:
        with contextlib.suppress(Interruption):  # It ends the wait for threads that are left.
            threading._shutdown()
        atexit._run_exitfuncs()


def beget_child(
    channel: socket.socket, told: dict[str, Any], streams: list[int], others: Sequence[int]
) -> None:
    """Fork a child for the process that asks for one, and end: the child becomes that process's."""
    for other in others:
        os.close(other)
    child = forked(become_adopted, channel, told, streams)
    multiprocessing.process._children.discard(child)


def become_adopted(channel: socket.socket, told: dict[str, Any], streams: list[int]) -> None:
    """Wait for the adoption, say so, and be the child."""
    while os.getppid() != told["parent"]:
        time.sleep(0.001)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["environment"])
    tempfile.tempdir = None

    def prepare() -> None:
        end_with_command()
        channel.send(json.dumps([os.getpid(), None]).encode())

    become_child(told["arguments"], streams, prepare)


def become_command(
    channel: socket.socket, told: dict[str, Any], files: list[int], others: Sequence[int]
) -> None:
    """Be the command, but for its imports.

    Args:
        channel: over which it was asked for, and is told of as soon as it has a session of its own.
        told: its arguments, working directory and environment.
        files: descriptors of what it writes to.
        others: descriptors that are not its own.
    """
    for other in others:
        os.close(other)
    os.setsid()
    channel.send(json.dumps([os.getpid(), None]).encode())
    channel.close()
    _take_output(*files)
    os.chdir(told["cwd"])
    os.environ.clear()
    os.environ.update(told["environment"])
    sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    tempfile.tempdir = None
    sys.argv = [str(TIANJI), *told["arguments"]]
    run_command()


def run_command() -> None:
    """Do what `sys.argv` says, with a fork server at hand."""
    announcements, starter, children = map(
        importlib.import_module,
        (
            "tianji_cli.root.observers.announcements",
            "tianji_cli.launch.server_process",
            "tianji_cli.launch.children",
        ),
    )
    children.subprocess = WarmChildren()
    with ReadyServer() as server:
        announcements.BEGAN_S = time.monotonic()
        starter.subprocess = server
        # Of a command that another one has started the other's is there already.
        original = getattr(children.end_descendants, "original", children.end_descendants)

        def end(others: set[int]) -> None:
            server.__exit__()  # One that was not asked for is none that a command has left behind.
            original(others)

        end.original = original  # type: ignore[attr-defined]
        children.end_descendants = end
        importlib.import_module("tianji_cli.__main__").main()


class WarmChildren:
    """Stands in for the module `subprocess` where a process starts children that run modules of TianJi's.

    Args:
        commands: what they are forked by; this process itself if None.
    """

    DEVNULL = subprocess.DEVNULL
    PIPE = subprocess.PIPE
    BOUND = 6
    """Words of `bound_command` before the program's own."""
    OWN = (sys.executable, "-P", "-m", "tianji_cli.launch.children")

    def __init__(self, commands: WarmCommands | None = None) -> None:
        self._commands = commands

    def Popen(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: IO[bytes] | int | None,
        stderr: IO[bytes] | None = None,
        **others: Any,
    ) -> WarmChild | subprocess.Popen[bytes]:
        """Fork the child; another program is started as ever."""
        own = command[self.BOUND :]
        if tuple(own[:4]) != self.OWN:
            return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, **others)
        null = os.open(os.devnull, os.O_RDWR)
        ours: list[int | None] = [None, None]
        theirs = [null, null if stdout == self.DEVNULL else stdout, stderr]
        if stdin == self.PIPE:
            theirs[0], ours[0] = os.pipe()
        if stdout == self.PIPE:
            ours[1], theirs[1] = os.pipe()
        pid = self._begin(own[4:], theirs)
        for given in {null, *theirs}:
            if isinstance(given, int):
                os.close(given)
        return WarmChild(pid, *ours)

    def _begin(self, told: Sequence[str], streams: list[IO[bytes] | int | None]) -> int:
        if self._commands is not None:
            kept = [place if of is None else of for place, of in enumerate(streams)]
            return self._commands.adopt(told, [of if isinstance(of, int) else of.fileno() for of in kept])
        process = forked(become_child, told, streams, end_with_command)
        # It is the command that waits for it: what is over would be gone as soon as another one begins.
        multiprocessing.process._children.discard(process)
        assert process.pid is not None
        return process.pid


class WarmChild:
    """The methods of `Popen` that a command uses, for a child."""

    def __init__(self, pid: int, stdin: int | None, stdout: int | None) -> None:
        self.pid = pid
        self.stdin = None if stdin is None else open(stdin, "wb", 0)  # noqa: SIM115 - its own
        self.stdout = None if stdout is None else open(stdout, "rb", 0)  # noqa: SIM115 - its own
        with contextlib.suppress(PermissionError, ProcessLookupError):  # It does so itself, too.
            os.setpgid(self.pid, self.pid)

    def kill(self) -> None:
        """End it at once."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end, and free its number."""
        os.waitpid(self.pid, 0)


def end_with_command() -> None:
    """End when the command does: what `bound_command` sees to."""
    importlib.import_module("tianji_cli.launch.children").end_with_parent(signal.SIGTERM)


def become_child(
    told: Sequence[str], streams: Sequence[IO[bytes] | int | None], prepare: Callable[[], None]
) -> None:
    """Be a child as `python_command` begins it, but for its imports.

    Args:
        told: where it finds modules, which of them it is, and its arguments.
        streams: its standard ones; None for the command's.
        prepare: what it does first.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.setpgid(0, 0)
    prepare()
    for place, given in enumerate(streams):
        if given is not None:
            os.dup2(given if isinstance(given, int) else given.fileno(), place)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0)  # noqa: SIM115 - as long as the process
    path, module, *arguments = told
    sys.path[:] = json.loads(path)
    sys.argv = [module, *arguments]
    if module == "tianji_cli":
        run_command()
    else:
        importlib.import_module(module).main()


class ReadyServer:
    """A fork server to be: a child of the command that waits until the command asks for one.

    Stands in for the module `subprocess` where a launcher starts its fork server, and for the `Popen` of it.
    """

    DEVNULL = subprocess.DEVNULL

    def __enter__(self) -> ReadyServer:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        self._process = forked(self._become_server, theirs)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._channel.close()

    def _become_server(self, channel: socket.socket) -> None:
        """Wait for what a fork server is started with, and be one."""
        self._channel.close()
        data, descriptors, *_ = socket.recv_fds(channel, MOST_BYTES, 3)
        channel.close()
        if not data:
            return
        output, *given = descriptors
        _take_output(output, os.dup(output))
        fork_server = importlib.import_module("tianji_cli.launch.fork_server")
        sys.argv = [str(fork_server.__file__), *map(str, given)]
        fork_server.main()

    def Popen(
        self, command: Sequence[str], *, stdin: int, stdout: Any, stderr: Any, pass_fds: tuple[int, int]
    ) -> ReadyServer | subprocess.Popen[bytes]:
        """Have the child become the fork server; a second one is started as ever."""
        if self._channel.fileno() < 0:
            return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds)
        assert stdout is stderr
        socket.send_fds(self._channel, [b"serve"], [stdout.fileno(), *pass_fds])
        self._channel.close()
        return self

    @property
    def pid(self) -> int | None:
        """Process id of the child."""
        return self._process.pid

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self) -> int | None:
        """Its exit status, once it has ended."""
        self._process.join()
        return self._process.exitcode


def _take_output(out: int, err: int) -> None:
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.close(out)
    os.close(err)


def main() -> None:
    """Import what is slow to import, then fork; in the forked processes, be a command or its fork server."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    setproctitle.setproctitle("warm tianji commands")  # The first title needs the environment as it was.
    sys.path[0] = str(TIANJI.parent)  # As in the command.
    for module in PRELOAD:
        importlib.import_module(module)
    importlib.import_module("tianji_cli.launch.fork_server").preload()
    gc.collect()
    gc.freeze()
    serve(channel)


if __name__ == "__main__":
    main()

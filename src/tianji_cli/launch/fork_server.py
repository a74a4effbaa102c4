"""The fork server of a job: imports the modules that workers share, then forks a worker at each request.

Started by ``server_process`` as ``python -m tianji_cli.launch.fork_server CHANNEL ROOT_PIPE [preload]``, with
two descriptors. The messages of a node (``wire/messages``) go over the channel, a line each. The other end
never waits for the server to read; so the server may wait for the other end. Once that closes, as it does
when the root is dead, the server starts nothing more. It stays until the workers have ended, and cleans up
behind them.

A process that a worker leaves behind, such as an environment's simulator, becomes a child of the server,
which ends it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import io
import os
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from typing import Final, NoReturn
from weakref import finalize

import setproctitle

from tianji_cli.config.loader import build_validators
from tianji_cli.errors import ProcessExit
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.children import ORPHAN_LOOK_S, adopt_orphans, end_orphans
from tianji_cli.launch.fresh_worker import turn_into_build, turn_into_worker
from tianji_cli.plan.job import Job
from tianji_cli.signals import Interruption, leave_threads
from tianji_cli.wire.messages import (
    HERE,
    Began,
    Begin,
    Build,
    BuildOutput,
    BuildReport,
    Built,
    Cleared,
    Exited,
    FromForkServer,
    Prepare,
    StartNoMore,
    ToForkServer,
    build_worker_validators,
    decode_to_fork_server,
    encode,
)
from tianji_transports import registry

SHARED: Final = ("gymnasium", "torch", "tianji_cli.worker.build")
"""Modules that every process of a job needs and that are slow to import."""


def preload() -> None:
    """Import the modules that forked processes share: torch alone takes 1.5 s and 146 MB.

    No transport engine is among them: libzmq and iceoryx2 keep threads and files that a fork would break.
    """
    gc.disable()  # Imports leave next to no garbage, for which the collector would search 0.3 s.
    for module in SHARED:
        importlib.import_module(module)
    registry.names()  # The call searches all installed packages, once.
    gc.enable()


@cache
def build_shared_validators() -> None:
    """Build, once, what every worker reads its config and messages with: 6 MB and 60 ms of each."""
    build_validators()
    build_worker_validators()


Work = Callable[[int], None]
"""Work of a forked process; gets the descriptor of the pipe that closes when the root ends."""


class ForkServer:
    """Forks workers and waits for their ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = b""
        self._requests: deque[ToForkServer] = deque()
        self._job: Job | None = None
        self._job_number = 0
        self._clearing: int | None = None
        self._children: dict[int, tuple[int, Callable[[ProcessExit], object]]] = {}
        self._orphans: dict[int, float] = {}
        self._building: BuildOutput | None = None
        self._is_asked = True
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def run(self) -> Work | None:
        """Serve until the other end has closed the channel and all started processes have ended.

        Returns:
            The work of a forked process; None in the server, at its end.
        """
        while self._is_asked or self._children or self._orphans:
            self._wait()
            while self._requests:
                work = self._serve(self._requests.popleft())
                if work is not None:
                    return work
            if self._clearing is not None and not (self._children or self._orphans):
                self._send(Cleared(number=self._clearing))
                self._clearing = None
        return None

    def _wait(self) -> None:
        """Wait for requests and for ends."""
        looks = self._orphans or self._building
        for descriptor, _ in self._poller.poll(1e3 * ORPHAN_LOOK_S if looks else None):
            if descriptor in self._children:
                self._reap(descriptor)
            elif descriptor == self._channel.fileno():
                self._receive()
            elif self._building is not None:
                self._report_build(self._building)
        if self._building is not None:
            self._building.bound()
        end_orphans({pid for pid, _ in self._children.values()}, self._orphans)

    def _receive(self) -> None:
        data = b""
        with suppress(ConnectionResetError):  # The root is dead.
            data = self._channel.recv(1 << 16)
        if not data:
            self._is_asked = False
            self._poller.unregister(self._channel)
        *lines, self._received = (self._received + data).split(b"\n")
        self._requests.extend(map(decode_to_fork_server, lines))

    def _serve(self, request: ToForkServer) -> Work | None:
        match request:
            case Prepare():
                self._job, self._job_number = _read_job(request.job), request.number
                if not self._job.fresh:
                    build_shared_validators()
            case Build():
                return self._build(_read_job(request.job))
            case Begin():
                return self._begin(request)
            case StartNoMore():
                self._clearing = self._job_number
        return None

    def _build(self, job: Job) -> Work | None:
        from tianji_cli.worker.worker import check_build  # noqa: PLC0415 - the root imports this module, too

        output = BuildOutput.new()
        try:
            if self._fork(lambda exit_: self._report_build(output, exit_)):
                self._building = output
                self._poller.register(output.done, select.POLLIN)
                if not job.fresh:
                    build_shared_validators()  # The first build takes longer.
                return None
        except OSError as cause:
            self._send(Built(report=BuildReport(error=f"cannot start a process: {cause.strerror or cause}")))
            return None
        return partial(turn_into_build if job.fresh else check_build, job, output)

    def _report_build(self, output: BuildOutput, exit_: ProcessExit | None = None) -> None:
        """Send a build's report once; ``exit_`` is that of its process if this has ended."""
        if self._building is not output:
            return
        self._building = None
        self._poller.unregister(output.done)
        report = output.read(exit_ or ProcessExit())
        self._send(Built(report=report))
        for name in report.imported:  # Workers then need not import it one by one.
            importlib.import_module(name)

    def _begin(self, request: Begin) -> Work | None:
        from tianji_cli.worker.worker import run_worker  # noqa: PLC0415 - the root imports this module, too

        job = self._job
        assert job is not None, "the other end says what the job is before it asks for a worker"
        if any(isinstance(later, StartNoMore) for later in self._requests):
            return None
        number = request.number
        gate: tuple[int, ...] = ()
        try:
            gate = os.pipe()
            pid = self._fork(lambda exit_: self._send(Exited(node=HERE, number=number, exit=exit_)))
        except OSError as cause:
            _close(gate)
            error = cause.strerror or str(cause)
            self._send(Exited(node=HERE, number=number, exit=ProcessExit(error=error)))
            return None
        reader, writer = gate
        if not pid:
            os.close(writer)
            worker: Work = partial(run_worker, job, request)
            begin = partial(turn_into_worker, job, request) if job.fresh else worker
            return partial(_once_known, reader, begin)
        if self._send(Began(node=HERE, number=number, pid=pid)):
            os.write(writer, b"!")
        _close(gate)
        return None

    def _fork(self, ended: Callable[[ProcessExit], object]) -> int:
        """Fork; returns the child's process id, and 0 in the child; ``ended`` gets the child's exit.

        Raises:
            OSError: the system makes no further process.
        """
        # Workers share the present objects, and need not free them at their end, which takes half a second.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            # A process that held the channel would hide the server's end from the root.
            self._channel.close()
            _close(self._children)
            for inherited in list(finalize._registry):  # type: ignore[attr-defined]
                inherited.atexit = False  # Torch's take back its operators, which copies 26 MB.
            adopt_orphans()  # An orphan goes on as long as its worker does.
            return 0
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:  # A child that could not be watched must not run.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise
        self._children[descriptor] = pid, ended
        self._poller.register(descriptor, select.POLLIN)
        return pid

    def _reap(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)
        os.close(descriptor)
        pid, ended = self._children.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        ended(ProcessExit(status=os.waitstatus_to_exitcode(status)))

    def _send(self, message: FromForkServer) -> bool:
        """Send a message; returns False if the other end is dead."""
        try:
            self._channel.sendall(encode(message) + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True


def _read_job(text: str) -> Job:
    """Read a job, and import what its processes share unless each of them begins anew."""
    job = Job.from_json(text)
    if not job.fresh:
        preload()
    return job


def _once_known(gate: int, work: Work, root_pipe: int) -> None:
    """Begin once the root knows of this process, which the root may have to end or to wait for.

    A server that is killed while it forks leaves a process that the root does not know; it does no work.
    Once the root knows, there is a byte in the pipe ``gate``.
    """
    is_known = bool(os.read(gate, 1))
    os.close(gate)
    if is_known:
        work(root_pipe)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _end(status: int) -> NoReturn:
    """End a forked process, after its threads and exit handlers, without freeing what it shares with others.

    The interpreter's end, and that of torch's C++ code, write to 145 MB of shared memory, which are copied
    for that, and take 0.4 s of a core: 400 actors that end at once on two cores would fill 10 GB.
    """
    with suppress(Interruption):  # See ``leave_threads``.
        threading._shutdown()  # type: ignore[attr-defined]  # What the interpreter calls first at its end.
    atexit._run_exitfuncs()
    # The interpreter would close the files of user code; those of the server are frozen.
    for stream in (sys.stdout, sys.stderr, *gc.get_objects()):
        # Not isinstance(): that asks a proxy for the class of what it stands for, which may be gone.
        if issubclass(type(stream), io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            with suppress(OSError, ValueError):  # The disk is full, or the file is closed.
                stream.flush()
    library = ctypes.CDLL(None)
    library.fflush(None)
    library.quick_exit(status)
    raise AssertionError("it does not return")


def main() -> None:
    """Run the fork server; in a forked process, its work."""
    channel, root_pipe, early = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3:]
    channel.set_inheritable(False)
    os.set_inheritable(root_pipe, False)
    setproctitle.setproctitle("tianji: fork server")
    adopt_orphans()
    if early:
        preload()
    work = ForkServer(channel).run()
    if work is not None:
        status = 0
        try:
            work(root_pipe)
        except SystemExit as end:
            status = int(bool(end.code))
        finally:
            leave_threads()
        _end(status)
    remove_stale()  # Workers that were killed could not, and a root that was killed cannot.
    channel.close()


if __name__ == "__main__":
    main()

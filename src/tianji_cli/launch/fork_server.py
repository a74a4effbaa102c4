"""The fork server of a job: imports the modules that workers share, then forks a worker at each request.

Started by ``local`` as ``python -m tianji_cli.launch.fork_server CHANNEL ROOT_PIPE``, two descriptors.
Lines of JSON go over the channel: requests come in, notices go out. The launcher never waits for the server
to read; so the server may wait for the launcher. Once the other end of the channel closes, as it does when
the root is dead, the server starts nothing more. It stays until the workers have ended, and cleans up behind
them.

A process that a worker leaves behind, such as an environment's simulator, becomes a child of the server,
which ends it.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Annotated, Final, Literal

import setproctitle
from pydantic import BaseModel, Field, TypeAdapter

from tianji_cli.errors import ProcessExit
from tianji_cli.files.directories import remove_stale
from tianji_cli.launch.children import ORPHAN_LOOK_S, adopt_orphans, end_orphans
from tianji_cli.launch.fresh_worker import turn_into_build, turn_into_worker
from tianji_cli.plan.spec import JobSpec, ProcessSpec
from tianji_cli.signals import leave_threads
from tianji_cli.wire.messages import BuildOutput, BuildReport
from tianji_transports import registry

SHARED: Final = ("gymnasium", "torch")
"""Modules that every process of a job needs and that are slow to import."""


IDLE_S: Final = 1.0
"""Seconds without a request after which the server prepares for forked workers, as most are."""


def preload() -> None:
    """Import the modules that forked processes share: torch alone takes 1.5 s and 146 MB.

    No transport engine is among them: libzmq and iceoryx2 keep threads and files that a fork would break.
    """
    for module in SHARED:
        importlib.import_module(module)
    registry.names()  # The call searches all installed packages, once.
    gc.collect()


class Build(BaseModel):
    """Build environment, model and layout once, in a process that ends with it."""

    kind: Literal["build"] = "build"
    spec: JobSpec


class Job(BaseModel):
    """The job of all workers that are started from now on."""

    kind: Literal["job"] = "job"
    spec: JobSpec


class Start(BaseModel):
    """Start a worker of the job; notices about it name it by ``number``."""

    kind: Literal["start"] = "start"
    number: int
    spec: ProcessSpec


class Finish(BaseModel):
    """Start nothing more of the ``job``-th job; ``Finished`` answers once nothing is left of its workers."""

    kind: Literal["finish"] = "finish"
    job: int


Request = Build | Job | Start | Finish
REQUEST: Final[TypeAdapter[Request]] = TypeAdapter(Annotated[Request, Field(discriminator="kind")])


class Built(BaseModel):
    """The build has ended, or could not begin."""

    kind: Literal["built"] = "built"
    report: BuildReport


class Started(BaseModel):
    """The ``number``-th worker runs."""

    kind: Literal["started"] = "started"
    number: int
    pid: int


class Exited(BaseModel):
    """The ``number``-th worker has ended, or could not be started."""

    kind: Literal["exited"] = "exited"
    number: int
    exit: ProcessExit


class Finished(BaseModel):
    """Nothing is left of the ``job``-th job's workers, nor of the processes that they started."""

    kind: Literal["finished"] = "finished"
    job: int


Notice = Built | Started | Exited | Finished
NOTICE: Final[TypeAdapter[Notice]] = TypeAdapter(Annotated[Notice, Field(discriminator="kind")])

Work = Callable[[int], None]
"""Work of a forked process; gets the descriptor of the pipe that closes when the root ends."""


class ForkServer:
    """Forks workers and waits for their ends."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = b""
        self._requests: deque[Request] = deque()
        self._job: JobSpec | None = None
        self._finishing: Finish | None = None
        self._children: dict[int, tuple[int, Callable[[ProcessExit], Notice]]] = {}
        self._orphans: dict[int, float] = {}
        self._building: BuildOutput | None = None
        self._is_asked = True
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def run(self) -> Work | None:
        """Serve until the launcher has closed the channel and all started processes have ended.

        Returns:
            The work of a forked process; None in the server, at its end.
        """
        if not self._poller.poll(1000 * IDLE_S):  # A host that joined waits for others meanwhile.
            preload()
        while self._is_asked or self._children or self._orphans:
            self._wait()
            while self._requests:
                work = self._serve(self._requests.popleft())
                if work is not None:
                    return work
            if self._finishing is not None and not (self._children or self._orphans):
                self._send(Finished(job=self._finishing.job))
                self._finishing = None
        return None

    def _wait(self) -> None:
        """Wait for requests and for ends."""
        looks = self._orphans or self._building
        for descriptor, _ in self._poller.poll(1e3 * ORPHAN_LOOK_S if looks else None):
            if descriptor in self._children:
                self._reap(descriptor)
                continue
            data = b""
            with suppress(ConnectionResetError):  # The root is dead.
                data = self._channel.recv(1 << 16)
            if not data:
                self._is_asked = False
                self._poller.unregister(self._channel)
            *lines, self._received = (self._received + data).split(b"\n")
            self._requests.extend(map(REQUEST.validate_json, lines))
        if self._building is not None:
            self._building.bound()
        end_orphans({pid for pid, _ in self._children.values()}, self._orphans)

    def _serve(self, request: Request) -> Work | None:
        if isinstance(request, Build | Job) and not request.spec.fresh:
            preload()
        match request:
            case Job(spec=job):
                self._job = job
            case Build(spec=job):
                return self._build(job)
            case Start():
                return self._start(request.number, request.spec)
            case Finish():
                self._finishing = request
        return None

    def _build(self, job: JobSpec) -> Work | None:
        from tianji_cli.worker.worker import check_build  # noqa: PLC0415 - the root imports this module, too

        output = BuildOutput.new()

        def built(exit_: ProcessExit) -> Notice:
            self._building = None
            report = output.read(exit_)
            for name in () if job.fresh else report.imported:  # Workers then need not import it one by one.
                importlib.import_module(name)
            return Built(report=report)

        try:
            if self._fork(built):
                self._building = output
                return None
        except OSError as cause:
            self._send(Built(report=BuildReport(error=f"cannot start a process: {cause.strerror or cause}")))
            return None
        return partial(turn_into_build if job.fresh else check_build, job, output)

    def _start(self, number: int, own: ProcessSpec) -> Work | None:
        from tianji_cli.worker.worker import run_worker  # noqa: PLC0415 - the root imports this module, too

        job = self._job
        assert job is not None, "a launcher says what the job is before it asks for a worker"
        if any(isinstance(later, Finish) for later in self._requests):
            return None
        gate: tuple[int, ...] = ()
        try:
            gate = os.pipe()
            pid = self._fork(lambda exit_: Exited(number=number, exit=exit_))
        except OSError as cause:
            _close(gate)
            self._send(Exited(number=number, exit=ProcessExit(error=cause.strerror or str(cause))))
            return None
        reader, writer = gate
        if not pid:
            os.close(writer)
            begin: Work = partial(turn_into_worker, job, own) if job.fresh else partial(run_worker, job, own)
            return partial(_once_known, reader, begin)
        if self._send(Started(number=number, pid=pid)):
            os.write(writer, b"!")
        _close(gate)
        return None

    def _fork(self, ended: Callable[[ProcessExit], Notice]) -> int:
        """Fork; returns the child's process id, and 0 in the child.

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
        self._send(ended(ProcessExit(status=os.waitstatus_to_exitcode(status))))

    def _send(self, notice: Notice) -> bool:
        """Send a notice to the launcher; returns False if the launcher is dead."""
        try:
            self._channel.sendall(notice.model_dump_json().encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True


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


def main() -> None:
    """Run the fork server; in a forked process, its work."""
    channel, root_pipe = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    channel.set_inheritable(False)
    os.set_inheritable(root_pipe, False)
    setproctitle.setproctitle("tianji: fork server")
    adopt_orphans()
    work = ForkServer(channel).run()
    if work is not None:
        try:
            work(root_pipe)
        finally:
            leave_threads()
        return
    remove_stale()  # Workers that were killed could not, and a root that was killed cannot.
    channel.close()


if __name__ == "__main__":
    main()

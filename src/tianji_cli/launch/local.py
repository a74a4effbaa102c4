"""Starts the processes of a job on this host, through a fork server that has done the slow imports."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from tempfile import TemporaryFile
from typing import Final

from tianji_cli.errors import ProcessExit, RunFailed, UsageError
from tianji_cli.files.regular import bound_log
from tianji_cli.launch.children import last_words, process_state
from tianji_cli.launch.fork_server import (
    NOTICE,
    Build,
    Built,
    Exited,
    Finish,
    Finished,
    Job,
    Notice,
    Request,
    Start,
    Started,
)
from tianji_cli.plan.spec import JobSpec, ProcessSpec
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.wire.messages import BuildReport

SLOW_BUILD_S: Final = 30.0
"""Seconds after which the user hears that the first build takes long."""

CLOSE_LIMIT_S: Final = 5.0
"""Maximum seconds that the fork server has to end processes that workers have left behind."""

LOOK_S: Final = 2.0
"""Seconds between two checks, during a build, whether the fork server is suspended."""


class WorkerProcess:
    """A worker, from the request for it until after its end.

    Attributes:
        pid: None until it runs.
        exit: its exit; None while it has not ended.
        killed: whether this program has killed it.
        hung: why this program has aborted it, in words; empty if it has not.

    Args:
        exited: the list that it joins at its end.
    """

    def __init__(self, spec: ProcessSpec, exited: list[WorkerProcess]) -> None:
        self.spec = spec
        self._exited = exited
        self.pid: int | None = None
        self.exit: ProcessExit | None = None
        self.killed = False
        self.hung = ""

    @property
    def is_suspended(self) -> bool:
        """Whether it is stopped, as by SIGSTOP."""
        return self.pid is not None and process_state(self.pid) in {"T", "t"}

    def end(self, exit_: ProcessExit) -> None:
        """Record its end; only the first report of it counts."""
        if self.exit is None:
            with contextlib.suppress(OSError):  # A user who has removed the log wants none.
                bound_log(self.spec.log)
            self.exit = replace(exit_, error=self.hung) if self.hung and exit_.by_signal else exit_
            self._exited.append(self)

    def abort(self, hung: str) -> None:
        """Have it die of SIGABRT, so that its log gets the place where it hung; asked again, of SIGKILL."""
        if self.pid is not None:
            with contextlib.suppress(OSError):  # SIGABRT would write a core dump.
                resource.prlimit(self.pid, resource.RLIMIT_CORE, (0, 0))
        self.send(signal.SIGKILL if self.hung or self.is_suspended else signal.SIGABRT)
        self.hung = hung

    def send_kill(self) -> None:
        """Kill it if it runs."""
        self.killed = True
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        """Signal it if it runs."""
        if self.pid is not None and self.exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class LocalLauncher(contextlib.AbstractContextManager["LocalLauncher"]):
    """Owns the fork server of a job, and the pipe whose end tells workers that their root is dead.

    One job may follow another: each goes from ``begin`` to ``start_no_more``. The launcher never waits for
    the server to read: it keeps requests that the server does not take at once.

    Attributes:
        lost: the fork server is gone. Workers live on; the status of their ends is then unknown.
        dismissed: the server starts no more workers of this job.
        built: report of the last ``build_once``.

    Raises:
        OSError: the server cannot be started.
    """

    def __init__(self) -> None:
        self.lost = False
        self.dismissed = False
        self._is_finished = False
        self._job = 0
        self._started = 0
        self.exited: list[WorkerProcess] = []
        self._outgoing = bytearray()
        self._received = b""
        self._report: BuildReport | None = None
        self.built = BuildReport()
        self._workers: dict[int, WorkerProcess] = {}
        self._orphans: dict[int, WorkerProcess] = {}
        self._output = TemporaryFile()  # noqa: SIM115 - open as long as the launcher
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        self._events = select.epoll()
        self._events.register(self._channel, select.EPOLLIN)
        watched, self._parent_alive = os.pipe()
        command = [sys.executable, "-P", "-m", "tianji_cli.launch.fork_server"]
        # Blocked signals stay blocked over fork and exec: a signal that stops the job reaches the whole
        # process group, and must not end the server, which alone learns how workers end.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with theirs:
                self._server = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(watched)],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=(theirs.fileno(), watched),
                )
        except BaseException:
            os.close(self._parent_alive)
            self._free()
            raise
        finally:
            os.close(watched)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def descriptor(self) -> int:
        """Readable when ``check`` has something to do."""
        return self._events.fileno()

    @property
    def stopped(self) -> bool:
        """Whether the server is suspended, as by SIGSTOP: it then starts nothing and reports no ends."""
        return not self.lost and process_state(self._server.pid) in {"T", "t"}

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._server.pid

    def build_once(self, job: JobSpec, say: Callable[[str], None]) -> None:
        """Have environment, model and layout built in a process of its own, and wait for its end.

        Args:
            say: tells the user that it takes long.

        Raises:
            UsageError: the build fails.
            RunFailed: there is no fork server.
        """
        self._ask(Build(spec=job))
        slow_at = time.monotonic() + SLOW_BUILD_S
        was_stopped = False
        while self._report is None:
            if self.lost:
                raise RunFailed(self.cause_of_loss())
            self.wait(LOOK_S)
            self.check()
            if time.monotonic() >= slow_at:
                slow_at = math.inf
                say(f"environment and model are still being built after {SLOW_BUILD_S:g} s; Ctrl-C ends this")
            if self.stopped and not was_stopped:
                say(f"the fork server (process {self.pid}) is stopped; kill -CONT {self.pid} lets it go on")
            was_stopped = self.stopped
        self.built, self._report = self._report, None
        if self.built.error:
            error = UsageError(self.built.error)
            error.add_note(self.built.traceback)
            raise error

    def begin(self, job: JobSpec) -> None:
        """Begin a job, which all workers from now on belong to."""
        self.dismissed = self._is_finished = False
        self._job += 1
        self._workers.clear()  # Late notices of an earlier job do not concern this one.
        self.exited.clear()
        self._ask(Job(spec=job))

    def start(self, own: ProcessSpec) -> WorkerProcess:
        """Ask for a worker; returns at once."""
        worker = WorkerProcess(own, self.exited)
        number, self._started = self._started, self._started + 1
        self._workers[number] = worker
        if self.lost or self.dismissed:
            worker.end(ProcessExit())
        else:
            self._ask(Start(number=number, spec=own))
        return worker

    def check(self) -> None:
        """Read the server's notices about workers; never waits."""
        self._flush()
        while not self.lost:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self._lose_server()
                break
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._handle(NOTICE.validate_json(line))
        self._check_orphans()

    def kill(self, worker: WorkerProcess) -> None:
        """Kill a worker at once, or as soon as it begins."""
        self.check()
        worker.send_kill()

    def abort(self, worker: WorkerProcess, hung: str) -> None:
        """End a worker that hangs."""
        worker.abort(hung)

    def kill_all(self) -> None:
        """Kill all workers at once; requested ones do not begin, or die as soon as they do."""
        self.start_no_more()
        for worker in self._workers.values():
            worker.send_kill()

    def start_no_more(self) -> None:
        """Have the server start no more workers of this job; it goes on reporting how workers end.

        Ends a suspended server, which would do neither.
        """
        if self.stopped:
            self.dismissed = True
            self._server.kill()
            self._server.wait()
            self.check()  # Its notices from before.
            self._lose_server()
        elif not (self.lost or self.dismissed):
            self.dismissed = True
            del self._outgoing[self._outgoing.find(b"\n") + 1 :]  # The first may have gone in part.
            self._ask(Finish(job=self._job))

    def wait(self, timeout_s: float) -> None:
        """Wait until ``check`` has something to do."""
        self._events.poll(timeout_s)

    def wait_for_server(self) -> None:
        """Wait until the server, which starts no more, has reported that nothing is left of the workers."""
        self._wait_until(lambda: self.lost or self._is_finished)

    def cause_of_loss(self) -> str:
        """Describe the server's end, with its last output."""
        exit_ = ProcessExit(status=self._server.wait(), last_words=last_words(self._output))
        return f"the fork server {exit_}" + (f":\n{exit_.last_words}" if exit_.last_words else "")

    def close(self) -> None:
        """End the remaining workers by closing their pipe, then the server once it has cleaned up."""
        os.close(self._parent_alive)
        self.start_no_more()
        self.wait_for_server()
        self._channel.shutdown(socket.SHUT_WR)
        self._wait_until(lambda: self.lost)
        self._server.kill()
        self._server.wait()
        self._free()

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + CLOSE_LIMIT_S
        while not is_so() and time.monotonic() < deadline:
            self.wait(0.1)
            self.check()

    def _ask(self, request: Request) -> None:
        self._outgoing += request.model_dump_json().encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        if self.lost or not self._outgoing:
            return
        try:
            while self._outgoing:
                del self._outgoing[: self._channel.send(self._outgoing)]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._lose_server()
            return
        self._events.modify(self._channel, select.EPOLLIN | (select.EPOLLOUT if self._outgoing else 0))

    def _handle(self, notice: Notice) -> None:
        match notice:
            case Built():
                self._report = notice.report
            case Started(number=number) if number in self._workers:
                worker = self._workers[number]
                worker.pid = notice.pid
                if worker.killed:
                    worker.send_kill()
            case Exited(number=number) if number in self._workers:
                self._workers[number].end(notice.exit)
            case Finished(job=job) if job == self._job:
                self._is_finished = True
                for worker in self._workers.values():
                    worker.end(ProcessExit())  # The cancelled ones.
            case Started() | Exited() | Finished():
                pass  # A notice of an earlier job.

    def _lose_server(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._events.unregister(self._channel)
        for worker in self._workers.values():
            if worker.exit is not None:
                continue
            try:
                if worker.pid is None:
                    worker.end(ProcessExit())
                else:
                    descriptor = os.pidfd_open(worker.pid)
                    self._orphans[descriptor] = worker
                    self._events.register(descriptor, select.EPOLLIN)
            except OSError:
                worker.end(ProcessExit())

    def _check_orphans(self) -> None:
        if not self._orphans:
            return
        for descriptor, _ in self._events.poll(0):
            self._orphans.pop(descriptor).end(ProcessExit())
            os.close(descriptor)

    def _free(self) -> None:
        self._events.close()
        self._channel.close()
        self._output.close()
        for descriptor in self._orphans:
            os.close(descriptor)

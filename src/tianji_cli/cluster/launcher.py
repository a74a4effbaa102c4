"""Starts the processes of a job on this host, through a fork server with everything slow imported."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tianji_cli.cluster.fork_server import NOTICE, Ended, Notice, Ready, Refused, Started
from tianji_cli.cluster.signals import STOP_SIGNALS
from tianji_cli.cluster.worker import Assignment
from tianji_cli.data.files import open_to_append


class WorkerProcess:
    """A worker, from the request for it until after its end.

    Attributes:
        assignment: what it is to do.
        pid: None until it runs.
        ended: it runs no more.
        exit_status: once it has ended: minus the signal's number if one killed it; None if nobody knows.
        refusal: why the system did not make it, if so.
        killed: by this program.
    """

    def __init__(self, assignment: Assignment) -> None:
        self.assignment = assignment
        self.pid: int | None = None
        self.ended = False
        self.exit_status: int | None = None
        self.refusal = ""
        self.killed = False

    def end(self, status: int | None) -> None:
        """Note that it runs no more."""
        self.ended, self.exit_status = True, status

    def send_kill(self) -> None:
        """End it, if it runs."""
        self.killed = True
        if self.pid is not None and not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class LocalLauncher:
    """Owns the fork server of a job, and the lifeline whose cut tells workers that their root is dead.

    Attributes:
        lost: the fork server is gone. Workers live on; how they end is then not known any more.
        dismissed: it is gone because it was to start nobody after all.

    Args:
        log: takes the output of the fork server, which has none unless an import fails.

    Raises:
        OSError: the server cannot be started.
    """

    def __init__(self, log: Path) -> None:
        self.lost = False
        self.dismissed = False
        self._ready = False
        self._received = b""
        self._workers: list[WorkerProcess] = []
        self._orphans: dict[int, WorkerProcess] = {}
        self._channel, theirs = socket.socketpair()
        watched, self._lifeline = os.pipe()
        command = [sys.executable, "-P", "-m", "tianji_cli.cluster.fork_server"]
        # Blocked signals stay blocked over fork and exec: what stops the job reaches the whole process
        # group, and must not end the server, without which nobody learns how workers end.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with theirs, open(open_to_append(log), "ab") as output:
                self._server = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(watched)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs.fileno(), watched),
                )
        except BaseException:
            self._channel.close()
            os.close(self._lifeline)
            raise
        finally:
            os.close(watched)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def descriptors(self) -> list[int]:
        """Readable when ``hear`` has something to do."""
        return list(self._orphans) if self.lost else [self._channel.fileno()]

    def start(self, assignment: Assignment) -> WorkerProcess:
        """Ask for a worker; returns at once."""
        worker = WorkerProcess(assignment)
        self._workers.append(worker)
        if self.lost:
            worker.end(None)
            return worker
        try:
            self._channel.sendall(assignment.encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            self._lose_server()
        return worker

    def hear(self) -> None:
        """Take note of whatever happened to the workers; never waits."""
        while not self.lost:
            try:
                data = self._channel.recv(1 << 16, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._lose_server()
                break
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._note(NOTICE.validate_json(line))
        self._look_after_orphans()

    def kill(self, worker: WorkerProcess) -> None:
        """End a worker at once, or as soon as it begins."""
        self.hear()
        worker.send_kill()
        if worker.pid is None and not self._ready and not self.lost:
            # It would begin after seconds of imports: without the server it never does.
            self.dismissed = True
            self._server.kill()
            self._lose_server()

    def wait(self, timeout_s: float) -> None:
        """Wait until ``hear`` has something to do."""
        select.select(self.descriptors, [], [], timeout_s)

    def close(self) -> None:
        """End the server, and with the lifeline every worker that is left."""
        self._server.kill()
        self._server.wait()
        self._channel.close()
        os.close(self._lifeline)
        for descriptor in self._orphans:
            os.close(descriptor)

    def _note(self, notice: Notice) -> None:
        match notice:
            case Ready():
                self._ready = True
            case Started():
                worker = self._workers[notice.number]
                worker.pid = notice.pid
                if worker.killed:
                    worker.send_kill()
            case Refused():
                worker = self._workers[notice.number]
                worker.refusal = notice.cause
                worker.end(None)
            case Ended():
                self._workers[notice.number].end(notice.status)

    def _lose_server(self) -> None:
        self.lost = True
        for worker in self._workers:
            if worker.ended:
                continue
            try:
                if worker.pid is None:
                    worker.end(None)
                else:
                    self._orphans[os.pidfd_open(worker.pid)] = worker
            except OSError:
                worker.end(None)

    def _look_after_orphans(self) -> None:
        if not self._orphans:
            return
        for descriptor in select.select(list(self._orphans), [], [], 0)[0]:
            self._orphans.pop(descriptor).end(None)
            os.close(descriptor)


def describe_exit(status: int | None) -> str:
    """Say how a process ended, in words."""
    if status is None:
        return "ended, and nobody knows how"
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"

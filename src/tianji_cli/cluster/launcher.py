"""Starts the processes of a job on this host, from a server that has imported what is slow to import."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.context import ForkServerProcess

from tianji_cli.cluster.worker import Assignment, run_worker


class WorkerProcess:
    """A started worker."""

    def __init__(self, assignment: Assignment, process: ForkServerProcess) -> None:
        self.assignment = assignment
        self._process = process

    @property
    def rank(self) -> int:
        """The worker's rank."""
        return self.assignment.rank

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process has ended."""
        return self._process.sentinel

    @property
    def exit_status(self) -> int | None:
        """None while it runs; minus the signal's number if one killed it."""
        return self._process.exitcode

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def reap(self) -> None:
        """Wait for a process that has ended or was killed, and forget it."""
        self._process.join()
        self._process.close()


class LocalLauncher:
    """Owns the fork server of a job."""

    def __init__(self) -> None:
        # Workers set their own numbers of threads; libraries that read these at import get one.
        for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
            os.environ.setdefault(variable, "1")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tianji_cli.cluster.preload"])

    def start(self, assignment: Assignment) -> WorkerProcess:
        """Start a worker."""
        process = self._context.Process(target=run_worker, args=(assignment,))
        process.start()
        return WorkerProcess(assignment, process)


def describe_exit(status: int) -> str:
    """Say how a process ended, in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"

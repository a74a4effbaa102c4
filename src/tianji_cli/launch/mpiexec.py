"""Starts this very command under ``mpiexec``, for a job that needs MPI and was not started by it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import end_with_parent, python_command
from tianji_cli.signals import INTERRUPTED, STOP_SIGNALS
from tianji_transports import registry
from tianji_transports.errors import TransportError

STARTED_AGAIN: Final = "TIANJI_STARTED_AGAIN"
"""Environment variable that tells the ranks who started them."""

EXIT_STATUS: Final = {"finished": 0, "failed": 1, "stopped": INTERRUPTED}


def run_under_mpiexec(job: JobConfig, processes: int, run: RunDirectory, *, resumed: bool) -> int:
    """Run the job in as many ranks as the plan has processes, and stay until it is over.

    Args:
        job: the job. The root may be bound to fewer cores, and is told what was chosen for those seen here.
        processes: of the plan; the first of them is the root.
        run: its directory. It tells afterwards whether the root came to its end.
        resumed: the directory is an earlier run's.

    Returns:
        The exit status of the root.

    Raises:
        UsageError: there is no mpiexec, or no mpi4py.
        RunFailed: mpiexec ended the job before the root could, because a rank died.
    """
    run.summary.unlink(missing_ok=True)
    distribution = job.distribution
    more = ["--set", f"distribution.actor.num={distribution.actor.num}"]
    more += ["--set", f"distribution.pin_cores={str(distribution.pin_cores).lower()}"]
    status = run_again_under_mpiexec(processes, more if resumed else [*more, "--run", str(run.path)])
    try:
        summary = read_json(run.summary)
        said, reason = summary["status"], summary["reason"]
    except (OSError, ValueError, KeyError):
        raise RunFailed(_cause(status, run)) from None
    if said == "failed" and status != EXIT_STATUS["failed"]:
        # A rank has died, and its launcher passes no more on of what the root writes to stderr.
        raise RunFailed(reason)
    return EXIT_STATUS[said]


def run_again_under_mpiexec(processes: int, more: Sequence[str] = ()) -> int:
    """Run this very command in so many ranks, and stay until they have ended.

    Args:
        processes: how many.
        more: further arguments.

    Returns:
        What mpiexec exits with.

    Raises:
        UsageError: there is no mpiexec, or no mpi4py.
    """
    os.environ[STARTED_AGAIN] = "1"
    again = python_command("tianji_cli", *sys.argv[1:], *more)
    command = [*_launcher(), "-n", str(processes), *again]
    sys.stdout.flush()
    sys.stderr.flush()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    launcher = subprocess.Popen(command, preexec_fn=_prepare_launcher)  # noqa: PLW1509 - no thread is there yet
    for number in (signal.SIGTERM, signal.SIGHUP):  # A Ctrl-C reaches mpiexec through the terminal.
        signal.signal(number, lambda number, _frame: launcher.send_signal(number))
    return launcher.wait()


def started_again() -> bool:
    """Say whether this is a rank that ``run_again_under_mpiexec`` has started."""
    return STARTED_AGAIN in os.environ


def has_mpiexec() -> bool:
    """Say whether MPI jobs can be started here."""
    return _find_mpiexec() is not None


def _find_mpiexec() -> str | None:
    # The one beside this Python belongs to its mpi4py.
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _launcher() -> list[str]:
    try:
        registry.load("mpi")
    except TransportError as cause:
        raise UsageError(str(cause)) from cause
    mpiexec = _find_mpiexec()
    if mpiexec is None:
        raise UsageError("transport 'mpi' needs mpiexec: pip install 'tianji[mpi]', or load a cluster's MPI")
    shown = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" in shown:
        # When a rank dies, MPICH shall leave it to the root to end the job, and to save.
        return [mpiexec, "-disable-auto-cleanup"]
    return [mpiexec, "--oversubscribe"]


def _prepare_launcher() -> None:
    """Have the kernel end mpiexec, and with it every rank, when this process ends."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    end_with_parent(signal.SIGKILL)


def _cause(status: int, run: RunDirectory) -> str:
    number = abs(status) & 0x7F
    try:
        how = f"a process was killed by {signal.Signals(number).name}"
    except ValueError:
        how = f"it exited with status {status}"
    saved = (
        ""
        if not (run.checkpoints / "last").exists()
        else f"; --resume {run.path} goes on from its last checkpoint"
    )
    return f"mpiexec has ended the job: {how}{saved}"

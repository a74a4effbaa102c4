"""`tianji trace`: records a timeline of the roles of a running job."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from tianji_cli.commands.options import Run
from tianji_cli.errors import RunFailed, TianjiError, UsageError, errors_as
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.traces import MOST_S, TracePlace, TraceResult, asked_for
from tianji_cli.plan.plan import this_host
from tianji_cli.telemetry.metrics import writer_here
from tianji_cli.telemetry.progress import status
from tianji_cli.telemetry.run_state import is_running, read_state, root_host

LOOK_S: Final = 0.2
"""Seconds between two looks at the files; there is no event if another host writes them."""

QUIET_S: Final = 15.0
"""Seconds without a new row after which a root does not answer; it writes a row of metrics each second."""

PATIENCE_S: Final = 60.0
"""Seconds to wait for a trace after its window. The root waits for its workers for half of this."""

Seconds = Annotated[float, typer.Option("--seconds", metavar="S", help="How long the run is traced.")]
TraceOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="TRACE.json", help="The Chrome trace; RUN/trace.json if not said."),
]


def trace(run: Run, *, seconds: Seconds = 5.0, out: TraceOut = None) -> int:
    """Trace a run that is going on, on all its hosts, and draw its timeline.

    Example: tianji trace ppo_cartpole --seconds 5 --out trace.json

    Raises:
        UsageError: there is no such run, it does not run, or is being traced.
        RunFailed: nothing came of it.
    """
    check_seconds("--seconds", seconds)
    directory = RunDirectory.find(run)
    where = directory.trace if out is None else out
    _check_place(where)
    state = read_state(directory)
    if state.status != "running":
        message = f"{directory.path} does not run: {state.status}{state.reason and f', {state.reason}'}"
        raise UsageError(f"{message}\na run is traced while it trains: tianji train ... --trace {seconds:g}")
    _check_user(directory)
    with requested(directory, seconds) as place:
        with status(f"tracing {directory.path} for {seconds:g} s"):
            result = _await_result(directory, place, seconds)
        leave(directory, place, result, where)
    return 0


def check_seconds(option: str, seconds: float) -> None:
    """Refuse to trace for no time, or for more than ``MOST_S``.

    Raises:
        UsageError: names the times that are right.
    """
    if not 0 < seconds <= MOST_S:  # NaN is neither.
        shown = f"{seconds:g}" if math.isfinite(seconds) else str(seconds)
        raise UsageError(f"{option} {shown} is no time to trace: more than 0, and {MOST_S:g} at most")


def _check_place(where: Path) -> None:
    """Refuse a place that cannot be written to, before the trace begins."""
    if where.is_dir() or not os.access(where.parent, os.W_OK):
        raise UsageError(f"cannot write {where}: --out takes a file in a directory that is there")


def _check_user(run: RunDirectory) -> None:
    """Refuse to ask a run of another user, as the superuser can: the run may not read the request."""
    with suppress(FileNotFoundError):  # The process ends just now.
        process = writer_here(run.metrics)
        if process is not None and (owner := Path(f"/proc/{process}").stat().st_uid) != os.geteuid():
            raise UsageError(f"{run.path} is trained by user {owner}, who alone can trace it")


@contextmanager
def requested(run: RunDirectory, seconds: float) -> Iterator[TracePlace]:
    """Ask a run for a trace; see ``asked_for``.

    Raises:
        TianjiError: the request cannot be written.
    """
    with ExitStack() as stack:
        with errors_as(TianjiError, f"cannot ask {run.path} for a trace", OSError):
            place = stack.enter_context(asked_for(run, seconds))
        yield place


def leave(
    run: RunDirectory, place: TracePlace, result: TraceResult, out: Path, *, quiet: bool = False
) -> None:
    """Write and draw the timeline of a trace, and print it unless ``quiet``.

    Raises:
        RunFailed: no process has reported anything.
        TianjiError: a file cannot be read or written.
    """
    # NumPy and matplotlib take a second to import, which other commands save.
    from tianji_cli.runs.timeline.report import leave_timeline, print_timeline  # noqa: PLC0415
    from tianji_cli.runs.timeline.timeline import read_timeline  # noqa: PLC0415

    timeline = read_timeline(str(run.path), place, result)
    if not timeline.lanes:
        raise RunFailed("\n".join((f"nothing came of the trace of {run.path}", *timeline.notes())))
    with status("drawing the timeline", quiet=quiet):
        leave_timeline(timeline, run, out)
    if not quiet:
        print_timeline(timeline, run, out)


def _await_result(run: RunDirectory, place: TracePlace, seconds: float) -> TraceResult:
    """Wait for the result of a trace.

    Raises:
        RunFailed: the run has ended before, or its root does not answer.
        TianjiError: the result cannot be read.
    """
    size, until_s, is_taken = -1, math.inf, False
    while True:
        # The order matters: a root that ends or gives up answers before that, if at all.
        goes_on, is_there = is_running(run), place.is_there
        result = place.read_result()
        if result is not None:
            return result
        if not goes_on:
            raise RunFailed(f"{run.path} has ended before it was traced")
        if not is_there:
            raise RunFailed(f"the trace of {run.path} was given up: tianji logs {run.path} root-0 says why")
        now = time.monotonic()
        if not is_taken and place.is_taken:
            is_taken, until_s = True, now + seconds + PATIENCE_S
        elif not is_taken and (now_size := _size(run.metrics)) != size:
            size, until_s = now_size, now + QUIET_S
        if now > until_s:
            raise RunFailed(_no_answer(run, is_taken=is_taken))
        select.select((), (), (), LOOK_S)  # A signal ends it at once.


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # The run was removed just now: the next look finds that it does not run.
        return -1


def _no_answer(run: RunDirectory, *, is_taken: bool) -> str:
    if is_taken:
        return f"{run.path} has not said what came of the trace: its root does not answer any more"
    host = root_host(run)
    message = f"nothing has come from {run.path} for {QUIET_S:g} s, so that it was not traced"
    if host in {None, this_host().name}:
        return f"{message}: it still waits for hosts, or its root is suspended"
    return f"{message}: its root is on {host}; trace it there, unless that host is to see this directory"

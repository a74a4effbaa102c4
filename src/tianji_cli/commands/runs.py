"""`tianji show`, `logs`, `stop` and `rm`: act on an existing run, from its files alone.

`tianji list runs` has its lines from here, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tianji_cli.commands.completion import processes, runs
from tianji_cli.commands.options import Json, Run, Runs
from tianji_cli.errors import RunFailed, TianjiError, UsageError, one_line, printable
from tianji_cli.files.campaigns import SeedsDirectory
from tianji_cli.files.directories import is_occupied
from tianji_cli.files.regular import CONFIG, LOG_BYTES, open_regular, read_toml
from tianji_cli.files.rundir import DEFAULT_OUT, RunDirectory
from tianji_cli.launch.children import process_state, wait_for_end
from tianji_cli.quantities import count, memory, number
from tianji_cli.signals import INTERRUPTED
from tianji_cli.telemetry.metrics import AppendOnlyFile, InUseError, read_summary, writer_here
from tianji_cli.telemetry.progress import status
from tianji_cli.telemetry.report import document_of, print_lines, print_result
from tianji_cli.telemetry.run_state import RunState, is_running, read_state, root_host, summarise_config
from tianji_cli.telemetry.tables import print_facts, print_table, write_json

LOOK_S: Final = 0.5
"""Seconds between two looks at growing files; there is no event if another host writes them."""

BLOCK: Final = 1 << 20
"""Bytes of a log that are read at once."""

LONGEST_LINE: Final = 1 << 16
"""Maximum bytes of a log in one printed line."""

SeveralRuns = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Paths of runs, NAME/N, NAME/seeds-N for those of all seeds, or NAME for its newest.",
        autocompletion=runs,
    ),
]
Process = Annotated[
    str | None,
    typer.Argument(
        metavar="[ROLE-RANK]",
        help="Only this process's, such as actor-2.",
        autocompletion=processes,
    ),
]
Follow = Annotated[bool, typer.Option("-f", "--follow", help="Go on printing until the run is over.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Ask it to stop, and do not wait for its end.")]
Limit = Annotated[
    float, typer.Option("--limit", metavar="S", min=0.0, help="Seconds that its end is waited for.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def list_runs(out: Path, json_to: str | None) -> None:
    """Print the runs in a directory, the newest first."""
    states = sorted(map(read_state, runs_in(out)), key=lambda state: state.begun_s or 0.0, reverse=True)
    if not write_json({"runs": [_document(state, out) for state in states]}, json_to):
        return
    if not states:
        print_lines([f"there are no runs in {out}{os.sep} (--out DIR looks elsewhere)"])
        return
    rows = [
        (
            printable(_name(state.run, out)),
            state.status,
            "" if state.env_steps is None else count(state.env_steps),
            "" if state.best_mean_100 is None else number(state.best_mean_100),
            "" if state.begun_s is None else f"{datetime.fromtimestamp(state.begun_s):%Y-%m-%d %H:%M}",
            memory(state.nbytes),
            state.reason,
        )
        for state in states
    ]
    columns = ("run", "status", "env steps", "best return", "begun", "size", "why")
    print_table(columns, rows, f"runs in {out}{os.sep}", right=(2, 3, 5))


def runs_in(out: Path) -> Iterator[RunDirectory]:
    """Yield all directories that have a run's place below a directory, ``NAME/N``, whole or damaged.

    Seeds of a config are in ``NAME/seeds-N/SEED``, a sweep's trials in ``NAME/sweep-N/trials/N/SEED``.
    """
    for experiment in _directories(out):
        several = (below for kind in ("seeds-*", "sweep-*/trials/*") for below in experiment.glob(kind))
        for place in (experiment, *sorted(several)):
            for path in _directories(place):
                if path.name.isascii() and path.name.isdecimal():
                    yield RunDirectory(path)


def _directories(place: Path) -> list[Path]:
    try:
        return sorted(path for path in place.iterdir() if path.is_dir())
    except OSError:
        return []


def _name(run: RunDirectory, out: Path) -> str:
    """Shortest name of a run that a command accepts as RUN."""
    is_usual = out == DEFAULT_OUT and run.path.is_relative_to(out)
    return str(run.path.relative_to(out) if is_usual else run.path)


def _document(state: RunState, out: Path) -> dict[str, Any]:
    begun = None if state.begun_s is None else datetime.fromtimestamp(state.begun_s, UTC).isoformat()
    return {
        "name": _name(state.run, out),
        "run": str(state.run.path.absolute()),
        "status": state.status,
        "reason": state.reason,
        "env_steps": state.env_steps,
        "best_mean_100": state.best_mean_100,
        "begun": begun,
        "bytes": state.nbytes,
    }


def show(run: Run, *, out: Runs = None, json_to: Json = None) -> int:
    """Print what a run is, how it stands or what it came to, and where its files are.

    Example: tianji show ppo_cartpole

    Raises:
        UsageError: there is no such run.
    """
    place = DEFAULT_OUT if out is None else out
    directory = RunDirectory.find(run, place)
    state = read_state(directory)
    config = _config_of(directory)
    summary, unreadable = None, ""
    if state.is_over:
        try:
            is_whole = state.status not in {"killed", "damaged"}
            summary = read_summary(directory.summary) if is_whole else None
        except TianjiError as error:
            unreadable = str(error)
    checkpoints = directory.checkpoint_names
    files = _files_of(directory)
    whole = None if summary is None else document_of(summary, directory)
    details = {"config": config, "summary": whole, "checkpoints": list(checkpoints), "files": files}
    if not write_json(_document(state, place) | details, json_to):
        return 0
    if summary is not None:
        print_result(summary, directory)
    else:
        print_lines(_standing(state))
    if unreadable:
        print_lines([unreadable])
    facts = {**summarise_config(config), "checkpoints": ", ".join(checkpoints) or "none yet", **files}
    facts |= {"size": memory(state.nbytes)}
    if state.begun_s is not None:
        facts |= {"begun": f"{datetime.fromtimestamp(state.begun_s):%Y-%m-%d %H:%M:%S}"}
    print_lines([""])
    print_facts((label, one_line(fact)) for label, fact in facts.items())
    return 0


def _standing(state: RunState) -> Iterator[str]:
    yield f"{state.run.path} {state.status}" + (f": {state.reason}" if state.reason else "")
    if state.env_steps is not None:
        best = "" if state.best_mean_100 is None else f", best mean return {number(state.best_mean_100)}"
        yield f"{count(state.env_steps)} env steps{best}"
    path = shlex.quote(str(state.run.path))
    if state.status == "running":
        yield f"tianji watch {path} shows it; tianji stop {path} ends it"
    elif state.status == "killed" and (state.run.checkpoints / "last").exists():
        yield f"go on with it: tianji train --resume {path}"


def _config_of(run: RunDirectory) -> dict[str, Any]:
    """Read a run's config without validation; empty if it cannot be read."""
    try:
        return read_toml(run.config)
    except (OSError, ValueError):
        return {}


def _files_of(run: RunDirectory) -> dict[str, str]:
    """Paths of a run's files that exist, by kind."""
    places = {
        "config": run.config,
        "metrics": run.metrics,
        "logs": run.path / "logs",
        "plots": run.plots,
        "result": run.summary,
    }
    return {what: str(place) for what, place in places.items() if place.exists()}


def logs(run: Run, process: Process = None, *, follow: Follow = False, out: Runs = None) -> int:
    """Print what a run's processes have written to their logs.

    Example: tianji logs ppo_cartpole --follow

    Raises:
        UsageError: there is no such run or process.
        TianjiError: a log cannot be read.
    """
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    try:
        _print_logs(directory, process, follow=follow)
    except BrokenPipeError:
        # Flushing the rest of the buffer would raise an error at the interpreter's end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    return 0


def _print_logs(run: RunDirectory, process: str | None, *, follow: bool) -> None:
    known: dict[str, _Log] = {}
    while True:
        # The order matters: a run that is over has written all lines that are read after.
        waits = run.config.exists() and not run.metrics.exists()
        goes_on = follow and (waits or is_running(run))
        found = _logs_of(run, process)
        if process is not None and not found and not goes_on:
            there = ", ".join(_logs_of(run, None)) or "none"
            raise UsageError(f"{run.path} has no log of {process!r}; there are {there}")
        known |= {name: _Log(path) for name, path in found.items() if name not in known}
        width = max(map(len, known), default=0)
        for name, log in known.items():
            prefix = f"{name.ljust(width)} | " if process is None else ""
            try:
                for line in log.lines(rest=not goes_on):
                    sys.stdout.write(f"{prefix}{line}\n")
            except OSError as cause:
                if isinstance(cause, BrokenPipeError):
                    raise
                raise TianjiError(f"cannot read {log.path}: {cause.strerror}") from cause
        sys.stdout.flush()
        if not goes_on:
            return
        select.select((), (), (), LOOK_S)  # A signal ends it at once.


def _logs_of(run: RunDirectory, process: str | None) -> dict[str, Path]:
    """Find the logs by process name, in the order of ranks; or only those of one process."""
    paths = {path.stem: path for path in (run.path / "logs").glob("*.log")}

    def rank(name: str) -> tuple[int, str]:
        last = name.rpartition("-")[2]
        return (int(last) if last.isdecimal() else sys.maxsize), name

    def is_meant(name: str) -> bool:
        if process is None or name == process:
            return True
        role, _, of_rank = process.rpartition("-")
        *roles, its_rank = name.split("-")
        return role in roles and of_rank == its_rank  # "learner-1" is "buffer-learner-1", too.

    return {name: paths[name] for name in sorted(paths, key=rank) if is_meant(name)}


class _Log:
    """Reads a log, and remembers the position up to which it was printed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._position = 0
        self._last = b"\n"

    def lines(self, *, rest: bool) -> Iterator[str]:
        """Yield the whole lines since the last call, fit for a terminal.

        Args:
            rest: include the text after the last line break.

        Raises:
            OSError: the log cannot be read.
        """
        with open(open_regular(self.path), "rb") as file:
            if os.fstat(file.fileno()).st_size < self._position:  # The log was cut, or begun anew.
                file.seek(LOG_BYTES)
                kept = file.read()
                shown = kept.rfind(self._last) + len(self._last) if self._last in kept else 0
                self._position = LOG_BYTES + shown if kept else 0
            file.seek(self._position)
            while line := file.readline(LONGEST_LINE):
                if not (line.endswith(b"\n") or rest or len(line) == LONGEST_LINE):
                    return
                self._position += len(line)
                self._last = line
                yield printable(line.decode(errors="replace").rstrip("\n"))


def stop(run: Run, *, no_wait: NoWait = False, limit_s: Limit = 120.0, out: Runs = None) -> int:
    """Ask a run to save a checkpoint and end, as Ctrl-C does, and wait for its end.

    Example: tianji stop ppo_cartpole

    Raises:
        UsageError: there is no such run, or it is not this host's to stop.
        RunFailed: it has failed instead, or not ended in time.
    """
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    state = read_state(directory)
    if state.status != "running":
        print_lines([f"{directory.path} does not run: {state.status}{state.reason and f', {state.reason}'}"])
        return 0
    root = _root_process(directory)
    if root is not None:
        pid, descriptor = root
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            if no_wait:
                print_lines([f"{directory.path} was asked to stop"])
                return 0
            with status(f"waiting for {directory.path} to save a checkpoint and end"):
                ended = wait_for_end([descriptor], limit_s)
            if not ended:
                raise RunFailed(_goes_on(directory, pid, limit_s))
        except (ProcessLookupError, PermissionError) as cause:
            raise UsageError(f"process {pid} cannot be signalled: {cause.strerror}") from cause
        finally:
            os.close(descriptor)
    state = read_state(directory)
    if state.status in {"failed", "killed"}:
        raise RunFailed(f"{directory.path} {state.status}: {state.reason}")
    print_lines(_standing(state))
    if state.status == "stopped":
        print_lines(
            [f"go on with it: tianji train --resume {shlex.quote(str(directory.path))}"], to_copy=True
        )
    return 0


def _root_process(run: RunDirectory) -> tuple[int, int] | None:
    """Find the process that holds a run: it has the run's metrics open for appending.

    Returns:
        The process's number and a pidfd, which the caller closes; None if the process has ended meanwhile.

    Raises:
        UsageError: the process is on another host, or another user's.
    """
    pid = writer_here(run.metrics)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            if writer_here(run.metrics) == pid:  # No other process has taken over the number.
                return pid, descriptor
            os.close(descriptor)
    if not is_running(run):
        return None
    if is_occupied(run.checkpoints):
        raise UsageError(f"{run.path} has lost its root; a learner still saves, and then ends by itself")
    host, path = root_host(run) or "another host", shlex.quote(str(run.path.absolute()))
    raise UsageError(
        f"{run.path} is held by no process that you may see here; it was begun on {host}\n"
        f"stop it there, as its user: tianji stop {path}"
    )


def _goes_on(run: RunDirectory, pid: int, limit_s: float) -> str:
    message = f"{run.path} was asked to stop, and has not ended within {limit_s:g} s"
    if process_state(pid) == "T":
        return f"{message}: process {pid} is stopped; kill -CONT {pid} lets it go on"
    path = shlex.quote(str(run.path))
    again = f"asked again it does not wait for its processes: tianji stop {path}"
    return f"{message}\nit may still be saving: tianji watch {path}\n{again}"


def rm(runs: SeveralRuns, *, yes: Yes = False, out: Runs = None) -> int:
    """Remove runs with all that they have left; NAME/seeds-N is those of all its seeds.

    Example: tianji rm ppo_cartpole/1

    Raises:
        UsageError: one is no run, is a link, or runs; or the user has not said yes. Then none is removed.
        TianjiError: something cannot be removed.
    """
    place = DEFAULT_OUT if out is None else out
    named = {run: SeedsDirectory.find(run, place) for run in runs}
    several = [seeds for seeds in named.values() if seeds is not None]
    found = [one.path for seeds in several for one in seeds.runs.values()]
    found += [RunDirectory.find(run, place).path for run, seeds in named.items() if seeds is None]
    states = [read_state(RunDirectory(path)) for path in dict.fromkeys(found)]
    for state in states:
        if state.run.path.is_symlink():
            raise UsageError(f"{state.run.path} is a link: name the run that it leads to, or remove the link")
        if state.status == "running":
            path = shlex.quote(str(state.run.path))
            raise UsageError(f"{state.run.path} is running: tianji stop {path} ends it")
    with contextlib.ExitStack() as stack:
        for seeds in several:
            stack.enter_context(seeds.alone())
        _confirm(states, yes=yes)
        for state in states:
            with _not_in_use(state.run):
                _remove(state.run)
            print_lines([f"removed {state.run.path}"])
        for seeds in several:
            _remove(RunDirectory(seeds.path))
    return 0


def _confirm(states: Sequence[RunState], *, yes: bool) -> None:
    """Ask the user on a terminal; without a terminal ``--yes`` is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to ask whether to remove it: --yes says so")
    for state in states:
        print_lines([f"{state.run.path}  {state.status}, {memory(state.nbytes)}"])
    if not typer.confirm("remove it?" if len(states) == 1 else f"remove these {len(states)} runs?"):
        raise UsageError("nothing was removed")


@contextlib.contextmanager
def _not_in_use(run: RunDirectory) -> Iterator[None]:
    """Lock a run, so that no process can resume it meanwhile."""
    try:
        held = AppendOnlyFile(run.metrics) if run.metrics.exists() else None
    except InUseError as cause:
        raise UsageError(f"{run.path} is running: tianji stop ends it") from cause
    except OSError as cause:
        raise TianjiError(f"cannot look at {run.metrics}: {cause.strerror}") from cause
    try:
        yield
    finally:
        if held is not None:
            held.close()


def _remove(run: RunDirectory) -> None:
    """Remove a run, its config last: after an interruption the rest is still a run, which can be removed."""
    place = run.path.absolute()  # "." cannot be removed by that name.
    try:
        for entry in os.scandir(place):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)  # Removes links in it without following them.
            elif entry.name != CONFIG:
                os.unlink(entry.path)
        (place / CONFIG).unlink(missing_ok=True)  # A seed that has not begun has none.
        place.rmdir()
    except (OSError, RecursionError) as cause:
        at, why = getattr(cause, "filename", None) or place, getattr(cause, "strerror", None) or cause
        raise TianjiError(f"cannot remove {at}: {why}") from cause
    experiment = place.parent
    if not Path.cwd().is_relative_to(experiment):
        with contextlib.suppress(OSError):  # The experiment has other runs.
            experiment.rmdir()

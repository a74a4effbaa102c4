"""`tianji watch`: shows a run of another terminal or another host until it is over."""

from __future__ import annotations

import contextlib
import select
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tianji_cli.commands.options import Json, Run, Runs
from tianji_cli.errors import RunFailed, TianjiError, one_line, os_errors_as, printable
from tianji_cli.files.directories import is_occupied
from tianji_cli.files.regular import read_toml
from tianji_cli.files.rundir import DEFAULT_OUT, NoSuchRunError, RunDirectory
from tianji_cli.plan.plan import this_host
from tianji_cli.signals import INTERRUPTED
from tianji_cli.telemetry.chart import LearningCurve
from tianji_cli.telemetry.display import Display, choose_display
from tianji_cli.telemetry.metrics import EvaluationRow, MetricsFollower, Row, has_writer, read_summary
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.run_state import SILENT_S, is_of_last_session
from tianji_cli.telemetry.snapshot import Summary

LOOK_S: Final = 0.5
"""Seconds between two looks at the files. There is no event when they grow: the run may be on another host,
and a shared file system does not announce writes from there."""

SETTLED_S: Final = 3.0
"""Seconds without a row after which a run with a result is over, where locks say nothing; a run without a
result is dead after ``SILENT_S``. A run writes a row each second; a file system may delay some rows."""

STALE_S: Final = 600.0
"""Seconds since the last write, by any clock, after which no process writes a file any more."""


def watch(run: Run, *, out: Runs = None, json_to: Json = None) -> int:
    """Show a run until it is over, and then its result, from its files alone.

    Example: tianji watch ppo_cartpole

    Returns:
        The exit status: 0 once the run is over, 130 if its terminal or pipe has gone.

    Raises:
        UsageError: there is no such run.
        RunFailed: it failed, or has ended without a result.
    """
    directory = RunDirectory.find(run, DEFAULT_OUT if out is None else out)
    try:
        with _Screen(_title(directory)) as screen:
            summary = _Watch(directory, screen).until_over()
    except _DisplayGoneError:
        return INTERRUPTED
    print_result(summary, directory, json_to)
    if summary.status == "failed":
        raise RunFailed(summary.reason)
    return 0


def _title(run: RunDirectory) -> str:
    """Title of the display, the same as that of `tianji train`."""
    try:
        title = f"{read_toml(run.config)['experiment']['name']} ({run.path})"
    except (OSError, ValueError, KeyError, TypeError):
        title = str(run.path)
    return one_line(title)


class _DisplayGoneError(Exception):
    """The terminal or pipe has gone."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Raise ``_DisplayGoneError`` in place of an OSError, to tell a lost display from other failures.

    Raises:
        _DisplayGoneError: the display cannot be written to.
    """
    try:
        yield
    except OSError as cause:
        raise _DisplayGoneError from cause


class _Screen(contextlib.AbstractContextManager["_Screen"]):
    """Owns the display: shows the newest row, and adds the other rows of its session to the curve.

    Every method that writes raises ``_DisplayGoneError`` if the terminal or pipe has gone.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._curve = LearningCurve()
        self._display = self._new_display()
        self._is_new = False
        self.newest: Row | None = None

    def __exit__(self, *_exception: object) -> None:
        with _writing():
            self._display.close()

    @property
    def host(self) -> str | None:
        """Host of the run's root; None before its first row."""
        return None if self.newest is None else self.newest.root_host

    def event(self, text: str) -> None:
        """Show an event."""
        with _writing():
            self._display.event(printable(text))

    def doing(self, what: str) -> None:
        """Show what the command waits for."""
        with _writing():
            self._display.doing(what)

    def _new_display(self) -> Display:
        return choose_display(self._title, quiet=False, stream=sys.stderr, curve=lambda: self._curve)

    def take(self, rows: Iterable[Row | EvaluationRow]) -> bool:
        """Add new rows; returns False if there are none."""
        newest = None
        for row in rows:
            if isinstance(row, Row):
                if self.newest is not None and row.wall_s < self.newest.wall_s:
                    self._begin_session()
                self.newest = newest = row
            self._curve.add_row(row)
        self._is_new |= newest is not None
        return newest is not None

    def draw(self) -> None:
        """Show the newest row."""
        if self.newest is not None and self._is_new:
            self._is_new = False
            try:
                snapshot = self.newest.snapshot()
            except ValueError:
                return  # The next row may be readable.
            with _writing():
                self._display.show(snapshot)

    def _begin_session(self) -> None:
        """Begin a new display for a resumed run, whose clock begins anew; the chart goes on."""
        with _writing():
            self._display.close()
        self._display = self._new_display()


class _Watch:
    """Looks at a run from outside until it is over."""

    def __init__(self, run: RunDirectory, screen: _Screen) -> None:
        self._run = run
        self._screen = screen
        self._metrics = MetricsFollower(run.metrics)
        self._grown_s = time.monotonic()
        self._looked = False
        self._said_waiting = False
        self._seen_empty = False

    def until_over(self) -> Summary:
        """Watch until the run has ended, and return its result.

        Raises:
            RunFailed: the run has no result.
            TianjiError: its files cannot be read, or are gone.
            _DisplayGoneError: the terminal or pipe has gone.
        """
        while True:
            summary = self._look()
            if summary is not None:
                return summary
            select.select((), (), (), LOOK_S)  # A signal ends it at once.

    def _look(self) -> Summary | None:
        # The order matters: a process that has closed the metrics has written all rows that are read after.
        held = self._is_held()
        if self._screen.take(self._metrics.rows()):
            self._grown_s = time.monotonic()
        if held or self._looked:  # A run that is over already shows only its result.
            self._screen.draw()
        self._looked = True
        if held:
            return None
        summary = read_summary(self._run.summary)
        quiet_s = self._quiet_s()
        if quiet_s is None:
            self._await_beginning()
            return summary
        here = held is False and self._screen.host in {None, this_host().name}
        if summary is not None and self._is_of_last_session(summary):
            return summary if here or quiet_s >= SETTLED_S else None
        if (here or quiet_s >= SILENT_S) and not self._is_saving():
            raise RunFailed(_died(self._run))
        return None

    def _is_held(self) -> bool | None:
        """Whether a process has the metrics open; None if unknown."""
        metrics = self._run.metrics
        with _reading(metrics), contextlib.suppress(FileNotFoundError):
            if not self._seen_empty and metrics.stat().st_size == 0:
                # The owner may be about to lock the file, and must find it free.
                self._seen_empty = True
                return True
            return has_writer(metrics)
        return None

    def _is_saving(self) -> bool:
        """Whether a learner still writes checkpoints; for that it outlives the root."""
        with _reading(self._run.checkpoints):
            return is_occupied(self._run.checkpoints)

    def _is_of_last_session(self, summary: Summary) -> bool:
        """Whether a summary is of the last session: a resumed run keeps the one before until its own end."""
        newest = self._screen.newest
        with _reading(self._run.sessions):
            of_last = is_of_last_session(self._run, summary.session)
        return of_last and (newest is None or newest.updates == summary.learner.updates)

    def _quiet_s(self) -> float | None:
        """Seconds since the last row; None before the first session."""
        metrics = self._run.metrics
        with _reading(metrics), contextlib.suppress(FileNotFoundError):
            age_s = time.time() - metrics.stat().st_mtime
            quiet_s = time.monotonic() - self._grown_s
            return max(quiet_s, age_s) if age_s >= STALE_S else quiet_s
        return None

    def _await_beginning(self) -> None:
        config = self._run.config
        with _reading(config):
            is_there = config.exists()
        if not is_there:
            raise NoSuchRunError(f"{self._run.path} is not there any more")
        if not self._said_waiting:
            self._said_waiting = True
            self._screen.event(f"{self._run.path} has not begun yet; waiting for its first row")
        self._screen.doing("waiting for the run to begin")


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn an OSError into a TianjiError that names the path."""
    return os_errors_as(TianjiError, f"cannot read {path}")


def _died(run: RunDirectory) -> str:
    path, logs = shlex.quote(str(run.path)), shlex.quote(str(run.path / "logs"))
    if (run.checkpoints / "last").exists():
        again = f"go on with it: tianji train --resume {path}"
    else:
        again = f"it has no checkpoint; begin again: tianji train {shlex.quote(str(run.config))}"
    return (
        f"{run.path} has ended without a result: it was killed, or could not begin\n"
        f"see its logs: ls {logs}\n{again}"
    )

"""`tianji watch`: shows a run that another terminal, or another host, has started, until it is over."""

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
from tianji_cli.telemetry.chart import Course
from tianji_cli.telemetry.metrics import (
    EvaluationRow,
    MetricsFollower,
    Roles,
    Row,
    has_writer,
    parsed,
    read_summary,
)
from tianji_cli.telemetry.report import print_result
from tianji_cli.telemetry.run_state import SILENT_S, is_of_last_session
from tianji_cli.telemetry.snapshot import Summary
from tianji_cli.telemetry.telemetry import Display, choose_display

LOOK_S: Final = 0.5
"""Seconds between two looks at the files. No event says that they have grown: the run may be on another host,
and a shared file system does not announce what is written there."""

SETTLED_S: Final = 3.0
"""Where locks say nothing, a run that has a result is over after so long without a row, and one that has none
is dead after ``SILENT_S``. A living run writes a row each second; a file system may keep it back for some."""

STALE_S: Final = 600.0
"""A file that was last written so long ago, by whatever clock, is written no more."""


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
    """What `tianji train` writes above its display."""
    try:
        title = f"{read_toml(run.config)['experiment']['name']} ({run.path})"
    except (OSError, ValueError, KeyError, TypeError):
        title = str(run.path)
    return one_line(title)


class _DisplayGoneError(Exception):
    """The terminal or pipe has gone."""


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Distinguish a display that has gone from other failures.

    Raises:
        _DisplayGoneError: in place of an OSError.
    """
    try:
        yield
    except OSError as cause:
        raise _DisplayGoneError from cause


class _Screen(contextlib.AbstractContextManager["_Screen"]):
    """Owns the display: shows the newest row, and has it remember the others of its session.

    Every method that writes raises ``_DisplayGoneError`` where the display has gone.
    """

    def __init__(self, title: str) -> None:
        self._title = title
        self._course = Course()
        self._display = self._new_display()
        self._roles: Roles = ()
        self._is_new = False
        self.newest: Row | None = None

    def __exit__(self, *_exception: object) -> None:
        with _writing():
            self._display.close()

    @property
    def host(self) -> str | None:
        """Where the root of the run is; None before its first row."""
        return next((role.get("host") for role in self._roles if role.get("role") == "root"), None)

    def event(self, text: str) -> None:
        """Show an event."""
        with _writing():
            self._display.event(printable(text))

    def doing(self, what: str) -> None:
        """Show what is waited for."""
        with _writing():
            self._display.doing(what)

    def _new_display(self) -> Display:
        return choose_display(self._title, quiet=False, stream=sys.stderr, course=lambda: self._course)

    def take(self, rows: Iterable[Row | EvaluationRow]) -> bool:
        """Take in rows that have come; False if there are none."""
        newest = None
        for row in rows:
            if isinstance(row, EvaluationRow):
                self._display.remember_evaluation(row.env_steps, row.mean)
                continue
            if self.newest is not None and row.elapsed_s < self.newest.elapsed_s:
                self._begin_session()
            self._display.remember(row.env_steps, row.mean_100)
            self.newest = newest = row
            if row.roles is not None:
                self._roles = row.roles
        self._is_new |= newest is not None
        return newest is not None

    def draw(self) -> None:
        """Show the newest row."""
        if self.newest is not None and self._is_new:
            self._is_new = False
            try:
                snapshot = self.newest.snapshot(self._roles)
            except ValueError:
                return  # The next one may be readable.
            with _writing():
                self._display.show(snapshot)

    def _begin_session(self) -> None:
        """A resumed run has a clock of its own; its chart goes on."""
        with _writing():
            self._display.close()
        self._display = self._new_display()


class _Watch:
    """Looks at a run from outside until it is over."""

    def __init__(self, run: RunDirectory, screen: _Screen) -> None:
        self._run = run
        self._screen = screen
        self._metrics: MetricsFollower[Row | EvaluationRow] = MetricsFollower(run.metrics, parsed)
        self._grown_s = time.monotonic()
        self._looked = False
        self._said_waiting = False
        self._seen_empty = False

    def until_over(self) -> Summary:
        """Stay until the run has ended, and give its result.

        Raises:
            RunFailed: it has none.
            TianjiError: its files cannot be read, or are gone.
            _DisplayGoneError: the terminal or pipe has gone.
        """
        while True:
            summary = self._look()
            if summary is not None:
                return summary
            select.select((), (), (), LOOK_S)  # A signal ends it at once.

    def _look(self) -> Summary | None:
        # In this order: a process that writes no more has written everything that is read after that.
        held = self._is_held()
        if self._screen.take(self._metrics.rows()):
            self._grown_s = time.monotonic()
        if held or self._looked:  # Of a run that is over already, only the result is wanted.
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
        """Whether a process has the metrics open; None if that cannot be known."""
        metrics = self._run.metrics
        with _reading(metrics), contextlib.suppress(FileNotFoundError):
            if not self._seen_empty and metrics.stat().st_size == 0:
                # Its owner may be just about to lock it, and must find it free.
                self._seen_empty = True
                return True
            return has_writer(metrics)
        return None

    def _is_saving(self) -> bool:
        """Whether a learner still writes checkpoints: it outlives its root for that."""
        with _reading(self._run.checkpoints):
            return is_occupied(self._run.checkpoints)

    def _is_of_last_session(self, summary: Summary) -> bool:
        """A resumed run keeps the summary of the session before until it has its own."""
        newest = self._screen.newest
        with _reading(self._run.sessions):
            of_last = is_of_last_session(self._run, summary.session)
        return of_last and (newest is None or newest.updates == summary.learner.updates)

    def _quiet_s(self) -> float | None:
        """For how long no row has come; None before the first session."""
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

"""Reads the files of a run for a page: state, numbers, config, and logs.

Only files are read, as by `tianji compare`: a run may come from another machine, and may still be going on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tianji_cli.errors import TianjiError, printable
from tianji_cli.files.regular import open_regular
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.runs.comparison.runs import read_config, read_rows, strange_rows
from tianji_cli.telemetry.machine import Session, read_sessions
from tianji_cli.telemetry.metrics import read_summary
from tianji_cli.telemetry.run_state import RunState, last_row, read_state
from tianji_cli.telemetry.snapshot import Snapshot, Summary

Rows = Sequence[Mapping[str, Any]]

TAIL_BYTES: Final = 1 << 18
"""Bytes read of a log, from its end."""
MOST_EVENTS: Final = 200
MOST_TRACEBACKS: Final = 3
TRACEBACK: Final = "Traceback (most recent call last)"
TRACEBACK_LINES: Final = 40
LONGEST_LINE: Final = 300
_EVENT: Final = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (.*)")


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """Files of a run, read for a page.

    Attributes:
        summary: its summary; None for a run that goes on, or has ended without a result.
        snapshot: its newest state, which is its summary if there is one; None before the first row.
        rows: all of its snapshots; ``evaluations`` has those during training. Both are empty if only the
            outline is wanted.
        events: times and texts of the newest events in the root's log, in their order; ``more_events`` if
            there were others before them.
        tracebacks: ends of the logs that contain one, by the names of the processes.
    """

    run: RunDirectory
    state: RunState
    config: Mapping[str, Any]
    summary: Summary | None
    snapshot: Snapshot | None
    rows: Rows
    evaluations: Rows
    sessions: Sequence[Session]
    events: Sequence[tuple[str, str]]
    more_events: bool
    tracebacks: Mapping[str, str]

    @property
    def name(self) -> str:
        """Path of the run, as the user wrote it."""
        return printable(str(self.run.path))

    def section(self, name: str) -> Mapping[str, Any]:
        """One section of its config; empty if there is none."""
        found = self.config.get(name)
        return found if isinstance(found, Mapping) else {}


def read_reported(run: RunDirectory, *, outline: bool = False) -> ReportedRun:
    """Read a run.

    Args:
        outline: leave out snapshots and logs, which may be large.

    Raises:
        TianjiError: a file is damaged, cannot be read, or is of another version.
    """
    config, state = read_config(run), read_state(run)
    is_over = state.status in {"finished", "stopped", "failed", "damaged"}
    summary = read_summary(run.summary) if is_over else None
    rows, evaluations = ([], []) if outline else read_rows(run)
    try:
        sessions = read_sessions(run)
        events, more_events = ([], False) if outline else _events(run.log("root", 0))
        tracebacks = {} if outline or state.status in {"finished", "running"} else _tracebacks(run)
    except OSError as cause:
        raise TianjiError(f"cannot read {cause.filename or run.path}: {cause.strerror}") from cause
    return ReportedRun(
        run=run,
        state=state,
        config=config,
        summary=summary,
        snapshot=summary or _newest(run, rows),
        rows=rows,
        evaluations=evaluations,
        sessions=sessions,
        events=events,
        more_events=more_events,
        tracebacks=tracebacks,
    )


def _newest(run: RunDirectory, rows: Rows) -> Snapshot | None:
    """Read the newest state of a run; its roles are known if all rows are."""
    roles: Rows = next((row["roles"] for row in reversed(rows) if row.get("roles")), [])
    try:
        row = last_row(run.metrics)
        return None if row is None else row.model_copy(update={"roles": roles}).snapshot()
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise TianjiError(f"cannot read {run.metrics}: {cause.strerror}") from cause
    except (ValueError, TypeError, AttributeError) as cause:
        raise strange_rows(run) from cause


def _events(log: Path) -> tuple[list[tuple[str, str]], bool]:
    """Read the newest events of the root's log, and whether there are others before them.

    Raises:
        OSError: the log is there and cannot be read.
    """
    found: list[tuple[str, str]] = []
    lines, is_whole = _tail(log)
    for line in lines:
        if stamped := _EVENT.fullmatch(line):
            found.append((stamped[1], stamped[2]))
        elif found:  # The text of an error may have several lines.
            at, text = found[-1]
            found[-1] = at, f"{text}\n{line}"
    return found[-MOST_EVENTS:], not is_whole or len(found) > MOST_EVENTS


def _tracebacks(run: RunDirectory) -> dict[str, str]:
    found: dict[str, str] = {}
    for log in sorted((run.path / "logs").glob("*.log")):
        lines, _ = _tail(log)
        if len(found) < MOST_TRACEBACKS and any(line.startswith(TRACEBACK) for line in lines):
            found[printable(log.stem)] = "\n".join(lines[-TRACEBACK_LINES:])
    return found


def _tail(log: Path) -> tuple[list[str], bool]:
    """Read the last lines of a log, fit for a page, and whether these are all; empty if there is no log."""
    try:
        descriptor = open_regular(log)
    except FileNotFoundError:
        return [], True
    with open(descriptor, "rb") as file:
        begin = max(0, os.fstat(descriptor).st_size - TAIL_BYTES)
        file.seek(begin)
        text = printable(file.read(TAIL_BYTES).decode(errors="replace"))
    lines = [line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..." for line in text.splitlines()]
    return (lines[1:], False) if begin else (lines, True)  # The first line may be torn.

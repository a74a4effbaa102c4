"""``metrics.jsonl`` and TensorBoard events: every snapshot of a run, written as it comes.

Training is worth more than its metrics: when they cannot be written (the disk is full), the run goes on,
the user is told once, and the rows that are missing are counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tianji_cli.files.regular import open_regular
from tianji_cli.files.rundir import RunDirectory, RunDirectoryError
from tianji_cli.telemetry.appending import AppendOnlyFile, InUseError
from tianji_cli.telemetry.events import EventFile
from tianji_cli.telemetry.snapshot import Snapshot


class MetricsWriter:
    """Owns the metric files of one run.

    Args:
        run: where they go. Rows are appended to those that a resumed run already has.
        warn: told, once, that rows cannot be written and why.
        resumed_at: environment steps that a resumed run begins with; what went past them is superseded.

    Raises:
        RunDirectoryError: the files cannot be opened, or another process is writing them.
    """

    def __init__(self, run: RunDirectory, warn: Callable[[str], None], resumed_at: int | None = None) -> None:
        self._warn = warn
        self.lost_rows = 0
        self.last_error = ""
        self._written_roles: list[dict[str, Any]] | None = None
        try:
            self._rows = AppendOnlyFile(run.metrics)
            self._rows.drop_torn_tail(b"\n")
            self._events = EventFile(run.path, resumed_at)
        except InUseError as cause:
            raise RunDirectoryError(
                f"{run.path} belongs to a run that is still going; stop it first or start a run of its own"
            ) from cause
        except OSError as cause:
            raise RunDirectoryError(f"cannot write metrics to {run.path}: {cause.strerror}") from cause

    def write(self, snapshot: Snapshot) -> None:
        """Write one snapshot to both files, or count it as lost.

        Who carries which role, where and how, is in a row only if it has changed: rows are many, and stay
        short however many actors there are.
        """
        roles = snapshot.standing()
        row = snapshot.metrics() | {"roles": None if roles == self._written_roles else roles}
        try:
            self._rows.append(json.dumps(row, allow_nan=False, separators=(",", ":")).encode() + b"\n")
            self._written_roles = roles
            self._events.append(snapshot)
        except OSError as cause:
            self.last_error = cause.strerror or str(cause)
            if not self.lost_rows:
                self._warn(f"metrics cannot be written ({self.last_error}); the run goes on without them")
            self.lost_rows += 1

    def close(self) -> None:
        """Close both files. Harmless when repeated."""
        self._rows.close()
        self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl`` as one history.

    A run that was resumed from a checkpoint has rows from before the interruption that lie past the
    checkpoint; the resumed run went through those steps anew, so they are left out.

    Raises:
        OSError: it cannot be read.
        ValueError: a line is no JSON object; says which.
    """
    rows: list[dict[str, Any]] = []
    for row in _parsed_lines(path):
        while rows and rows[-1]["env_steps"] > row["env_steps"]:
            rows.pop()
        rows.append(row)
    return rows


def _parsed_lines(path: Path) -> Iterator[dict[str, Any]]:
    with open(open_regular(path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return  # the writer was killed in the middle of it, or is still writing it
            try:
                yield json.loads(line)
            except ValueError as cause:
                raise ValueError(f"{path}, line {number}: not a JSON object") from cause

"""The process of one tracker: follows a run's metrics, and passes them on.

    python -m tianji_cli.telemetry.tracking NAME RUN POSITION

It reads ``metrics.jsonl`` from a position, as `tianji watch` does, until its standard input is closed: then
all rows are written. So a slow or broken tracker delays no training.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.source import flat
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.telemetry.metrics import (
    EVALUATION,
    MetricsFollower,
    Roles,
    evaluation_scalars,
    parsed_row,
    scalars,
)
from tianji_cli.telemetry.trackers import TrackedRun, Tracker, find_tracker

NICENESS: Final = 10
"""Nice value once the library is imported, so that training comes first; a nice import would take minutes."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the metrics: a row comes each second."""


def follow(name: str, run: RunDirectory, position: int) -> None:
    """Pass a run on to a tracker until standard input is closed."""
    noted = run.path / "trackers" / f"{name.replace(':', '.')}.json"
    earlier = json.loads(noted.read_text())["id"] if noted.exists() else None
    config = tomllib.loads(run.config.read_text(encoding="utf-8"))
    tracked = TrackedRun("/".join(run.path.absolute().parts[-2:]), run.path, flat_values(config), earlier)
    tracker_type = find_tracker(name)
    if tracker_type.library:
        import_module(tracker_type.library)
    os.nice(NICENESS)  # Threads and processes that the tracker has begun would keep their nice value.
    tracker = tracker_type(tracked)
    noted.parent.mkdir(exist_ok=True)
    write_whole(noted, json.dumps({"id": tracker.id}).encode() + b"\n")
    rows = _Rows(run.metrics, position)
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        rows.pass_on(tracker)
    rows.pass_on(tracker)
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    files = [*sorted(run.plots.glob("*.png")), *run.videos]
    tracker.finish(flat_values(summary), files)


class _Rows:
    """Owns the metrics that have not been passed on."""

    def __init__(self, metrics: Path, position: int) -> None:
        self._snapshots = MetricsFollower(metrics, parsed_row, position)
        self._evaluations = MetricsFollower(metrics, _evaluation, position)
        self._roles: Roles = ()

    def pass_on(self, tracker: Tracker) -> None:
        """Log the rows that were written since the last call."""
        for row in self._snapshots.rows():
            self._roles = row.roles or self._roles
            snapshot = row.snapshot(self._roles)
            tracker.log(snapshot.learner.env_steps, dict(scalars(snapshot)))
        for evaluation in self._evaluations.rows():
            tracker.log(evaluation["env_steps"], evaluation_scalars(evaluation))


def _evaluation(line: bytes) -> dict[str, Any] | None:
    """Parse a row that is an evaluation made during training; None for any other."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and row.get("kind") == EVALUATION else None


def flat_values(table: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the values of a document by dotted name; values that are no number or text become JSON text."""
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in flat(table)
    }


def main() -> None:
    """Follow the run that the command line names."""
    logging.getLogger().setLevel(logging.WARNING)
    follow(sys.argv[1], RunDirectory(Path(sys.argv[2])), int(sys.argv[3]))


if __name__ == "__main__":
    main()

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
from tianji_cli.telemetry.metrics import EvaluationRow, MetricsFollower, evaluation_scalars, scalars
from tianji_cli.telemetry.trackers import TrackedRun, find_tracker

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
    metrics, is_over = MetricsFollower(run.metrics, position), False
    while not is_over:
        is_over = bool(select.select([sys.stdin], [], [], LOOK_S)[0])
        for row in metrics.rows():  # Once more after the end: then all rows are written.
            if isinstance(row, EvaluationRow):
                values = evaluation_scalars(row.model_dump())
            else:
                values = dict(scalars(row.snapshot()))
            tracker.log(row.env_steps, values)
    summary = json.loads(run.summary.read_text(encoding="utf-8"))
    files = [*sorted(run.plots.glob("*.png")), *run.videos]
    tracker.finish(flat_values(summary), files)


def flat_values(table: Mapping[str, Any]) -> dict[str, bool | int | float | str]:
    """Return the known values of a document by dotted name; those that are no number or text as JSON text."""
    return {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in flat(table)
        if value is not None
    }


def main() -> None:
    """Follow the run that the command line names."""
    logging.getLogger().setLevel(logging.WARNING)
    follow(sys.argv[1], RunDirectory(Path(sys.argv[2])), int(sys.argv[3]))


if __name__ == "__main__":
    main()

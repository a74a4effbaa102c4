"""Output of a trace: the Chrome trace, the pictures in the run's directory, and a table of shares."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from tianji_cli.errors import TianjiError
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.traces import WHAT
from tianji_cli.quantities import share
from tianji_cli.runs.timeline.chrome import write_chrome
from tianji_cli.runs.timeline.figure import draw_timelines
from tianji_cli.runs.timeline.timeline import Timeline
from tianji_cli.telemetry.figures import write_figure
from tianji_cli.telemetry.report import print_lines
from tianji_cli.telemetry.tables import print_table

MOST_ROWS: Final = 64
"""Most roles in the table."""


def leave_timeline(timeline: Timeline, run: RunDirectory, out: Path) -> None:
    """Write a timeline as a Chrome trace, and draw it into the run's ``plots/``.

    Raises:
        TianjiError: a file cannot be written.
    """
    try:
        write_chrome(timeline, out)
        run.plots.mkdir(exist_ok=True)
        for kind in ("png", "svg"):
            draw = partial(draw_timelines, timelines={timeline.name: timeline})
            write_figure(draw, 1.0, run.plots / f"timeline.{kind}")
    except OSError as cause:
        raise TianjiError(f"cannot write {cause.filename or out}: {cause.strerror}") from cause


def print_timeline(timeline: Timeline, run: RunDirectory, out: Path) -> None:
    """Print the share of the window that each role spent on each activity, and the paths of the files."""
    shown = [what for what in WHAT if what != "turn"]
    seen = [what for what in shown if any(lane.seconds_of(what) for lane in timeline.lanes)]
    rows = [
        (
            str(lane.process.rank),
            lane.role,
            share(lane.busy),
            *(share(lane.seconds_of(what) / timeline.seconds) for what in seen),
        )
        for lane in timeline.lanes[:MOST_ROWS]
    ]
    columns = ("rank", "role", "busy", *seen)
    print_table(columns, rows, f"{timeline.name}, {timeline.seconds:.3g} s", right=range(2, len(columns)))
    if (more := len(timeline.lanes) - len(rows)) > 0:
        print_lines([f"and {more} more roles, which the file has"])
    print_lines(timeline.notes())
    print_lines([f"{out}: open it at ui.perfetto.dev", f"{run.plots / 'timeline.png'}, timeline.svg"])

"""The one object through which a run shows itself: metrics files, display, plots and summary.

The root role calls it from its loop; nothing here starts a thread, and no failing disk or closed terminal
ends a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TextIO

from tianji_cli.files.regular import open_to_append
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.telemetry.metrics import MetricsWriter
from tianji_cli.telemetry.plain import Display, PlainDisplay, QuietDisplay
from tianji_cli.telemetry.snapshot import Snapshot, Summary


class Telemetry:
    """Owns what a run shows and writes about itself while it goes and when it ends.

    Args:
        run: the run's directory.
        display: what the user sees meanwhile; see ``choose_display``.
        resumed_at: environment steps that a resumed run begins with; None for a new run.

    Raises:
        RunDirectoryError: the metric files cannot be opened, or another process is writing them.
    """

    def __init__(self, run: RunDirectory, display: Display, resumed_at: int | None = None) -> None:
        self.run = run
        self._display = display
        self._metrics = MetricsWriter(run, self.event, resumed_at)

    def update(self, snapshot: Snapshot) -> None:
        """Write a snapshot to the metrics and show it. More than one a second make a finer learning curve."""
        self._metrics.write(snapshot)
        self._on_display(lambda display: display.show(snapshot))

    def event(self, text: str) -> None:
        """Tell the user, and the root's log, that something happened: a restart, a checkpoint, a warning."""
        self._on_display(lambda display: display.event(text))
        self._log(text)

    def close(self, summary: Summary, *, plots: bool = True) -> Summary:
        """Give the terminal back, then write the summary and draw the plots.

        Args:
            summary: of the run.
            plots: False leaves them out, for a run that is to end within a second or whose config says so.

        Returns:
            The summary as it was written. What could not be written is in its ``reason``; a run whose
            summary could not be written counts as failed.
        """
        if self._metrics.lost_rows:
            missing = f"{self._metrics.lost_rows} snapshots are missing from the metrics"
            summary = replace(summary, reason=f"{summary.reason}; {missing} ({self._metrics.last_error})")
        try:
            text = json.dumps(summary.document(), indent=2, allow_nan=False) + "\n"
            write_whole(self.run.summary, text.encode())
        except OSError as cause:
            summary = replace(
                summary,
                status="failed",
                reason=f"{summary.reason}; {self.run.summary} could not be written ({cause.strerror})",
            )
        # Only now: a command that finds no process writing metrics finds the summary, or there is none.
        self._metrics.close()
        try:
            if plots:
                self._draw_plots()
        finally:
            self._on_display(lambda display: display.close())
        return summary

    def _on_display(self, call: Callable[[Display], None]) -> None:
        """Use the display; once its terminal or pipe has gone, the run goes on unseen."""
        try:
            call(self._display)
        except OSError as cause:
            gone, self._display = self._display, QuietDisplay()
            with contextlib.suppress(OSError):
                gone.close()
            self._log(f"the display has gone ({cause.strerror})")

    def _draw_plots(self) -> None:
        # matplotlib takes half a second to import, and only the end of a run needs it.
        from tianji_cli.telemetry.plots import draw_plots  # noqa: PLC0415

        try:
            draw_plots(self.run)
        except (OSError, ValueError) as cause:
            self.event(f"the plots could not be drawn ({cause})")

    def _log(self, text: str) -> None:
        """Append a line to the root's log; without one there is still the display."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            with open(open_to_append(self.run.log("root", 0)), "a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")
        except OSError:
            return


def choose_display(title: str, *, quiet: bool, stream: TextIO) -> Display:
    """Choose how a run shows itself: live on a terminal, plain lines elsewhere, nothing under --quiet.

    Args:
        title: what runs, shown above the live display.
        quiet: show nothing.
        stream: where it goes: stderr, since stdout belongs to the result.
    """
    if quiet:
        return QuietDisplay()
    if stream.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from tianji_cli.telemetry.display import LiveDisplay  # noqa: PLC0415 - rich, only where it is seen

        return LiveDisplay(title, stream)
    return PlainDisplay(stream)

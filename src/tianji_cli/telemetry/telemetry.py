"""Output of a run during training and at its end: metrics, display, plots and summary.

``Telemetry`` is the one object that the root calls, from its loop. Nothing here starts a thread. A full disk,
a closed terminal or a terminal that nobody reads neither ends nor delays a run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tianji_cli.files.regular import bound_log, open_to_append
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.telemetry.display import Display
from tianji_cli.telemetry.metrics import MetricsWriter
from tianji_cli.telemetry.snapshot import Snapshot, Summary


class Telemetry:
    """Owns the display, the metric files and the summary of a run.

    A resumed run stays as it was until ``begin``: no row and no summary is written before.

    Args:
        resumed_at: environment steps that a resumed run begins with; None for a new run.
        hyperparameters: values with dotted names, for TensorBoard; None writes no TensorBoard events.

    Attributes:
        position: byte position in ``metrics.jsonl`` where this session begins.
        begun: whether snapshots are written as well as shown.

    Raises:
        RunDirectoryError: the metric files cannot be opened, or another process is writing them.
    """

    def __init__(
        self,
        run: RunDirectory,
        display: Display,
        resumed_at: int | None = None,
        hyperparameters: Mapping[str, Any] | None = MappingProxyType({}),
    ) -> None:
        self.run = run
        self._display = display
        self._metrics = MetricsWriter(run, self.event, resumed_at, hyperparameters)
        self.position = self._metrics.position
        self.begun = resumed_at is None

    def begin(self) -> None:
        """Begin to write the metric files; each snapshot from here on is written as well as shown.

        Raises:
            RunDirectoryError: the metric files cannot be written.
        """
        self._metrics.begin()
        self.begun = True

    def update(self, snapshot: Snapshot) -> None:
        """Write a snapshot to the metrics and show it. More than one a second make a finer learning curve."""
        if self.begun:
            self._metrics.write(snapshot)
        self._on_display(lambda display: display.show(snapshot))

    def evaluation(self, row: Mapping[str, Any]) -> None:
        """Write an evaluation made during training to the metrics; the next snapshot shows it."""
        self._metrics.write_evaluation(row)
        self._on_display(lambda display: display.remember_evaluation(row["env_steps"], row["mean"]))

    def doing(self, what: str) -> None:
        """Show an activity that takes time while there is no state of the job to show."""
        self._on_display(lambda display: display.doing(what))

    def event(self, text: str) -> None:
        """Show an event to the user and write it to the root's log: a restart, a checkpoint, a warning."""
        self._on_display(lambda display: display.event(text))
        self._log(text)

    def close(self, summary: Summary, *, plots: bool = True) -> Summary:
        """Write the summary, draw the plots, and give the terminal back.

        Args:
            plots: False leaves the plots out, for a run that is to end within a second or whose config says
                so.

        Returns:
            The summary as it was written, if the session has begun. Its ``reason`` names files that could not
            be written; a run whose summary could not be written counts as failed.
        """
        if self._metrics.lost_rows:
            missing = f"{self._metrics.lost_rows} snapshots are missing from the metrics"
            summary = replace(summary, reason=f"{summary.reason}; {missing} ({self._metrics.last_error})")
        try:
            text = json.dumps(summary.document(), indent=2, allow_nan=False) + "\n"
            if self.begun:
                write_whole(self.run.summary, text.encode())
        except OSError as cause:
            summary = replace(
                summary,
                status="failed",
                reason=f"{summary.reason}; {self.run.summary} could not be written ({cause.strerror})",
            )
        # Close only now: once no process writes metrics, other commands find the summary if there is one.
        self._metrics.close()
        try:
            if plots and self.begun:
                self._draw_plots()
        finally:
            self._on_display(lambda display: display.close())
        return summary

    def _on_display(self, call: Callable[[Display], None]) -> None:
        """Call the display; once its terminal or pipe has gone, the run continues without one."""
        try:
            call(self._display)
        except OSError as cause:
            gone, self._display = self._display, Display()
            with contextlib.suppress(OSError):
                gone.close()
            self._log(f"the display has gone ({cause.strerror})")

    def _draw_plots(self) -> None:
        self.doing("drawing the plots")
        # matplotlib takes half a second to import, and only the end of a run needs it.
        from tianji_cli.telemetry.plots import draw_plots  # noqa: PLC0415

        try:
            draw_plots(self.run)
        except (OSError, ValueError) as cause:
            self.event(f"the plots could not be drawn ({cause})")

    def _log(self, text: str) -> None:
        """Append a line to the root's log; if that fails, the line is on the display alone."""
        stamp, log = time.strftime("%Y-%m-%d %H:%M:%S"), self.run.log("root", 0)
        try:
            with open(open_to_append(log), "a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")
            bound_log(log)
        except OSError:
            return

"""Progress, on stderr, of everything that takes time and is no run of its own.

A terminal gets one live line, which is removed at the end: the result takes its place. A pipe gets a line a
second at most, or none. Measurements draw between their steps, never during one; elsewhere a thread draws, so
that the line shows the time that the present step has taken. The thread takes no signals and ends with its
owner.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final, TextIO

from tianji_cli.errors import printable
from tianji_cli.quantities import duration
from tianji_cli.telemetry.styles import CURVE, LABEL

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

INTERVAL_S: Final = 1.0
"""Seconds between two lines in a pipe."""

FIRST_S: Final = 0.5
"""Seconds before the first drawing by the thread: a shorter step is not worth a line."""

TICK_S: Final = 1.0
"""Seconds between two drawings by the thread."""

BAR_COLUMNS: Final = 20

ECHO: Final = " ^C "
"""Echo of an interruption, which a terminal writes behind the line; on the next line it would stay there."""


def is_live(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def live_line(*, redirect_stdout: bool = False) -> Live:
    """Build the part of a terminal, on stderr, that is drawn again and again, and removed at the end."""
    from rich.console import Console  # noqa: PLC0415 - a pipe does without
    from rich.live import Live  # noqa: PLC0415

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    # Live's own thread would take signals.
    return Live(console=console, auto_refresh=False, redirect_stdout=redirect_stdout, transient=True)


def say(what: str) -> None:
    """Write a line to stderr, for places where nothing else is drawn."""
    sys.stderr.write(printable(f"tianji: {what}\n"))
    sys.stderr.flush()


class Progress(AbstractContextManager["Progress"]):
    """Shows the present step, the result of the last one, and how many of ``total`` are done.

    Args:
        total: number of steps; 0 while it is unknown, or where steps are not counted.
        ticks: a thread redraws the line of a terminal, also between two calls.
        plain: a pipe gets lines.
    """

    def __init__(self, total: int, quiet: bool, *, ticks: bool = False, plain: bool = True) -> None:
        self.total = total
        self._done = 0
        self._what = self._last = self._result = ""
        self._shown_s = float("-inf")
        self._began_s = self._what_since_s = time.monotonic()
        self.is_live = not quiet and is_live(sys.stderr)
        self._writes = not quiet and not self.is_live and plain
        # Other output goes above the line.
        self._live = live_line(redirect_stdout=sys.stdout.isatty()) if self.is_live else None
        self._ticker = _Ticker(self._draw) if self.is_live and ticks else None

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def begin(self, what: str) -> None:
        """Begin a step and describe it."""
        self._what, self._what_since_s = printable(what), time.monotonic()
        if self._live is not None and not self._live.is_started:
            # Start here and in no thread, because starting replaces sys.stdout and sys.stderr.
            self._live.start()
            # A command that is suspended or killed must not leave a shell without a cursor.
            self._live.console.show_cursor(True)
        if self._ticker is not None:
            self._ticker.begin()
        elif self._live is not None:
            self._draw()
        elif self._writes and self._what_since_s - self._shown_s >= INTERVAL_S:
            self._shown_s = self._what_since_s
            self._write(f" {what}")

    def at(self, done: int, what: str) -> None:
        """Set the number of finished steps and the present one; cheap, since only a thread draws them."""
        self._done, self._what = done, what

    def done(self, result: str = "") -> None:
        """End a step, with its result if there is one; the next drawing shows it."""
        self._done += 1
        self._last, self._result = f"{self._what}: {result}" if result else "", result

    def close(self) -> None:
        """Show the final count, and give the terminal back. Harmless when repeated."""
        if self._ticker is not None:
            self._ticker.end()
        if self._live is not None:
            self._live.stop()
        elif self._writes and self._done:
            self._write("")
        self._writes = False

    def _write(self, what: str) -> None:
        share = f"{self._done}/{self.total} done" if self.total else f"{self._done} done"
        sys.stderr.write(f"{share}{what}{_behind(self._last)}\n")
        sys.stderr.flush()

    def _draw(self) -> None:
        assert self._live is not None
        self._live.update(self._line(self._live.console.width - len(ECHO)), refresh=True)

    def _line(self, columns: int) -> Table:
        from rich.progress_bar import ProgressBar  # noqa: PLC0415 - a pipe does without
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        line = Table.grid(padding=(0, 1, 0, 0), expand=True)
        line.width = max(1, columns)
        cells: list[ProgressBar | Text] = []
        if self.total and columns >= 3 * BAR_COLUMNS:
            line.add_column(width=BAR_COLUMNS)
            completed = min(self._done, self.total)
            cells += [
                ProgressBar(self.total, completed, BAR_COLUMNS, complete_style=CURVE, finished_style=CURVE)
            ]
        if self.total:
            line.add_column(no_wrap=True)
            cells += [Text(f"{self._done}/{self.total}")]
        line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        line.add_column(no_wrap=True, justify="right")
        took_s = time.monotonic() - (self._began_s if self.total else self._what_since_s)
        line.add_row(
            *cells,
            Text(self._what + _behind(self._result)),
            Text(duration(took_s, decimals=0) if took_s >= 1 else "", LABEL),
        )
        return line


def status(what: str, *, quiet: bool = False) -> Progress:
    """Return a context in which a terminal shows an activity and its duration; a pipe gets nothing."""
    progress = Progress(0, quiet, ticks=True, plain=False)
    progress.begin(what)
    return progress


class _Ticker:
    """Owns the thread that draws."""

    def __init__(self, draw: Callable[[], None]) -> None:
        self._draw = draw
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start drawing. Harmless when repeated."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="tianji progress", daemon=True)
        # A thread inherits the signal mask of the thread that starts it. Signals are for the starter, and if
        # it blocks them, they must not be delivered to this thread instead.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Stop drawing; the thread has ended when this returns."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._over.wait(wait_s):
            wait_s = TICK_S
            try:
                self._draw()
            except OSError:  # The terminal has gone; the command goes on without it.
                return


def _behind(last: str) -> str:
    return f" (last: {last})" if last else ""

"""Progress of whatever takes time and is no run of its own, on stderr.

A terminal gets one live line, which is gone when all is done: the result takes its place. A pipe gets a line
a second at most, or none. What measures is drawn between its steps, never during one; else a thread draws, so
that the line says for how long something has been going on. It takes no signals and ends with its owner.
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
"""Between two lines in a pipe."""

FIRST_S: Final = 0.5
"""Before the first drawing by the thread: what is over sooner is not worth a line."""

TICK_S: Final = 1.0
"""Between two drawings by the thread."""

BAR_COLUMNS: Final = 20

ECHO: Final = " ^C "
"""What a terminal writes behind the line when it is interrupted; in the next line it would stay there."""


def is_live(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can draw something anew."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def say(what: str) -> None:
    """Write a line to stderr, where nothing else is drawn."""
    sys.stderr.write(printable(f"tianji: {what}\n"))
    sys.stderr.flush()


class Progress(AbstractContextManager["Progress"]):
    """Shows what is done now, what came of the last, and how many of ``total`` are ``done``.

    Args:
        total: 0 while it is not known, or where nothing is counted.
        ticks: the line of a terminal is drawn anew by a thread, not between two steps.
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
        self._live = self._new_live() if self.is_live else None
        self._ticker = _Ticker(self._draw) if self.is_live and ticks else None

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def begin(self, what: str) -> None:
        """Describe what is done now."""
        self._what, self._what_since_s = printable(what), time.monotonic()
        if self._live is not None and not self._live.is_started:
            # Here and in no thread: it puts others in the places of sys.stdout and sys.stderr.
            self._live.start()
            # What is suspended or killed must not leave a shell without a cursor.
            self._live.console.show_cursor(True)
        if self._ticker is not None:
            self._ticker.begin()
        elif self._live is not None:
            self._draw()
        elif self._writes and self._what_since_s - self._shown_s >= INTERVAL_S:
            self._shown_s = self._what_since_s
            self._write(f" {what}")

    def at(self, done: int, what: str) -> None:
        """Describe how far it is; only a thread draws it, so this may be said as often as one likes."""
        self._done, self._what = done, what

    def done(self, result: str = "") -> None:
        """Describe what came of it, if there is something to tell; shown with what begins next."""
        self._done += 1
        self._last, self._result = f"{self._what}: {result}" if result else "", result

    def close(self) -> None:
        """Show how far it came, and give the terminal back. Harmless when repeated."""
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

    def _new_live(self) -> Live:
        from rich.console import Console  # noqa: PLC0415 - a pipe does without
        from rich.live import Live  # noqa: PLC0415

        return Live(
            console=Console(file=sys.stderr, highlight=False),
            auto_refresh=False,  # its own thread would take signals
            redirect_stdout=sys.stdout.isatty(),  # What others print goes above the line.
            transient=True,
        )


def status(what: str, *, quiet: bool = False) -> Progress:
    """Give a context in which a terminal shows what is done, and for how long; a pipe gets nothing."""
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
        """Draw from now on. Harmless when repeated."""
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="tianji progress", daemon=True)
        # A thread begins with the mask of the one that starts it. Signals are for that one: who holds them
        # back there must not have them come in here.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self._thread.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def end(self) -> None:
        """Draw no more; the thread has ended when this returns."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        wait_s = FIRST_S
        while not self._over.wait(wait_s):
            wait_s = TICK_S
            try:
                self._draw()
            except OSError:  # The terminal has gone: it goes on unseen.
                return


def _behind(last: str) -> str:
    return f" (last: {last})" if last else ""

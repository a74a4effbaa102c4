"""Progress of long measurements, on stderr: one live line on a terminal, a line a second at most in a pipe.

It starts no thread and is drawn between measurements, never during one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self, TextIO

INTERVAL_S: Final = 1.0
"""Between two lines in a pipe."""
Last = tuple[str, str]
"""What was measured before, and what came of it."""


class Progress:
    """Shows what is measured now, how much is done, and what came of the last.

    Args:
        total: how often ``done`` will be called.

    Attributes:
        total: may be set as soon as it is known.
    """

    def __init__(self, total: int, quiet: bool) -> None:
        self.total = total
        self._done = 0
        self._what = ""
        self._last: Last = ("", "")
        self._display: _Live | _Lines | None = None
        if not quiet:
            self._display = _Live() if sys.stderr.isatty() else _Lines(sys.stderr)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, what: str) -> None:
        """Describe what is measured now."""
        self._what = what
        if self._display is not None:
            self._display.show(self._done, self.total, what, self._last)

    def done(self, result: str) -> None:
        """Describe what came of it; shown with what begins next."""
        self._done += 1
        self._last = (self._what, result)

    def close(self) -> None:
        """Show how far it came, and give the terminal back. Harmless when repeated."""
        if self._display is not None:
            self._display.close(self._done, self.total, self._last)
            self._display = None


class _Lines:
    """Lines in a pipe or a file."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown_s = float("-inf")

    def show(self, done: int, total: int, what: str, last: Last) -> None:
        """Write a line, unless the last one is too recent."""
        now = time.monotonic()
        if now - self._shown_s >= INTERVAL_S:
            self._shown_s = now
            self._write(f"{_share(done, total)} {what}{_behind(last)}")

    def close(self, done: int, total: int, last: Last) -> None:
        """Write the last state, however recent the line before it."""
        if done:
            self._write(f"{_share(done, total)}{_behind(last)}")

    def _write(self, line: str) -> None:
        self._stream.write(f"{line}\n")
        self._stream.flush()


class _Live:
    """A line on a terminal that is drawn anew, and gone when all is done: the result takes its place."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - a pipe does without
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
        from rich.progress import Progress as Bar  # noqa: PLC0415
        from rich.table import Column  # noqa: PLC0415

        now = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._console = Console(file=sys.stderr, highlight=False)
        self._bar = Bar(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False, table_column=now),
            console=self._console,
            auto_refresh=False,  # a thread that draws would take turns with what is measured
            redirect_stdout=False,
            transient=True,
            expand=True,
        )
        self._task = self._bar.add_task("", total=None)

    def show(self, done: int, total: int, what: str, last: Last) -> None:
        """Draw the line anew."""
        what += _behind(last[1:])
        self._bar.update(self._task, completed=done, total=total or None, description=what)
        if self._bar.live.is_started:
            self._bar.refresh()
            return
        self._bar.start()
        # A benchmark that is suspended or killed must not leave a shell without a cursor.
        self._console.show_cursor(True)

    def close(self, done: int, total: int, last: Last) -> None:  # noqa: ARG002 - the line goes away
        """Take the line away."""
        self._bar.stop()


def _share(done: int, total: int) -> str:
    return f"{done}/{total} done" if total else f"{done} done"


def _behind(last: Sequence[str]) -> str:
    return f" (last: {': '.join(last)})" if any(last) else ""

"""Progress of long measurements, on stderr: one live line on a terminal, a line a second at most in a pipe.

It starts no thread and is drawn between measurements, never during one.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

INTERVAL_S: Final = 1.0
"""Between two lines in a pipe."""


class Progress:
    """Shows what is measured now, what came of the last, and how many of ``total`` are ``done``."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total = total
        self._done = 0
        self._what = self._last = self._result = ""
        self._shown_s = float("-inf")
        self._is_open = not quiet
        self._bar = _bar() if self._is_open and sys.stderr.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def begin(self, what: str) -> None:
        """Describe what is measured now."""
        self._what = what
        now = time.monotonic()
        if self._bar is not None:
            self._draw(self._bar)
        elif self._is_open and now - self._shown_s >= INTERVAL_S:
            self._shown_s = now
            self._write(f" {what}")

    def done(self, result: str) -> None:
        """Describe what came of it; shown with what begins next."""
        self._done += 1
        self._last, self._result = f"{self._what}: {result}", result

    def close(self) -> None:
        """Show how far it came, and give the terminal back. Harmless when repeated."""
        if self._bar is not None:
            self._bar.stop()
        elif self._is_open and self._done:
            self._write("")
        self._is_open = False

    def _write(self, what: str) -> None:
        share = f"{self._done}/{self.total} done" if self.total else f"{self._done} done"
        sys.stderr.write(f"{share}{what}{_behind(self._last)}\n")
        sys.stderr.flush()

    def _draw(self, bar: Bar) -> None:
        said = self._what + _behind(self._result)
        bar.update(bar.task_ids[0], completed=self._done, total=self.total or None, description=said)
        if bar.live.is_started:
            bar.refresh()
            return
        bar.start()
        # A benchmark that is suspended or killed must not leave a shell without a cursor.
        bar.console.show_cursor(True)


def _bar() -> Bar:
    """Make a line that is drawn anew, and gone when all is done: the result takes its place."""
    from rich.console import Console  # noqa: PLC0415 - a pipe does without
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    now = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    bar = Bar(
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False, table_column=now),
        console=Console(file=sys.stderr, highlight=False),
        auto_refresh=False,  # a thread that draws would take turns with what is measured
        redirect_stdout=False,
        transient=True,
        expand=True,
    )
    bar.add_task("", total=None)
    return bar


def _behind(last: str) -> str:
    return f" (last: {last})" if last else ""

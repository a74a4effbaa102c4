"""Progress of several trainings, on stderr: a table, or in a pipe a line when one begins or ends."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tianji_cli.errors import one_line, printable
from tianji_cli.quantities import duration, several
from tianji_cli.telemetry.progress import is_live, live_line
from tianji_cli.telemetry.tables import plain_table

if TYPE_CHECKING:
    from rich.live import Live

WAITING: Final = "waiting"
AROUND: Final = 6
"""Lines of a terminal beside the table's rows."""


@dataclass(frozen=True)
class Row:
    """One of several trainings, or of a sweep's trials, on the board.

    Attributes:
        status: ``WAITING``, or another word.
        why: reason for the status, or the result; empty without either.
        cells: returns its cells; called once for a row that is over.
    """

    number: int
    status: str
    is_over: bool
    why: str
    cells: Callable[[], Sequence[str]]


class Board(AbstractContextManager["Board"]):
    """Owns the lower part of a terminal while several trainings go.

    Args:
        what: name of one training, such as "trial".
        title: of the table.
        columns: of the table.
        right: indices of the columns with numbers.
        known: rows whose present status needs no line.
    """

    def __init__(
        self,
        what: str,
        title: str,
        columns: Sequence[str],
        right: Sequence[int],
        *,
        quiet: bool,
        known: Sequence[Row] = (),
    ) -> None:
        self._what, self._title = what, printable(title)
        self._columns, self._right = columns, right
        self._quiet = quiet
        self._live = None if quiet or not is_live(sys.stderr) else live_line()
        self._written_status = {row.number: row.status for row in known}
        self._final_cells: dict[int, Sequence[str]] = {}
        self._began_s = time.monotonic()

    def __exit__(self, *_exception: object) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()

    def show(self, rows: Sequence[Row], so_far: Callable[[], str] = str) -> None:
        """Show the present state.

        Args:
            so_far: returns the text after the number of rows that are over.
        """
        try:
            if self._live is not None:
                self._draw(self._live, rows, so_far)
            elif not self._quiet:
                self._write_changes(rows)
        except OSError:  # The terminal or pipe has gone; the trainings go on unseen.
            self.__exit__()
            self._quiet, self._live = True, None

    def _write_changes(self, rows: Sequence[Row]) -> None:
        over = sum(row.is_over for row in rows)
        for row in rows:
            if self._written_status.get(row.number, WAITING) == row.status:
                continue
            self._written_status[row.number] = row.status
            why = f": {one_line(row.why)}" if row.why else ""
            line = f"{self._what} {row.number} {row.status}{why} ({over}/{len(rows)} done)"
            sys.stderr.write(printable(f"{duration(time.monotonic() - self._began_s)}  {line}") + "\n")
            sys.stderr.flush()

    def _draw(self, live: Live, rows: Sequence[Row], so_far: Callable[[], str]) -> None:
        from rich.text import Text  # noqa: PLC0415 - a pipe does without

        if not live.is_started:
            live.start()
            live.console.show_cursor(True)  # A killed command must not leave a shell without a cursor.
        begun = [row for row in rows if row.status != WAITING]
        shown = begun[-max(1, live.console.height - AROUND) :]
        table = plain_table(self._columns, [self._cells(row) for row in shown], right=self._right)
        over, all_of_them = sum(row.is_over for row in rows), several(len(rows), self._what)
        spent = duration(time.monotonic() - self._began_s, 0)
        head = f"{self._title}: {over} of {all_of_them} done{so_far()}, {spent}\n"
        live.update(Text(head + table.rstrip("\n"), overflow="ellipsis", no_wrap=True), refresh=True)

    def _cells(self, row: Row) -> Sequence[str]:
        if not row.is_over:
            return row.cells()
        if row.number not in self._final_cells:
            self._final_cells[row.number] = row.cells()
        return self._final_cells[row.number]

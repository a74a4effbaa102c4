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
from tianji_cli.telemetry.progress import is_live
from tianji_cli.telemetry.tables import plain_table

if TYPE_CHECKING:
    from rich.live import Live

WAITING: Final = "waiting"
AROUND: Final = 6
"""Lines of a terminal beside the table's rows."""


@dataclass(frozen=True)
class Member:
    """One of several trainings.

    Attributes:
        status: ``WAITING``, or another word.
        why: reason for the status, or the result; empty without either.
    """

    number: int
    status: str
    is_over: bool
    why: str = ""


class Board(AbstractContextManager["Board"]):
    """Owns the lower part of a terminal while several trainings go.

    Args:
        what: name of one training, such as "trial".
        title: of the table.
        columns: of the table.
        right: indices of the columns with numbers.
        known: members whose present status needs no line.
    """

    def __init__(
        self,
        what: str,
        title: str,
        columns: Sequence[str],
        right: Sequence[int],
        *,
        quiet: bool,
        known: Sequence[Member] = (),
    ) -> None:
        self._what, self._title = what, printable(title)
        self._columns, self._right = columns, right
        self._quiet = quiet
        self._live = None if quiet or not is_live(sys.stderr) else _live()
        self._written_status = {member.number: member.status for member in known}
        self._rows: dict[int, Sequence[str]] = {}
        self._began_s = time.monotonic()

    def __exit__(self, *_exception: object) -> None:
        if self._live is not None:
            with suppress(OSError):
                self._live.stop()

    def show(
        self,
        members: Sequence[Member],
        row: Callable[[Member], Sequence[str]],
        so_far: Callable[[], str] = str,
    ) -> None:
        """Show the present state.

        Args:
            row: returns the cells of a member; called once for a member that is over.
            so_far: returns the text after the number of members that are over.
        """
        try:
            if self._live is not None:
                self._draw(self._live, members, row, so_far)
            elif not self._quiet:
                self._write_changes(members)
        except OSError:  # The terminal or pipe has gone; the trainings go on unseen.
            self.__exit__()
            self._quiet, self._live = True, None

    def _write_changes(self, members: Sequence[Member]) -> None:
        over = sum(member.is_over for member in members)
        for member in members:
            if self._written_status.get(member.number, WAITING) == member.status:
                continue
            self._written_status[member.number] = member.status
            why = f": {one_line(member.why)}" if member.why else ""
            line = f"{self._what} {member.number} {member.status}{why} ({over}/{len(members)} done)"
            sys.stderr.write(printable(f"{duration(time.monotonic() - self._began_s)}  {line}") + "\n")
            sys.stderr.flush()

    def _draw(
        self,
        live: Live,
        members: Sequence[Member],
        row: Callable[[Member], Sequence[str]],
        so_far: Callable[[], str],
    ) -> None:
        from rich.text import Text  # noqa: PLC0415 - a pipe does without

        if not live.is_started:
            live.start()
            live.console.show_cursor(True)  # A killed command must not leave a shell without a cursor.
        begun = [member for member in members if member.status != WAITING]
        shown = begun[-max(1, live.console.height - AROUND) :]
        table = plain_table(self._columns, [self._row(member, row) for member in shown], right=self._right)
        over, all_of_them = sum(member.is_over for member in members), several(len(members), self._what)
        spent = duration(time.monotonic() - self._began_s, 0)
        head = f"{self._title}: {over} of {all_of_them} done{so_far()}, {spent}\n"
        live.update(Text(head + table.rstrip("\n"), overflow="ellipsis", no_wrap=True), refresh=True)

    def _row(self, member: Member, row: Callable[[Member], Sequence[str]]) -> Sequence[str]:
        if not member.is_over:
            return row(member)
        if member.number not in self._rows:
            self._rows[member.number] = row(member)
        return self._rows[member.number]


def _live() -> Live:
    from rich.console import Console  # noqa: PLC0415
    from rich.live import Live  # noqa: PLC0415

    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    return Live(console=console, auto_refresh=False, redirect_stdout=False, transient=True)

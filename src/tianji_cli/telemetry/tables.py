"""Output in columns for people: tables, and facts with a label each; or JSON for programs.

A terminal gets ruled tables and lines that break between words, a pipe plain columns and whole lines.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tianji_cli.errors import TianjiError, os_errors_as
from tianji_cli.files.rundir import write_whole
from tianji_cli.telemetry.styles import LABEL

if TYPE_CHECKING:
    from rich.text import Text


def write_json(document: Mapping[str, Any], to: str | None) -> bool:
    """Write a JSON document to a file, to stdout for "-", or nowhere for None.

    Returns:
        Whether stdout is free for people.

    Raises:
        TianjiError: the file cannot be written.
    """
    if to is not None:
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        if to == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            with os_errors_as(TianjiError, f"cannot write {to}", "--json takes another path"):
                write_whole(Path(to), text.encode())
    return to != "-"


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], title: str, *, right: Collection[int] = ()
) -> None:
    """Print rows for people; a pipe gets one line a row, columns two blanks apart, and no title.

    A terminal that is too narrow for the numbers of a table gets the output for a pipe: a line that the
    terminal wraps can still be read, digits of one number on two lines cannot.

    Args:
        right: columns of numbers, which are right-aligned.
    """
    if not sys.stdout.isatty():
        sys.stdout.write(plain_table(headings, rows, right=right))
        return
    from rich.console import Console  # noqa: PLC0415 - a pipe does without
    from rich.measure import Measurement  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for column, heading in enumerate(headings):
        if column in right:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: "tianji[box2d]" is no markup
    console = Console()
    if Measurement.get(console, console.options.update(width=sys.maxsize), table).minimum > console.width:
        sys.stdout.write(f"{title}\n{plain_table(headings, rows, right=right)}")
    else:
        console.print(table)


def plain_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int] = ()
) -> str:
    """Write rows as columns, two blanks apart.

    >>> print(plain_table(["name", "is"], [["ppo", "an agent"]]), end="")
    name  is
    ppo   an agent
    >>> print(plain_table(["name", "steps"], [["ppo", "12"]], right=[1]), end="")
    name  steps
    ppo      12
    """
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )


Fact = tuple[str, "str | Text"]
"""A label, and the text behind it."""


def print_facts(facts: Iterable[Fact], to_copy: Iterable[Fact] = ()) -> None:
    """Print facts below one another, each behind its label: in a pipe lines stay whole.

    Args:
        to_copy: further facts, whose lines stay whole on a terminal, too, so that each can be copied.
    """
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    console, facts, to_copy = Console(highlight=False), list(facts), list(to_copy)
    width = max(len(label) for label, _ in [*facts, *to_copy])
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=LABEL, width=width)
    grid.add_column(overflow="fold")
    for label, fact in facts if console.is_terminal else ():
        grid.add_row(label, Text(fact) if isinstance(fact, str) else fact)  # "tianji[box2d]" is no markup.
    if grid.row_count:
        console.print(grid)
    for label, fact in to_copy if console.is_terminal else [*facts, *to_copy]:
        console.print(Text.assemble((label.ljust(width), LABEL), "  ", fact), soft_wrap=True)

"""A table on stdout: ruled on a terminal, plain columns in a pipe, where nothing is cut off."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> None:
    """Print rows for people; a pipe gets one line a row, columns two blanks apart, and no title."""
    if not sys.stdout.isatty():
        sys.stdout.write(plain_table(headings, rows))
        return
    from rich.console import Console  # noqa: PLC0415 - a pipe does without
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: "tianji[box2d]" is no markup
    Console().print(table)


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write rows as columns, two blanks apart.

    >>> print(plain_table(["name", "is"], [["ppo", "an agent"]]), end="")
    name  is
    ppo   an agent
    """
    lines = [headings, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )

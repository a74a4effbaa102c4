"""`tianji report`: writes a page on runs, in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tianji_cli.commands.options import SeveralRuns

Page = Annotated[Path, typer.Option("--out", metavar="PAGE", help="The file, such as report.html.")]


def report(runs: SeveralRuns, *, out: Page) -> int:
    """Write a page on a run, or on several beside one another.

    Example: tianji report ppo_cartpole --out page.html

    Raises:
        UsageError: there are no such runs, they cannot be compared, or the page has no place.
        TianjiError: a run is damaged, or the page cannot be written.
    """
    from tianji_cli.telemetry.progress import status  # noqa: PLC0415 - a shell that completes does without
    from tianji_cli.telemetry.report import print_lines  # noqa: PLC0415 - imports rich

    with status("reading and drawing"):
        from tianji_cli.runs.report.page import write_report  # noqa: PLC0415 - imports matplotlib, a second

        line = write_report(runs, out)
    print_lines([line])
    return 0

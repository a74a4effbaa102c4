"""`tianji compare`: compares the results of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from tianji_cli.commands.options import Json, SeveralRuns

By = Annotated[
    Literal["steps", "time"], typer.Option("--by", help="What areas and times to thresholds are in.")
]
Figures = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write figures, CSV and JSON into DIR.")
]


def compare(runs: SeveralRuns, *, by: By = "steps", out: Figures = None, json_to: Json = None) -> int:
    """Compare runs; those that differ in their seed alone are one line.

    Example: tianji compare ppo_cartpole/seeds-1 dqn_cartpole/seeds-1 --out figures

    Raises:
        UsageError: they cannot be compared; TianjiError: one is damaged, or the results cannot be written.
    """
    from tianji_cli.runs.comparison.report import compare_runs  # noqa: PLC0415 - imports NumPy

    compare_runs(runs, "env_steps" if by == "steps" else "train_s", out=out, json_to=json_to)
    return 0

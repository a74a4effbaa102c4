"""`tianji bench staleness`: its command line. Imports next to nothing: `tianji --help` reads it too."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from tianji_cli.commands.bench_options import Config, Json, Out, Override, Quiet, Threshold


class FigureName(enum.StrEnum):
    """A figure of the paper about stale samples."""

    LAGS = "12a"
    MAPPINGS = "6d"


def staleness(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    config: Config,
    lag: Annotated[
        list[int] | None,
        typer.Option(metavar="K", min=1, help="Rollouts that the buffer holds, 1 for New; repeatable."),
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Trainings of each setting.")] = 5,
    threshold: Threshold = None,
    figure: Annotated[
        FigureName, typer.Option(help="12a: several lags. 6d: New and Lag8, each in two mappings.")
    ] = FigureName.LAGS,
    poor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SECTION.KEY=VALUE",
            help="A setting of 6d's poor mapping; repeatable. 4 actors a core by default.",
        ),
    ] = None,
    set_: Override = None,
    out: Out = None,
    json: Json = None,
    quiet: Quiet = False,
) -> None:
    """What stale samples cost a training that learns from rollouts: the paper's Figures 12(a) and 6(d)."""
    from tianji_lab.staleness.report import compare  # noqa: PLC0415
    from tianji_lab.staleness.study import plan_comparison  # noqa: PLC0415

    comparison = plan_comparison(
        config,
        figure=figure.value,
        lags=lag or (),
        seeds=seeds,
        threshold=threshold,
        overrides=set_ or (),
        poor=poor or (),
    )
    compare(comparison, out=out, json_to=json, quiet=quiet)

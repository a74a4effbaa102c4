"""`tianji bench staleness`: its command line. Imports next to nothing: `tianji --help` reads it too."""

from __future__ import annotations

import enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from tianji_cli.commands.bench_options import Config, Json, Out, Override, Quiet, Threshold

if TYPE_CHECKING:
    from tianji_lab.staleness.study import Comparison


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
    _compare(comparison, out=out, json_to=json, quiet=quiet)


def _compare(comparison: Comparison, *, out: Path | None, json_to: str | None, quiet: bool) -> None:
    """Train, and show what was found.

    Raises:
        TianjiError: a training failed, or the results cannot be written: there are no figures.
    """
    from tianji_cli.commands.bench import check_places  # noqa: PLC0415
    from tianji_cli.telemetry.report import write_json  # noqa: PLC0415
    from tianji_lab.bench.report import print_header  # noqa: PLC0415
    from tianji_lab.environment import busy_share, describe, warnings  # noqa: PLC0415
    from tianji_lab.staleness import report  # noqa: PLC0415
    from tianji_lab.staleness.study import measure  # noqa: PLC0415

    check_places(out, json_to)
    busy = busy_share()
    with TemporaryDirectory(prefix="tianji-") as temporary:
        found = measure(comparison, Path(temporary) if out is None else out / "runs", quiet=quiet)
    rows = report.rows_of(found)
    environment = describe([comparison.job.distribution.transport.local], ["here"], None, busy)
    cautions = [*warnings(busy, ()), *report.cautions(rows, comparison.threshold)]
    rows = report.judged(rows, cautions)
    if json_to != "-":
        print_header(environment, cautions)
        report.print_rows(rows, comparison)
    document = report.document(comparison, environment, cautions, rows, found)
    if json_to is not None:
        write_json(document, json_to)
    if out is not None:
        report.write_all(out, document, comparison, rows, found)

"""The scaling experiments as PNG: throughput and time against actors or groups, and learning curves.

Markers are medians of trainings with bars from the least to the most, hollow where roles take turns on too
few cores. Dashed lines are simulated. Sample uses are divided by ``rho``, the uses that each sample is to
get, so that production and training meet where they are in balance.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tianji_cli.bench.curves import AMBER, BLACK, PURPLE, SKY, WIDTH, logarithmic, powers_axis
from tianji_cli.bench.statistics import estimate
from tianji_cli.scaling.report import Range, Row
from tianji_cli.scaling.simulation import Simulated, Simulations
from tianji_cli.scaling.study import Study
from tianji_cli.telemetry.plots import BLUE, GREEN, GREY, ORANGE, STYLE
from tianji_cli.telemetry.rundir import write_whole

PRODUCTION: Final = ("production", BLUE, "o")
RECEPTION: Final = ("reception", AMBER, "s")
TRAINING: Final = ("training", GREEN, "^")
"""Name, colour and marker of each throughput."""
DASHES: Final = (0, (4, 2))
THICK: Final = {"production": 2.2, "reception": 1.3, "training": 1.3}
"""Reception runs along production as long as nothing holds it up: thin on thick, both are seen."""
COLORS: Final = (BLUE, GREEN, AMBER, ORANGE, PURPLE, SKY, BLACK)
"""Of settings' learning curves."""
POINTS: Final = 200
RESAMPLES: Final = 2000
ROOM: Final = 1.1
"""An axis of times goes so many times as far as the longest."""
SIMULATED: Final = "simulated, a core for every role"


def draw(study: Study, rows: Sequence[Row], simulations: Simulations, path: Path) -> None:
    """Draw throughputs, and below them the times to the threshold if one was waited for.

    Args:
        study: what was trained.
        rows: of the settings.
        simulations: the simulated points.
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """
    times = study.threshold is not None

    def draw_into(figure: Figure) -> None:
        panels = list(figure.subplots(2 if times else 1, 1, sharex=True, squeeze=False)[:, 0])
        draw_throughput(panels[0], study, rows, simulations)
        if study.threshold is not None:
            _draw_times(panels[1], study, rows)
        _axis(panels[-1], study, rows, simulations)
        _legend(figure, rows, simulations)

    _write(draw_into, 4.2 if times else 3.1, path)


def draw_learning(study: Study, rows: Sequence[Row], simulations: Simulations, path: Path) -> None:
    """Draw Figure 12(b), learning curves of all settings, and below them the throughputs of Table 1.

    Args:
        study: what was trained.
        rows: of the settings.
        simulations: the simulated points.
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """

    def draw_into(figure: Figure) -> None:
        above, below = figure.subplots(2, 1)
        _draw_curves(above, rows, study.seconds)
        if study.threshold is not None:
            above.axhline(study.threshold, color=GREY, linestyle="--", linewidth=0.9)
        above.set_ylabel("Mean return")
        above.set_xlabel("Time since the first environment step (s)")
        above.legend(loc="lower right", ncols=2, fontsize=6)
        draw_throughput(below, study, rows, simulations)
        _axis(below, study, rows, simulations)
        _legend(figure, rows, simulations)

    _write(draw_into, 4.8, path)


def _write(draw_into: Any, height: float, path: Path) -> None:
    png = io.BytesIO()
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        # A figure of its own, not pyplot's: pyplot keeps global state and may look for a display.
        figure = Figure(figsize=(WIDTH, height))
        draw_into(figure)
        figure.savefig(png, format="png")
    write_whole(path, png.getvalue())


# -- throughput ----------------------------------------------------------------------------------------


def draw_throughput(axes: Axes, study: Study, rows: Sequence[Row], simulations: Simulations) -> None:
    """Draw production, reception and training against actors or groups.

    Args:
        axes: where to.
        study: what was trained.
        rows: of the settings.
        simulations: the simulated points.
    """
    for quantity in (PRODUCTION, RECEPTION, TRAINING):
        name, color, marker = quantity
        simulated = [point for point in simulations.points if point.came is not None]
        axes.plot(
            [x_of(study, point.split) for point in simulated],
            [_simulated(name, point, simulations.rho) for point in simulated],
            color=color,
            linestyle=DASHES,
            linewidth=THICK[name],
            alpha=0.6,
        )
        measured = [(row, ends) for row in rows if (ends := _measured(name, row)) is not None]
        axes.plot([x_of(study, row) for row, _ in measured], [ends[0] for _, ends in measured], color=color)
        for row, ends in measured:
            _mark(axes, x_of(study, row), ends, color, marker, hollow=row.oversubscribed)
    logarithmic(axes, "Samples per second")


def x_of(study: Study, of: Any) -> int:
    """Where a setting is on the axis: its actors, over all groups where groups do not vary, or its groups.

    Args:
        study: what was trained.
        of: something with ``groups`` and ``actors``.
    """
    return int(of.groups if study.of.axis == "groups" else of.groups * of.actors)


def _measured(name: str, row: Row) -> tuple[float, float, float] | None:
    of: Range | None = {
        "production": row.produced_per_s,
        "reception": row.received_per_s,
        "training": row.consumed_per_s,
    }[name]
    if of is None or of.median is None or of.min is None or of.max is None:
        return None
    scale = row.rho if name == "training" and row.rho else 1.0
    return of.median / scale, of.min / scale, of.max / scale


def _simulated(name: str, point: Simulated, rho: float) -> float:
    assert point.came is not None
    rates = {
        "production": point.came.production,
        "reception": point.came.reception,
        "training": point.came.consumption / rho,
    }
    return rates[name]


def _mark(
    axes: Axes, x: float, ends: tuple[float, float, float], color: str, marker: str, *, hollow: bool
) -> None:
    middle, low, high = ends
    axes.errorbar(
        x,
        middle,
        yerr=[[middle - low], [high - middle]],
        color=color,
        marker=marker,
        markersize=4,
        markerfacecolor="white" if hollow else color,
        capsize=1.5,
        elinewidth=0.7,
        capthick=0.7,
        zorder=3,
    )


# -- times ---------------------------------------------------------------------------------------------


def _draw_times(axes: Axes, study: Study, rows: Sequence[Row]) -> None:
    """Draw the times to the threshold; settings that did not reach it are named at the upper edge."""
    reached: list[tuple[int, float]] = []
    top = 0.0
    for row in rows:
        times = row.time_to_s
        if times is not None and times.median is not None and times.min is not None:
            reached.append((x_of(study, row), times.median))
            high, marker = (study.seconds, "^") if times.max is None else (times.max, "o")
            ends = (times.median, times.min, max(high, times.median))
            top = max(top, *ends)
            _mark(axes, x_of(study, row), ends, BLACK, marker, hollow=row.oversubscribed)
        elif row.trainings:
            axes.annotate(
                f"not in\n{study.seconds:g} s",
                (x_of(study, row), 0.98),
                xycoords=("data", "axes fraction"),
                ha="center",
                va="top",
                fontsize=6,
                color=GREY,
            )
    if reached:
        axes.plot(*zip(*reached, strict=True), color=BLACK)
    axes.set_ylim(0, ROOM * (top or study.seconds))
    axes.set_ylabel(f"Time to {study.threshold:g} (s)")


# -- curves --------------------------------------------------------------------------------------------


def _draw_curves(axes: Axes, rows: Sequence[Row], seconds: float) -> None:
    """Draw interquartile means over trainings and their bands; a training that is over keeps its last."""
    x = np.linspace(0, seconds, POINTS)
    for place, row in enumerate(rows):
        curves = [one.curve for one in row.trainings if one.curve is not None]
        if not curves:
            continue
        values = np.stack([np.interp(x, one.train_s, one.mean_100, left=np.nan) for one in curves])
        shown = ~np.isnan(values).any(axis=0)
        band = estimate(values[:, shown], resamples=RESAMPLES)
        color = COLORS[place % len(COLORS)]
        label = row.setting + "*" * row.oversubscribed
        axes.plot(x[shown], band.iqm, color=color, label=label)
        axes.fill_between(x[shown], band.low, band.high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlim(0, seconds)


# -- axes ----------------------------------------------------------------------------------------------


def _axis(axes: Axes, study: Study, rows: Sequence[Row], simulations: Simulations) -> None:
    values = {x_of(study, row) for row in rows} | {x_of(study, point.split) for point in simulations.points}
    powers_axis(axes, sorted(values), str)
    axes.set_xlabel("Groups" if study.of.axis == "groups" else "Actors")


def _legend(figure: Figure, rows: Sequence[Row], simulations: Simulations) -> None:
    rho = next((row.rho for row in rows if row.rho), simulations.rho)
    marks = []
    for name, color, marker in (PRODUCTION, RECEPTION, TRAINING):
        label = f"training (uses / {rho:g})" if name == "training" else name
        marks.append(Line2D([], [], color=color, marker=marker, markersize=4, label=label))
    if simulations.points:
        marks.append(Line2D([], [], color=GREY, linestyle=DASHES, label=SIMULATED))
    if any(row.oversubscribed for row in rows):
        style: dict[str, Any] = {"linestyle": "", "markerfacecolor": "white", "markersize": 4}
        marks.append(Line2D([], [], color=GREY, marker="o", label="too few cores", **style))
    figure.legend(handles=marks, loc="outside upper center", ncols=2)

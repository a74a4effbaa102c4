"""Draws the scaling experiments as PNG: throughput and time against actors or groups, and learning curves.

Markers are medians of trainings with bars from minimum to maximum, hollow where roles take turns on too few
cores. The dashed line is predicted. Sample uses are divided by ``rho``, the target uses of each sample, so
that production and training meet where they are in balance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tianji_cli.quantities import exact
from tianji_cli.runs.comparison.figures import draw_curve
from tianji_cli.telemetry.figures import (
    AMBER,
    BLACK,
    BLUE,
    COLORS,
    GREEN,
    GREY,
    logarithmic,
    panels_of,
    powers_axis,
    write_figure,
)
from tianji_lab.profile.split import Split
from tianji_lab.ranges import Range, draw_ranges
from tianji_lab.scaling.prediction import Predictions
from tianji_lab.scaling.rows import Row
from tianji_lab.scaling.study import Study

THROUGHPUTS: Final = {
    "produced_per_s": ("production", BLUE, "o"),
    "received_per_s": ("reception", AMBER, "s"),
    "consumed_per_s": ("training", GREEN, "^"),
}
"""Name, colour and marker of each throughput of a row."""
DASHES: Final = (0, (4, 2))
ROOM: Final = 1.1
"""Length of an axis of times, as a multiple of the longest time."""
PREDICTED: Final = "predicted, a core for every role"
RECKONED: Final = "extrapolated"
"""Label of predicted points that go beyond the measurements."""


def draw(study: Study, rows: Sequence[Row], predictions: Predictions, path: Path) -> None:
    """Draw throughputs, and below them the times to the threshold if there is one.

    Raises:
        OSError: the file cannot be written.
    """
    height = 3.1 if study.threshold is None else 4.2
    write_figure(lambda figure: draw_into(figure, study, rows, predictions), height, path)


def draw_into(figure: Figure, study: Study, rows: Sequence[Row], predictions: Predictions) -> None:
    """Draw throughputs and times into a figure."""
    has_times = study.threshold is not None
    panels = panels_of(figure, 2 if has_times else 1)
    draw_throughput(panels[0], study, rows, predictions)
    if has_times:
        _draw_times(panels[1], study, rows)
    _axis(panels[-1], study, rows, predictions)
    _legend(figure, rows, predictions, has_times=has_times)


def draw_learning(study: Study, rows: Sequence[Row], predictions: Predictions, path: Path) -> None:
    """Draw Figure 12(b), learning curves of all settings, and below them the throughputs of Table 1.

    Raises:
        OSError: the file cannot be written.
    """

    def draw_both(figure: Figure) -> None:
        above, below = figure.subplots(2, 1)
        _draw_curves(above, rows, study.seconds)
        if study.threshold is not None:
            above.axhline(study.threshold, color=GREY, linestyle="--", linewidth=0.9)
        above.set_ylabel("Mean return")
        above.set_xlabel("Time since the first environment step (s)")
        above.legend(loc="lower right", ncols=2, fontsize=6)
        draw_throughput(below, study, rows, predictions)
        _axis(below, study, rows, predictions)
        _legend(figure, rows, predictions, has_times=False)

    write_figure(draw_both, 4.8, path)


# -- throughput ----------------------------------------------------------------------------------------


def draw_throughput(axes: Axes, study: Study, rows: Sequence[Row], predictions: Predictions) -> None:
    """Draw production, reception and training against actors or groups."""
    points = predictions.points
    places = [x_of(study, point.split) for point in points]
    rates = [point.prediction.steps_per_s for point in points]
    axes.plot(places, rates, color=GREY, linestyle=DASHES, linewidth=1.3)
    beyond = [(x, y) for x, y, point in zip(places, rates, points, strict=True) if point.extrapolated]
    if beyond:
        axes.plot(*zip(*beyond, strict=True), color=GREY, linestyle="", marker="x", markersize=3)
    for throughput, (_, color, marker) in THROUGHPUTS.items():
        found = [(row, x_of(study, row.split), _measured(throughput, row)) for row in rows]
        measured = [(row, x, of) for row, x, of in found if of is not None]
        axes.plot([x for _, x, _ in measured], [of.middle for _, _, of in measured], color=color)
        for row, x, of in measured:
            _mark(axes, x, of, color, marker, hollow=row.setting.oversubscribed)
    logarithmic(axes, "Samples per second")


def x_of(study: Study, of: Split) -> int:
    """Position of a setting on the axis: its groups if they vary, else the actors of all its groups."""
    return of.groups if study.of.axis == "groups" else of.groups * of.actors


def _measured(throughput: str, row: Row) -> Range | None:
    of: Range | None = getattr(row, throughput)
    uses = row.rho if throughput == "consumed_per_s" and row.rho else 1.0
    return None if of is None else of.scaled(1 / uses)


def _mark(axes: Axes, x: float, of: Range, color: str, marker: str, *, hollow: bool) -> None:
    face = "white" if hollow else color
    style: dict[str, Any] = {"marker": marker, "markersize": 4, "markerfacecolor": face, "zorder": 3}
    draw_ranges(axes, [x], [of], color=color, **style)


# -- times ---------------------------------------------------------------------------------------------


def _draw_times(axes: Axes, study: Study, rows: Sequence[Row]) -> None:
    """Draw the times to the threshold, and how many trainings did not reach it."""
    assert study.threshold is not None, "there are no times without one"
    reached: list[tuple[int, float]] = []
    top = 0.0
    for row in rows:
        times = row.time_to_s
        if times is not None and math.isfinite(times.middle):
            reached.append((x_of(study, row.split), times.middle))
            high, marker = (study.seconds, "^") if _is_open(row) else (times.high, "o")
            shown = Range(times.middle, times.low, max(high, times.middle))
            top = max(top, shown.high)
            _mark(axes, x_of(study, row.split), shown, BLACK, marker, hollow=row.setting.oversubscribed)
        if row.reached < row.repeats:
            _note_missing(axes, x_of(study, row.split), row, study.seconds)
    if reached:
        axes.plot(*zip(*reached, strict=True), color=BLACK)
    axes.set_ylim(0, ROOM * (top or study.seconds))
    first = ",\nfirst of G groups" if any(row.split.groups > 1 for row in rows) else ""
    axes.set_ylabel(f"Time to {exact(study.threshold)} (s){first}")


def _note_missing(axes: Axes, x: float, row: Row, seconds: float) -> None:
    """Write how many trainings of a setting did not reach the threshold: above an open bar, or at the top."""
    style: dict[str, Any] = {"fontsize": 6, "color": GREY, "ha": "center"}
    label = f"{row.repeats - row.reached} of {row.repeats}"
    if _is_open(row):
        axes.annotate(label, (x, seconds), (0, 2), textcoords="offset points", va="bottom", **style)
        return
    label = f"{label}\n" if row.reached else ""
    where: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "va": "top"}
    axes.annotate(f"{label}not in\n{seconds:g} s", (x, 0.98), **where, **style)


# -- curves --------------------------------------------------------------------------------------------


def _draw_curves(axes: Axes, rows: Sequence[Row], seconds: float) -> None:
    """Draw the learning curves of all settings; a training that is over keeps its last return."""
    for place, row in enumerate(rows):
        curves = [one.curve for one in row.trainings if one.curve is not None]
        if curves:
            color, label = COLORS[place % len(COLORS)], row.setting.name + "*" * row.setting.oversubscribed
            draw_curve(axes, curves, over="train_s", end=seconds, color=color, label=label)
    axes.set_xlim(0, seconds)


# -- axes ----------------------------------------------------------------------------------------------


def _axis(axes: Axes, study: Study, rows: Sequence[Row], predictions: Predictions) -> None:
    values = {x_of(study, row.split) for row in rows} | {
        x_of(study, point.split) for point in predictions.points
    }
    powers_axis(axes, sorted(values), str)
    axes.set_xlabel("Groups" if study.of.axis == "groups" else "Actors")


def _legend(figure: Figure, rows: Sequence[Row], predictions: Predictions, *, has_times: bool) -> None:
    rho = next((row.rho for row in rows if row.rho), predictions.rho)
    marks = []
    for name, color, marker in THROUGHPUTS.values():
        label = f"training (uses / {rho:g})" if name == "training" else name
        marks.append(Line2D([], [], color=color, marker=marker, markersize=4, label=label))
    if predictions.points:
        marks.append(Line2D([], [], color=GREY, linestyle=DASHES, label=PREDICTED))
    small: dict[str, Any] = {"linestyle": "", "markersize": 4}
    if any(point.extrapolated for point in predictions.points):
        marks.append(Line2D([], [], color=GREY, marker="x", label=RECKONED, **small))
    if any(row.setting.oversubscribed for row in rows):
        hollow = Line2D(
            [], [], color=GREY, marker="o", markerfacecolor="white", label="too few cores", **small
        )
        marks.append(hollow)
    if has_times and any(_is_open(row) for row in rows):
        marks.append(Line2D([], [], color=BLACK, marker="^", label="so many did not reach it", **small))
    figure.legend(handles=marks, loc="outside upper center", ncols=2)


def _is_open(row: Row) -> bool:
    """Whether most trainings reached the threshold, but not all: the bar goes to the end of their time."""
    times = row.time_to_s
    return times is not None and math.isfinite(times.middle) and math.isinf(times.high)

"""Figures of a comparison: curves over steps and over time, performance profiles, and intervals.

Each group has its own colour and dashes, so that figures can also be read in grey. One run has no band.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from tianji_cli.quantities import exact
from tianji_cli.runs.comparison.compare import Comparison, GroupCurve, Row
from tianji_cli.runs.comparison.curves import Curve, Over, values_on
from tianji_cli.runs.comparison.statistics import Array, Estimate, Interval, estimate
from tianji_cli.telemetry.figures import COLORS, GREY, HEIGHT, LINES, write_figure

POINTS: Final = 200
"""Points of a learning curve, from 0 to its end."""
RESAMPLES: Final = 2000

LEGEND: Final = 66
"""Characters in a line of the legend, which is as wide as the figure."""
MARK: Final = 8
"""Characters that a mark and its margins take."""
LONGEST: Final = 26
"""Most characters in a line of an axis label."""
LINE_HIGH: Final = 0.14
"""Height of a line of the legend or of a label, in inches."""
PALE: Final = 0.45
LEVEL: Final[Mapping[str, Any]] = {"color": GREY, "linestyle": "--", "linewidth": 0.7}
"""Line style of reference values."""
KEPT: Final = "pale: some runs have reached their goal, and keep their last return"
RETURN: Final = {"mean_100": "Mean return of 100 episodes", "evaluation": "Mean return of an evaluation"}


def draw(name: str, found: Comparison, path: Path) -> None:
    """Draw one of the figures of a comparison, by its name.

    Raises:
        OSError: the file cannot be written.
    """
    write_figure(*drawing(name, found), path)


def drawing(name: str, found: Comparison) -> Drawing:
    """Return the function that draws one of the figures, and the figure's height in inches."""
    return _FIGURES[name](found)


Drawing = tuple[Callable[[Figure], None], float]


def _curves(found: Comparison, over: Over) -> Drawing:
    curves = [(row, style) for row, style in _styles(found) if over in row.curves]
    kept = any(row.curves[over].kept_from is not None for row, _ in curves)
    marked = found.thresholds if found.curves_of == "mean_100" else ()
    notes = [f"dashed: thresholds {', '.join(map(exact, marked))}"] if marked else []
    notes += [KEPT] if kept else []
    legend = _Legend(curves)

    def into(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, style in curves:
            _draw_curve(axes, row.curves[over], style)
        low, high = axes.get_ylim()
        for threshold in (one for one in marked if low <= one <= high):
            axes.axhline(threshold, **LEVEL)
        axes.set_ylabel(RETURN[found.curves_of])
        _label_x(axes, over, max((row.curves[over].x[-1] for row, _ in curves), default=1.0))
        if notes:
            figure.supxlabel("\n".join(notes), x=0.02, ha="left", fontsize=6, color=GREY)
        legend.draw(figure)

    return into, HEIGHT + legend.height + LINE_HIGH * len(notes)


def _draw_curve(axes: Axes, of: GroupCurve, style: Mapping[str, Any]) -> None:
    """Draw a group's curve, paler where a run keeps its last return."""
    if of.kept_from is None:
        _draw_part(axes, of, np.ones(len(of.x), np.bool_), 1.0, style)
        return
    before = of.x <= of.kept_from
    # The parts meet: both have the last place of the first part.
    behind = np.append(~before[1:], True)
    for part, alpha in ((before, 1.0), (behind, PALE)):
        _draw_part(axes, of, part, alpha, style)


def _draw_part(
    axes: Axes,
    of: GroupCurve,
    part: np.ndarray[Any, np.dtype[np.bool_]],
    alpha: float,
    style: Mapping[str, Any],
) -> None:
    band = Estimate(of.band.value[part], of.band.low[part], of.band.high[part])
    draw_band(axes, of.x[part], band, style["color"], style["linestyle"], alpha=alpha)


def _label_x(axes: Axes, over: Over, end: float) -> None:
    axes.set_xlim(0, end)
    if over == "env_steps":
        axes.set_xlabel("Environment steps")
        axes.xaxis.set_major_formatter(EngFormatter())
        return
    unit, seconds = ("s", 1) if end < 600 else ("min", 60) if end < 7200 else ("h", 3600)
    axes.set_xlabel(f"Time since the first environment step ({unit})")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value / seconds:g}")


def _profiles(found: Comparison) -> Drawing:
    legend = _Legend(_styles(found))

    def into(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, style in _styles(found):
            axes.plot(found.taus, row.profile.value, drawstyle="steps-mid", **style)
            axes.fill_between(
                found.taus,
                row.profile.low,
                row.profile.high,
                step="mid",
                color=style["color"],
                alpha=0.2,
                linewidth=0,
            )
        axes.set_xlim(found.taus[0], found.taus[-1])
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel(r"Final return $\tau$")
        axes.set_ylabel(r"Runs with a return above $\tau$")
        legend.draw(figure)

    return into, HEIGHT + legend.height


def _intervals(found: Comparison) -> Drawing:
    """Draw the groups one below the other: final returns, areas, and P(better than the first)."""
    labels = [_broken(row.name, LONGEST) for row in found.rows]
    high = 0.55 + sum(LINE_HIGH * (1 + label.count("\n")) + 0.06 for label in labels)
    panels = ["Final return"]
    panels += ["Area: mean return on the way"] if found.between is not None else []
    panels += ["P(better than the first)"] if len(found.rows) > 1 else []

    def into(figure: Figure) -> None:
        for axes, title in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            if title.startswith("P(better"):
                _draw_better(axes, found)
            else:
                is_final = title == panels[0]
                _draw_means(axes, found, [row.final if is_final else row.area for row in found.rows])
                axes.xaxis.set_major_locator(MaxNLocator(4))
                axes.ticklabel_format(axis="x", useOffset=False)
            axes.set_xlabel(title)
            axes.set_yticks(range(len(labels)), labels, fontsize=7)
            axes.set_ylim(len(labels) - 0.5, -0.5)
            axes.grid(visible=False, axis="y")

    return into, high * len(panels)


def _draw_means(axes: Axes, found: Comparison, of: Sequence[Interval | None]) -> None:
    for place, ((_, style), mean) in enumerate(zip(_styles(found), of, strict=True)):
        if mean is not None and mean.iqm is not None:
            draw_interval(axes, place, (mean.iqm, mean.low, mean.high), style["color"])


def _draw_better(axes: Axes, found: Comparison) -> None:
    """Draw probabilities in final returns as points, and in areas as squares."""
    axes.axvline(0.5, **LEVEL)
    axes.set_xlim(-0.03, 1.03)
    both = len(found.rows[1].better) > 1
    for place, (row, style) in enumerate(_styles(found)):
        for measure, better in row.better.items():
            above = (-0.14 if measure == "final" else 0.14) if both else 0.0
            marker = "o" if measure == "final" else "s"
            points = (better.p, better.low, better.high)
            draw_interval(axes, place + above, points, style["color"], marker)
    if both:
        marks = [Line2D([], [], color=GREY, marker=m, label=t) for m, t in (("o", "final"), ("s", "area"))]
        axes.legend(handles=marks, loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.0, ncols=2)


def draw_interval(
    axes: Axes,
    place: float,
    points: tuple[float, float | None, float | None],
    color: str,
    marker: str = "o",
    dashes: Any = "-",
) -> None:
    """Draw a middle and, unless one of them is None, the ends of its interval."""
    middle, low, high = points
    # A line, not error bars: percentile intervals need not contain the estimate.
    if low is not None and high is not None:
        axes.plot([low, high], [place, place], color=color, linestyle=dashes)
    axes.plot(middle, place, color=color, marker=marker)


# -- how groups look -----------------------------------------------------------------------------------


def _styles(found: Comparison) -> list[tuple[Row, dict[str, Any]]]:
    """Return colour and dashes of each group."""
    return [
        (row, {"color": COLORS[place % len(COLORS)], "linestyle": LINES[place % len(LINES)]})
        for place, row in enumerate(found.rows)
    ]


def _broken(name: str, longest: int) -> str:
    """Break a name into lines after ``=``, a comma, a slash, a blank or a dot; longer parts break anywhere.

    Dollar signs are escaped, so that they begin no formula.
    """
    lines = [""]
    for part in re.split(r"(?<=[=,/ ])|(?<=\.)(?=[a-z])", name):
        if lines[-1] and len(lines[-1]) + len(part.rstrip()) > longest:
            lines.append("")
        lines[-1] += part
    broken = (line.strip() for long in lines for line in wrap(long, longest, break_on_hyphens=False))
    return "\n".join(broken).replace("$", r"\$")


class _Legend:
    """Owns the legend above the axes, in as many columns as names have room for.

    Attributes:
        height: height in inches.
    """

    def __init__(self, groups: Sequence[tuple[Row, Mapping[str, Any]]]) -> None:
        names = [_broken(row.name, LEGEND - MARK) for row, _ in groups]
        styles = [style for _, style in groups]
        self._marks = [Line2D([], [], label=name, **style) for name, style in zip(names, styles, strict=True)]
        longest = max((len(line) for name in names for line in name.split("\n")), default=1)
        self._columns = max(1, min(len(names), LEGEND // (longest + MARK)))
        lines = sum(1 + name.count("\n") for name in names)
        self.height = LINE_HIGH * -(-lines // self._columns)

    def draw(self, figure: Figure) -> None:
        """Draw the legend above the panels."""
        figure.legend(handles=self._marks, loc="outside upper left", ncols=self._columns)


_FIGURES: Final[Mapping[str, Callable[[Comparison], Drawing]]] = {
    "return_over_steps": lambda found: _curves(found, "env_steps"),
    "return_over_time": lambda found: _curves(found, "train_s"),
    "performance_profile": _profiles,
    "intervals": _intervals,
}


def draw_curve(
    axes: Axes, curves: Sequence[Curve], *, over: Over, end: float, color: str, dashes: Any = "-", label: str
) -> None:
    """Draw the interquartile mean over trainings, and the band of its interval.

    A training that is over keeps its last return; the curve begins where every training has a return.
    """
    x = np.linspace(0, end, POINTS)
    values = np.stack([values_on(x, one, over, held=True) for one in curves])
    shown = ~np.isnan(values).any(axis=0)
    draw_band(axes, x[shown], estimate(values[:, shown], resamples=RESAMPLES), color, dashes, label)


def draw_band(
    axes: Axes, x: Array, of: Estimate, color: str, dashes: Any = "-", label: str = "", *, alpha: float = 1.0
) -> None:
    """Draw interquartile means as a line, and their intervals as a band around it; paler with ``alpha``."""
    axes.plot(x, of.value, color=color, linestyle=dashes, label=label, alpha=alpha)
    axes.fill_between(x, of.low, of.high, color=color, alpha=0.2 * alpha, linewidth=0)

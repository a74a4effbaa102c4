"""Draws the staleness experiments as PNG: interquartile means over seeds and their 95 % intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.quantities import exact
from tianji_cli.runs.comparison.curves import Over
from tianji_cli.runs.comparison.figures import draw_curve, draw_interval
from tianji_cli.telemetry.figures import COLORS, GREY, LINES, write_figure
from tianji_lab.staleness.study import Row

PANELS_HIGH: Final = (1.8, 1.8, 1.0)
"""Heights in inches of the panels: return over time, return over steps, and times to the threshold."""


def draw(rows: Sequence[Row], threshold: float, path: Path) -> None:
    """Draw learning curves over time and over steps, and below them the times to the threshold.

    Raises:
        OSError: the file cannot be written.
    """

    def draw_into(figure: Figure) -> None:
        above, below, times = figure.subplots(3, 1, height_ratios=PANELS_HIGH)
        styles = _styles(rows)
        panels: tuple[tuple[Axes, Over], ...] = ((above, "train_s"), (below, "env_steps"))
        for axes, over in panels:
            _draw_curves(axes, rows, styles, over)
            axes.axhline(threshold, color=GREY, linestyle="--", linewidth=0.9)
            axes.set_ylabel("Mean return")
        above.set_xlabel("Time since the first environment step (s)")
        below.set_xlabel("Environment steps")
        below.xaxis.set_major_formatter(EngFormatter())
        _draw_times(times, rows, styles, threshold)
        handles, labels = above.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4 if len(handles) > 3 else 3)

    write_figure(draw_into, sum(PANELS_HIGH) + 0.12 * len(rows), path)


def _label(of: Row) -> str:
    setting = of.setting
    return setting.samples if setting.mapping == "recommended" else f"{setting.samples}, {setting.mapping}"


def _styles(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    """Give every lag its colour and every mapping its dashes."""
    lags = list(dict.fromkeys(row.setting.lag for row in rows))
    mappings = list(dict.fromkeys(row.setting.mapping for row in rows))
    return [
        (COLORS[lags.index(row.setting.lag) % len(COLORS)], LINES[mappings.index(row.setting.mapping)])
        for row in rows
    ]


def _draw_curves(axes: Axes, rows: Sequence[Row], styles: Sequence[tuple[str, Any]], over: Over) -> None:
    longest = max(getattr(training, over) for row in rows for training in row.trainings)
    for row, (color, dashes) in zip(rows, styles, strict=True):
        curves = [training.curve for training in row.trainings if training.curve is not None]
        draw_curve(axes, curves, over=over, end=longest, color=color, dashes=dashes, label=_label(row))
    axes.set_xlim(0, longest)


def _draw_times(axes: Axes, rows: Sequence[Row], styles: Sequence[tuple[str, Any]], threshold: float) -> None:
    end = 1.05 * max(row.time_to_s.high for row in rows)
    for place, (row, (color, _)) in enumerate(zip(rows, styles, strict=True)):
        time = row.time_to_s
        high, marker, dashes = (end, ">", ":") if row.at_least else (time.high, "o", "-")
        draw_interval(axes, place, (time.middle, time.low, high), color, marker, dashes)
    axes.set_yticks(range(len(rows)), map(_label, rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.grid(visible=False, axis="y")
    censored = any(row.at_least for row in rows)
    axes.set_xlabel(
        f"Time to {exact(threshold)} (s)" + (", > where some did not reach it" if censored else "")
    )

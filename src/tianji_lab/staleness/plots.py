"""Draws the staleness experiments as PNG: interquartile means over seeds and their 95 % intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.quantities import exact
from tianji_cli.runs.comparison.curves import Over
from tianji_cli.runs.comparison.figures import draw_curve
from tianji_cli.telemetry.figures import COLORS, GREY, LINES, write_figure
from tianji_lab.staleness.rows import Row
from tianji_lab.staleness.study import Setting
from tianji_lab.training import Training

PANELS_HIGH: Final = (1.8, 1.8, 1.0)
"""Heights in inches of the panels: return over time, return over steps, and times to the threshold."""


def draw(
    found: Mapping[Setting, Sequence[Training]], rows: Sequence[Row], threshold: float, path: Path
) -> None:
    """Draw learning curves over time and over steps, and below them the times to the threshold.

    Rows are in the order of the trainings' settings.

    Raises:
        OSError: the file cannot be written.
    """

    def draw_into(figure: Figure) -> None:
        above, below, times = figure.subplots(3, 1, height_ratios=PANELS_HIGH)
        styles = _styles(list(found))
        panels: tuple[tuple[Axes, Over], ...] = ((above, "train_s"), (below, "env_steps"))
        for axes, over in panels:
            _draw_curves(axes, found, styles, over)
            axes.axhline(threshold, color=GREY, linestyle="--", linewidth=0.9)
            axes.set_ylabel("Mean return")
        above.set_xlabel("Time since the first environment step (s)")
        below.set_xlabel("Environment steps")
        below.xaxis.set_major_formatter(EngFormatter())
        _draw_times(times, rows, list(styles.values()), threshold)
        handles, labels = above.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4 if len(handles) > 3 else 3)

    write_figure(draw_into, sum(PANELS_HIGH) + 0.12 * len(rows), path)


def _label(of: Setting | Row) -> str:
    return of.samples if of.mapping == "recommended" else f"{of.samples}, {of.mapping}"


def _styles(settings: Sequence[Setting]) -> dict[Setting, tuple[str, Any]]:
    """Give every lag its colour and every mapping its dashes."""
    lags = list(dict.fromkeys(setting.lag for setting in settings))
    mappings = list(dict.fromkeys(setting.mapping for setting in settings))
    return {
        setting: (COLORS[lags.index(setting.lag) % len(COLORS)], LINES[mappings.index(setting.mapping)])
        for setting in settings
    }


def _draw_curves(
    axes: Axes,
    found: Mapping[Setting, Sequence[Training]],
    styles: Mapping[Setting, tuple[str, Any]],
    over: Over,
) -> None:
    every = [training for trainings in found.values() for training in trainings]
    longest = max(getattr(training, over) for training in every)
    for setting, trainings in found.items():
        color, dashes = styles[setting]
        curves = [training.curve for training in trainings if training.curve is not None]
        label = _label(setting)
        draw_curve(axes, curves, over=over, end=longest, color=color, dashes=dashes, label=label)
    axes.set_xlim(0, longest)


def _draw_times(axes: Axes, rows: Sequence[Row], styles: Sequence[tuple[str, Any]], threshold: float) -> None:
    end = 1.05 * max(row.time_to_s.high for row in rows)
    for place, (row, (color, _)) in enumerate(zip(rows, styles, strict=True)):
        time = row.time_to_s
        ends, dashes = ([time.low, end], ":") if time.at_least else ([time.low, time.high], "-")
        # A line, not error bars: a percentile interval need not contain its estimate.
        axes.plot(ends, [place, place], color=color, linestyle=dashes)
        axes.plot(time.iqm, place, color=color, marker=">" if time.at_least else "o")
    axes.set_yticks(range(len(rows)), map(_label, rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.grid(visible=False, axis="y")
    censored = any(row.time_to_s.at_least for row in rows)
    axes.set_xlabel(
        f"Time to {exact(threshold)} (s)" + (", > where some did not reach it" if censored else "")
    )

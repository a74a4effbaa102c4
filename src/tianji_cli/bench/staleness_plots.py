"""The staleness experiments as PNG: interquartile means over seeds and their 95 % intervals."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from tianji_cli.bench.curves import AMBER, BLACK, LINES, PURPLE, SKY, WIDTH
from tianji_cli.bench.staleness import Setting
from tianji_cli.bench.staleness_report import Row
from tianji_cli.bench.statistics import estimate
from tianji_cli.bench.training import Training
from tianji_cli.telemetry.plots import BLUE, GREEN, GREY, ORANGE, STYLE
from tianji_cli.telemetry.rundir import write_whole

COLORS: Final = (BLUE, GREEN, AMBER, ORANGE, PURPLE, SKY, BLACK)
"""Of the lags, in their order."""
POINTS: Final = 200
"""Of a curve, from 0 to the end of the longest training."""
RESAMPLES: Final = 2000
PANELS_HIGH: Final = (1.8, 1.8, 1.0)
"""Inches: return over time, over steps, and the times to the threshold."""


def draw(
    found: Mapping[Setting, Sequence[Training]], rows: Sequence[Row], threshold: float, path: Path
) -> None:
    """Draw learning curves over time and over steps, and below them the times to the threshold.

    Args:
        found: trainings by setting.
        rows: what was found of each, in the same order.
        threshold: mean return that was waited for.
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """
    png = io.BytesIO()
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        # A figure of its own, not pyplot's: pyplot keeps global state and may look for a display.
        figure = Figure(figsize=(WIDTH, sum(PANELS_HIGH) + 0.12 * len(rows)))
        above, below, times = figure.subplots(3, 1, height_ratios=PANELS_HIGH)
        styles = _styles(list(found))
        for axes, over in ((above, "train_s"), (below, "env_steps")):
            _draw_curves(axes, found, styles, over)
            axes.axhline(threshold, color=GREY, linestyle="--", linewidth=0.9)
            axes.set_ylabel("Mean return")
        above.set_xlabel("Time since the first environment step (s)")
        below.set_xlabel("Environment steps")
        below.xaxis.set_major_formatter(EngFormatter())
        _draw_times(times, rows, list(styles.values()), threshold)
        handles, labels = above.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=4 if len(handles) > 3 else 3)
        figure.savefig(png, format="png")
    write_whole(path, png.getvalue())


def label_of(setting: Setting) -> str:
    """Name a setting in the legend."""
    return setting.samples if setting.mapping == "recommended" else f"{setting.samples}, {setting.mapping}"


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
    over: str,
) -> None:
    every = [training for trainings in found.values() for training in trainings]
    longest = max(getattr(training.curve, over)[-1] for training in every)
    x = np.linspace(0, longest, POINTS)
    for setting, trainings in found.items():
        color, dashes = styles[setting]
        curves = np.stack([_on(x, training, over) for training in trainings])
        shown = ~np.isnan(curves).any(axis=0)
        band = estimate(curves[:, shown], resamples=RESAMPLES)
        axes.plot(x[shown], band.iqm, color=color, linestyle=dashes, label=label_of(setting))
        axes.fill_between(x[shown], band.low, band.high, color=color, alpha=0.2, linewidth=0)
    axes.set_xlim(0, longest)


def _on(x: npt.NDArray[np.float64], training: Training, over: str) -> npt.NDArray[np.float64]:
    """Interpolate a curve; a training that is over keeps its last return, one without episodes has none."""
    known = training.curve
    return np.interp(x, getattr(known, over), known.mean_100, left=np.nan)


def _draw_times(axes: Axes, rows: Sequence[Row], styles: Sequence[tuple[str, Any]], threshold: float) -> None:
    end = 1.05 * max(row.time_to_s.high for row in rows)
    for place, (row, (color, _)) in enumerate(zip(rows, styles, strict=True)):
        time = row.time_to_s
        ends, dashes = ([time.low, end], ":") if time.at_least else ([time.low, time.high], "-")
        # A line, not error bars: percentile intervals need not hold what they are of.
        axes.plot(ends, [place, place], color=color, linestyle=dashes)
        axes.plot(time.iqm, place, color=color, marker=">" if time.at_least else "o")
    names = [row.samples if row.mapping == "recommended" else f"{row.samples}, {row.mapping}" for row in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, end)
    axes.grid(visible=False, axis="y")
    censored = any(row.time_to_s.at_least for row in rows)
    axes.set_xlabel(f"Time to {threshold:g} (s)" + (", > where some did not reach it" if censored else ""))

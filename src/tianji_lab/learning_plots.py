"""Learning curves of several trainings, as a line and its band: what plots of trainings have in common."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tianji_cli.files.rundir import write_whole
from tianji_cli.telemetry.plots import BLUE, GREEN, ORANGE, STYLE
from tianji_lab.curves import AMBER, BLACK, PURPLE, SKY, WIDTH
from tianji_lab.statistics import estimate
from tianji_lab.training import Curve

COLORS: Final = (BLUE, GREEN, AMBER, ORANGE, PURPLE, SKY, BLACK)
"""Of settings, in their order."""
POINTS: Final = 200
"""Of a curve, from 0 to its end."""
RESAMPLES: Final = 2000


def draw_curve(
    axes: Axes, curves: Sequence[Curve], *, over: str, end: float, color: str, dashes: Any = "-", label: str
) -> None:
    """Draw the interquartile mean over trainings, and the band of its interval.

    A training that is over keeps its last return; nothing is drawn of the time before each of them has one.

    Args:
        axes: where to.
        curves: of the trainings, at least one.
        over: "train_s" or "env_steps".
        end: of the axis.
        color: of line and band.
        dashes: of the line, in matplotlib's words.
        label: of the line in the legend.
    """
    x = np.linspace(0, end, POINTS)
    values = np.stack([np.interp(x, getattr(one, over), one.mean_100, left=np.nan) for one in curves])
    shown = ~np.isnan(values).any(axis=0)
    band = estimate(values[:, shown], resamples=RESAMPLES)
    axes.plot(x[shown], band.iqm, color=color, linestyle=dashes, label=label)
    axes.fill_between(x[shown], band.low, band.high, color=color, alpha=0.2, linewidth=0)


def write_figure(draw_into: Callable[[Figure], None], height: float, path: Path) -> None:
    """Draw a figure of a column's width and write it as PNG.

    Args:
        draw_into: draws it.
        height: in inches.
        path: of the file.

    Raises:
        OSError: the file cannot be written.
    """
    png = io.BytesIO()
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        # A figure of its own, not pyplot's: pyplot keeps global state and may look for a display.
        figure = Figure(figsize=(WIDTH, height))
        draw_into(figure)
        figure.savefig(png, format="png")
    write_whole(path, png.getvalue())

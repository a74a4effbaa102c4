"""How all figures look, one column of a two-column page wide: axes, learning curves, files."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from tianji_cli.files.rundir import write_whole
from tianji_cli.runs.comparison.curves import Curve, Over, values_on
from tianji_cli.runs.comparison.statistics import Array, Estimate, estimate
from tianji_cli.telemetry.plots import STYLE

LINES: Final = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (8, 2)), (0, (2, 2)))
"""Dashes of what varies beside the colour."""
WIDTH: Final = 3.5
HEIGHT: Final = 2.4
"""Inches of a figure of one panel."""
MAX_LABELLED: Final = 6
"""Ticks of an axis."""
WIDE: Final = 300.0
"""Axes that span more than this factor are labelled at powers of ten only."""
POINTS: Final = 200
"""Of a learning curve, from 0 to its end."""
RESAMPLES: Final = 2000
UNDATED: Final[dict[str, dict[str, None]]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_figure(draw_into: Callable[[Figure], None], height: float, path: Path) -> None:
    """Draw a figure and write it as what its path ends with: PNG, SVG or PDF.

    Args:
        draw_into: draws it; it may set another height.
        height: in inches.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, render_figure(draw_into, height, path.suffix.removeprefix(".")))


def render_figure(draw_into: Callable[[Figure], None], height: float, kind: str) -> bytes:
    """Draw a figure as ``write_figure`` writes it.

    Args:
        kind: "png", "svg" or "pdf".
    """
    content = io.BytesIO()
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        # A figure of its own, not pyplot's: pyplot keeps global state and may look for a display.
        figure = Figure(figsize=(WIDTH, height))
        draw_into(figure)
        figure.savefig(content, format=kind, metadata=UNDATED.get(kind))
    return content.getvalue()


def panels_of(figure: Figure, number: int) -> list[Axes]:
    """Divide a figure into panels one below the other, with one x axis."""
    return list(figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0])


def powers_axis(axes: Axes, values: Sequence[float], label: Callable[[float], str]) -> None:
    """Make the x axis one of powers of two, with ticks at measured values; as many labels as have room."""
    axes.set_xscale("log", base=2)
    step = math.ceil(len(values) / MAX_LABELLED)
    axes.xaxis.set_major_locator(FixedLocator(values[::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axes.xaxis.set_minor_locator(FixedLocator(values))
    axes.xaxis.set_minor_formatter(NullFormatter())


def logarithmic(axes: Axes, label: str) -> None:
    """Make the y axis logarithmic, with plain numbers: several of them even within one power of ten."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > WIDE else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}".replace(",", " ")))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)


def draw_curve(
    axes: Axes, curves: Sequence[Curve], *, over: Over, end: float, color: str, dashes: Any = "-", label: str
) -> None:
    """Draw the interquartile mean over trainings, and the band of its interval.

    A training that is over keeps its last return; nothing is drawn of the time before each of them has one.
    """
    x = np.linspace(0, end, POINTS)
    values = np.stack([values_on(x, one, over, held=True) for one in curves])
    shown = ~np.isnan(values).any(axis=0)
    draw_band(axes, x[shown], estimate(values[:, shown], resamples=RESAMPLES), color, dashes, label)


def draw_band(
    axes: Axes, x: Array, of: Estimate, color: str, dashes: Any = "-", label: str = "", *, alpha: float = 1.0
) -> None:
    """Draw interquartile means as a line, and their intervals as a band around it; paler with ``alpha``."""
    axes.plot(x, of.iqm, color=color, linestyle=dashes, label=label, alpha=alpha)
    axes.fill_between(x, of.low, of.high, color=color, alpha=0.2 * alpha, linewidth=0)

"""Colours, style, axes and files of all figures, which are as wide as one column of a two-column page.

The colours are Okabe and Ito's, which colour-blind readers can tell apart, without their yellow, which paper
does not show.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from tianji_cli.files.rundir import write_whole

BLUE: Final = "#0072B2"
GREEN: Final = "#009E73"
AMBER: Final = "#E69F00"
ORANGE: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
SKY: Final = "#56B4E9"
BLACK: Final = "#000000"
GREY: Final = "#666666"
"""Colour of levels, limits and notes."""

COLORS: Final = (BLUE, GREEN, AMBER, ORANGE, PURPLE, SKY, BLACK)
"""Colours of settings, groups and members, in their order; further ones begin again with the first."""

STYLE: Final = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 3,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "legend.columnspacing": 1.2,
    "figure.figsize": (3.5, 2.4),  # inches: one column of a two-column page
    "figure.dpi": 300,
    "figure.constrained_layout.use": True,
    # Text stays text, which can be searched and edited; the same figure has the same bytes.
    "svg.fonttype": "none",
    "svg.hashsalt": "tianji",
    "pdf.fonttype": 42,
}
LINES: Final = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (8, 2)), (0, (2, 2)))
"""Dash patterns of curves, used besides the colours."""
WIDTH: Final = 3.5
HEIGHT: Final = 2.4
"""Inches of a figure with one panel."""
MAX_LABELLED: Final = 6
"""Most labelled ticks of an axis."""
WIDE: Final = 300.0
"""An axis that spans more than this factor has labels at powers of ten only."""
UNDATED: Final[dict[str, dict[str, None]]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}


def write_figure(draw_into: Callable[[Figure], None], height: float, path: Path) -> None:
    """Draw a figure and write it in the format of the path's suffix: PNG, SVG or PDF.

    Args:
        draw_into: draws the figure; it may set another height.
        height: height in inches.

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
    """Divide a figure into panels one below the other, which share one x axis."""
    return list(figure.subplots(number, 1, sharex=True, squeeze=False)[:, 0])


def powers_axis(axes: Axes, values: Sequence[float], label: Callable[[float], str]) -> None:
    """Make the x axis logarithmic to base two, with ticks at measured values and as many labels as fit."""
    axes.set_xscale("log", base=2)
    step = math.ceil(len(values) / MAX_LABELLED)
    axes.xaxis.set_major_locator(FixedLocator(values[::step]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axes.xaxis.set_minor_locator(FixedLocator(values))
    axes.xaxis.set_minor_formatter(NullFormatter())


def logarithmic(axes: Axes, label: str) -> None:
    """Make the y axis logarithmic with plain numbers, several of them even within one power of ten."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high / low > WIDE else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}".replace(",", " ")))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)

"""Curves, axes and legends of the figures: an engine has one colour and one marker in all of them."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import size
from tianji_cli.telemetry.plots import BLUE, GREEN, GREY, ORANGE, STYLE
from tianji_lab.bench.record import KB, MB, Record
from tianji_lab.training import Curve, estimate

# The rest of Okabe and Ito's palette but its yellow, which paper does not show.
PURPLE: Final = "#CC79A7"
AMBER: Final = "#E69F00"
SKY: Final = "#56B4E9"
BLACK: Final = "#000000"

ENGINES: Final = {"shm": (BLUE, "o"), "zmq": (ORANGE, "s"), "mpi": (GREEN, "^"), "ucx": (PURPLE, "D")}
OTHERS: Final = ((AMBER, "v"), (SKY, "P"), (BLACK, "X"))
"""Colours and markers of engines that are not built in, and of pairs such as ``shm+zmq``."""
LINES: Final = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)), (0, (8, 2)), (0, (2, 2)))
"""Of numbers of actors, or whatever a figure has beside its engines."""
RAW: Final = (0, (1, 1.5))
WIDTH: Final = 3.5
PANEL: Final = 1.75
"""Height of each of several panels, in inches."""
MAX_LABELLED: Final = 6
"""Ticks of an axis."""
IN_A_ROW: Final = 5
"""Entries of a legend."""
WIDE: Final = 300.0
"""Axes that span more than this factor are labelled at powers of ten only."""

Get = Callable[[Record], float | None]
Bars = Callable[[Record], tuple[float, float]]
"""How far the bars of a point reach down and up."""
Style = tuple[str, str]
"""Colour and marker."""


@dataclass(frozen=True)
class Line:
    """Records of one engine that a line connects.

    Attributes:
        records: in the order of the axis.
        color: of the engine.
        marker: of the engine.
        dashes: for what varies beside engine and axis.
    """

    records: Sequence[Record]
    color: str
    marker: str
    dashes: Any


def engine_styles(backends: Sequence[str]) -> dict[str, Style]:
    """Give every engine its colour and marker; they depend on no measurement.

    Args:
        backends: names, which may come several times.
    """
    others = sorted(set(backends) - ENGINES.keys())
    styles = {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(others)}
    known = [name for name in ENGINES if name in backends]
    return {name: ENGINES[name] for name in known} | styles


# -- lines ---------------------------------------------------------------------------------------------


def lines_of(records: Sequence[Record]) -> list[Line]:
    """One line for each engine, or several where actors or sample times vary beside the axis.

    Args:
        records: of one panel. Where sizes vary they are its axis, otherwise numbers of actors are.
    """
    dashes = _dashes(records)
    lines = []
    for backend, (color, marker) in engine_styles([record.backend for record in records]).items():
        for key, dash in dashes.items():
            mine = [
                record
                for record in records
                if record.backend == backend and (not key or _beside_size(record) == key)
            ]
            if mine:
                ordered = sorted(mine, key=lambda record: (record.msg_kb, record.actors))
                lines.append(Line(ordered, color, marker, dash))
    return lines


def _dashes(records: Sequence[Record]) -> dict[str, Any]:
    """Give each setting that varies beside the size its dashes, by what the legend calls it."""
    if len({record.msg_kb for record in records}) == 1:
        return {"": LINES[0]}
    ordered = sorted(records, key=lambda record: (record.actors, record.sample_time_s))
    keys = list(dict.fromkeys(_beside_size(record) for record in ordered))
    return {key: LINES[place % len(LINES)] for place, key in enumerate(keys)}


def _beside_size(record: Record) -> str:
    actors = f"{record.actors} actor" + ("s" if record.actors > 1 else "")
    return actors + (f", {record.sample_time_s:g} s" if record.sample_time_s else "")


def plot_line(axes: Axes, line: Line, x: Callable[[Record], float], y: Get, bars: Bars) -> None:
    """Connect a line's points, with their bars; points without a value are left out."""
    points = [
        (x(record), value, *bars(record)) for record in line.records if (value := y(record)) is not None
    ]
    if points:
        xs, ys, *reach = zip(*points, strict=True)
        axes.errorbar(
            xs,
            ys,
            yerr=reach,
            color=line.color,
            marker=line.marker,
            linestyle=line.dashes,
            capsize=1.5,
            elinewidth=0.7,
            capthick=0.7,
        )


def plot_sizes(axes: Axes, records: Sequence[Record], y: Get, bars: Bars) -> None:
    """Plot something against the size of a message."""
    for line in lines_of(records):
        plot_line(axes, line, lambda record: record.msg_kb, y, bars)


def plot_throughput(axes: Axes, records: Sequence[Record], link: float | None) -> None:
    """Plot throughput against the size of a message, raw loops and the link's own limit beside it."""
    plot_sizes(axes, records, lambda record: record.mb_per_s, throughput_bars)
    for line in lines_of(records):
        raw = {
            record.msg_kb: record.raw_msgs_per_s * record.msg_kb * KB / MB
            for record in line.records
            if record.raw_msgs_per_s is not None
        }
        axes.plot(list(raw), list(raw.values()), color=line.color, linestyle=RAW, linewidth=0.9, zorder=1.5)
    if link is not None:
        axes.axhline(link, color=GREY, linestyle="-.", linewidth=0.9)
        axes.annotate(
            f"link: {link:g} MB/s",
            (0, link),
            xycoords=axes.get_yaxis_transform(),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=7,
            color=GREY,
        )
    logarithmic(axes, "Throughput (MB/s)")


def plot_predictions(axes: Axes, records: Sequence[Record]) -> None:
    """Draw Equation 1 in the engines' colours, and name its crossings below where the curves fall."""
    named = []
    for line in lines_of(records):
        points = {r.actors: r.predicted_s for r in line.records if r.predicted_s is not None}
        if not points:
            continue
        first = line.records[0]
        crossing = first.crossing_actors
        if crossing is not None:
            named.append((f"{first.backend}: {crossing} actor{'s' if crossing > 1 else ''}", line.color))
            if min(points) <= crossing <= max(points):
                # From there on the collection time is N_s T_rv, however many actors there are.
                points[crossing] = points[max(points)]
                mark = crossing_mark(line.color)
                mark.set_data([crossing], [points[crossing]])
                axes.add_line(mark)
        axes.plot(
            *zip(*sorted(points.items()), strict=True),
            color=line.color,
            linestyle="--",
            linewidth=0.9,
            zorder=1.5,
        )
    if named:
        named.insert(0, ("the buffer limits from", GREY))
    for place, (text, color) in enumerate(reversed(named)):
        axes.annotate(
            text,
            (0, 0),
            xycoords="axes fraction",
            xytext=(4, 3 + 7.5 * place),
            textcoords="offset points",
            fontsize=6.5,
            color=color,
        )


def crossing_mark(color: str) -> Line2D:
    """Make the mark of where the critical path moves from the actors to the buffer."""
    style: dict[str, Any] = {"marker": "*", "linestyle": "", "markersize": 8, "markerfacecolor": "white"}
    return Line2D([], [], color=color, zorder=4, **style)


# -- values --------------------------------------------------------------------------------------------


def collection_s(record: Record) -> float:
    """Take the collection time."""
    return record.collection_s


def collection_bars(record: Record) -> tuple[float, float]:
    """Reach from the shortest to the longest run."""
    return (
        record.collection_s - record.collection_min_s,
        record.collection_max_s - record.collection_s,
    )


def throughput_bars(record: Record) -> tuple[float, float]:
    """Reach from the throughput of the longest run to that of the shortest."""
    assert record.mb_per_s is not None
    # The quotient first: of equal times it is exactly one, and a bar has no negative length.
    slowest = record.mb_per_s * (record.collection_s / record.collection_max_s)
    fastest = record.mb_per_s * (record.collection_s / record.collection_min_s)
    return record.mb_per_s - slowest, fastest - record.mb_per_s


def median_of(scale: float) -> Get:
    """Take the median latency, in another unit."""
    return lambda record: None if record.p50_us is None else record.p50_us * scale


def up_to_p95(scale: float) -> Bars:
    """Reach from the median latency to the 95th percentile, in another unit."""
    return lambda record: (0.0, ((record.p95_us or 0.0) - (record.p50_us or 0.0)) * scale)


# -- axes ----------------------------------------------------------------------------------------------


def panels_of(number: int) -> tuple[Figure, list[Axes]]:
    """Make a figure of panels one below the other, with one x axis."""
    # A figure of its own, not pyplot's: pyplot keeps global state and may look for a display.
    figure = Figure(figsize=(WIDTH, 2.4 if number == 1 else 0.4 + PANEL * number))
    panels = figure.subplots(number, 1, sharex=True, squeeze=False)
    return figure, list(panels[:, 0])


def size_axis(axes: Axes, records: Sequence[Record], label: str = "Size of a message") -> None:
    """Make the x axis one of sizes."""
    powers_axis(axes, sorted({record.msg_kb for record in records}), lambda kb: size(kb * KB))
    axes.set_xlabel(label)


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


def legend(figure: Figure, records: Sequence[Record], marks: Sequence[Line2D] = ()) -> None:
    """Put engines, what varies beside them and further marks above the panels, where no curve runs."""
    engines = [
        Line2D([], [], color=color, marker=marker, label=backend)
        for backend, (color, marker) in engine_styles([record.backend for record in records]).items()
    ]
    dashes = _dashes(records)
    others = [Line2D([], [], color=GREY, linestyle=dash, label=key) for key, dash in dashes.items() if key]
    if len(others) == 1:
        others = []
    if any(record.raw_msgs_per_s is not None for record in records):
        others.append(Line2D([], [], color=GREY, linestyle=RAW, linewidth=0.9, label="raw loop"))
    others += marks
    rows = [[*engines, *others]] if len(engines) + len(others) <= IN_A_ROW else [engines, others]
    rows = [row[first : first + IN_A_ROW] for row in rows for first in range(0, len(row), IN_A_ROW)]
    columns = max(map(len, rows))
    # Legends are filled column by column; what a row lacks is an empty place.
    handles = [
        row[column] if column < len(row) else Line2D([], [], linestyle="", label=" ")
        for column in range(columns)
        for row in rows
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=1.8)


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

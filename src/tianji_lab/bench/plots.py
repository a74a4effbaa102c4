"""Draws the figures of `tianji bench`; an engine has one colour and one marker in all of them.

Error bars reach from the shortest to the longest of the repeated runs; bars of latencies reach from the
median to the 95th percentile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tianji_cli.quantities import several, size
from tianji_cli.telemetry.figures import (
    AMBER,
    BLACK,
    BLUE,
    GREEN,
    GREY,
    HEIGHT,
    LINES,
    ORANGE,
    PURPLE,
    SKY,
    logarithmic,
    panels_of,
    powers_axis,
    write_figure,
)
from tianji_lab.bench.record import KB, MB, Record
from tianji_lab.ranges import Range, draw_ranges

ENGINES: Final = {"shm": (BLUE, "o"), "zmq": (ORANGE, "s"), "mpi": (GREEN, "^"), "ucx": (PURPLE, "D")}
OTHERS: Final = ((AMBER, "v"), (SKY, "P"), (BLACK, "X"))
"""Colours and markers of engines that are not built in, and of pairs such as ``shm+zmq``."""
RAW: Final = (0, (1, 1.5))
PANEL: Final = 1.75
"""Height of each of several panels, in inches."""
IN_A_ROW: Final = 5
"""Maximum entries in a row of a legend."""

Get = Callable[[Record], Range | None]
"""A point of a figure, with the ends of its error bars."""


def draw(name: str, records: Sequence[Record], path: Path, *, link_mb_per_s: float | None = None) -> None:
    """Draw records into a PNG file.

    Args:
        name: of the figure: ``5a`` to ``5d``, or an experiment.

    Raises:
        OSError: the file cannot be written.
    """
    write_figure(lambda figure: _DRAWINGS[name](figure, records, link_mb_per_s), HEIGHT, path)


# -- figures -------------------------------------------------------------------------------------------


def _draw_sizes(figure: Figure, records: Sequence[Record], link: float | None) -> None:
    """Draw 5a: collection time and throughput against the size of a message."""
    above, below = _panels(figure, 2)
    plot_sizes(above, records, _collection)
    logarithmic(above, "Collection time (s)")
    plot_throughput(below, records, link)
    _size_axis(below, records)
    _legend(figure, records)


def _draw_bandwidth(figure: Figure, records: Sequence[Record], link: float | None) -> None:
    """Draw 5d and ``bandwidth``: throughput against the size of a message."""
    (axes,) = _panels(figure, 1)
    plot_throughput(axes, records, link)
    _size_axis(axes, records)
    _legend(figure, records)


def _draw_latency(
    figure: Figure,
    records: Sequence[Record],
    _link: float | None,
    *,
    scale: float,
    y_label: str,
    x_label: str,
) -> None:
    """Draw the median latency, ``scale`` times its microseconds, against the size of a message."""
    (axes,) = _panels(figure, 1)

    def to_p95(record: Record) -> Range | None:
        if record.p50_us is None or record.p95_us is None:
            return None
        return Range(record.p50_us, record.p50_us, record.p95_us).scaled(scale)

    plot_sizes(axes, records, to_p95)
    logarithmic(axes, y_label)
    axes.set_title("median, bars to 95th percentile", fontsize=7, loc="right", pad=3)
    _size_axis(axes, records, x_label)
    _legend(figure, records)


def _draw_actors(figure: Figure, records: Sequence[Record], _link: float | None) -> None:
    """Draw 5b and 5c: collection time against actors, a panel for each sample time, beside Equation 1."""
    settings = sorted({(record.sample_time_s, record.msg_kb) for record in records})
    panels = _panels(figure, len(settings))
    for axes, setting in zip(panels, settings, strict=True):
        here = [record for record in records if (record.sample_time_s, record.msg_kb) == setting]
        for line in lines_of(here):
            plot_line(axes, line, lambda record: record.actors, _collection)
        plot_predictions(axes, here)
        logarithmic(axes, "Collection time (s)")
        if here[0].sample_time_s == 0:  # The curves do not fall, so no corner is empty for the text.
            low, high = axes.get_ylim()
            axes.set_ylim(low / 6, high * 6)
        _title_of(axes, here)
    counts = sorted({record.actors for record in records})
    powers_axis(panels[-1], counts, str)
    panels[-1].set_xlabel("Actors")
    marks = []
    if any(record.predicted_s is not None for record in records):
        marks.append(Line2D([], [], color=GREY, linestyle="--", linewidth=0.9, label="Equation 1"))
        if any(record.crossing_actors is not None for record in records):
            marks.append(_crossing_mark(GREY))
            marks[-1].set_label("the buffer limits")
    _legend(figure, records, marks)


def _title_of(axes: Axes, records: Sequence[Record]) -> None:
    first, hosts = records[0], max(record.hosts for record in records)
    parts = [f"Sample time {first.sample_time_s:g} s", size(first.msg_kb * KB)]
    if hosts > 1:
        parts.append(f"{hosts} hosts")
    axes.set_title(", ".join(parts), fontsize=8, loc="right", pad=3)


def _draw_comm(figure: Figure, records: Sequence[Record], link: float | None) -> None:
    """Draw any setting: against size or actors if they vary, else engine beside engine."""
    if len({record.msg_kb for record in records}) > 1:
        _draw_sizes(figure, records, link)
    elif len({record.actors for record in records}) > 1:
        _draw_actors(figure, records, link)
    else:
        _draw_engines(figure, records)


def _draw_engines(figure: Figure, records: Sequence[Record]) -> None:
    """Draw one bar for each engine, and for each sample time."""
    (axes,) = _panels(figure, 1)
    styles = engine_styles([record.backend for record in records])
    with_times = len({record.sample_time_s for record in records}) > 1
    ordered = sorted(records, key=lambda record: (list(styles).index(record.backend), record.sample_time_s))
    for place, record in enumerate(ordered):
        axes.bar(place, record.collection_s, 0.6, color=styles[record.backend][0], linewidth=0)
        bars: dict[str, Any] = {"capsize": 2, "elinewidth": 0.8, "capthick": 0.8}
        draw_ranges(axes, [place], [record.collection], color=BLACK, **bars)
        label = "" if record.mb_per_s is None else f"{record.mb_per_s:,.0f} MB/s".replace(",", "\u2009")
        axes.annotate(
            label,
            (place, record.collection_max_s),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6,
        )
    labels = [
        f"{record.backend}\n{record.sample_time_s:g} s" if with_times else record.backend
        for record in ordered
    ]
    axes.set_xticks(range(len(ordered)), labels)
    axes.set_xlim(-0.6, len(ordered) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.set_ylabel("Collection time (s)")
    axes.margins(y=0.12)
    first = records[0]
    title = f"{first.messages} messages of {size(first.msg_kb * KB)}, {several(first.actors, 'actor')}"
    axes.set_title(title, fontsize=8, loc="left")


_DRAWINGS: Final[dict[str, Callable[[Figure, Sequence[Record], float | None], None]]] = {
    "5a": _draw_sizes,
    "5b": _draw_actors,
    "5c": _draw_actors,
    "5d": _draw_bandwidth,
    "comm": _draw_comm,
    "latency": partial(
        _draw_latency, scale=1.0, y_label="Half a round trip (µs)", x_label="Size of a message"
    ),
    "bandwidth": _draw_bandwidth,
    "weights": partial(
        _draw_latency, scale=1e-3, y_label="Time until all have it (ms)", x_label="Size of the parameters"
    ),
}


# -- lines ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """Records of one engine that a line connects, in the order of the axis.

    The colour and the marker show the engine; the dashes show other settings that vary.
    """

    records: Sequence[Record]
    color: str
    marker: str
    dashes: Any


def engine_styles(backends: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Choose every engine's colour and marker, independent of any measurement."""
    others = sorted(set(backends) - ENGINES.keys())
    styles = {name: OTHERS[place % len(OTHERS)] for place, name in enumerate(others)}
    known = [name for name in ENGINES if name in backends]
    return {name: ENGINES[name] for name in known} | styles


def lines_of(records: Sequence[Record]) -> list[Line]:
    """Make one line for each engine, or several where actors or sample times vary beside the axis.

    The axis of a panel is the message size if that varies, otherwise the number of actors.
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
    """Choose the dashes of each setting that varies beside the size, by its name in the legend."""
    if len({record.msg_kb for record in records}) == 1:
        return {"": LINES[0]}
    ordered = sorted(records, key=lambda record: (record.actors, record.sample_time_s))
    keys = list(dict.fromkeys(_beside_size(record) for record in ordered))
    return {key: LINES[place % len(LINES)] for place, key in enumerate(keys)}


def _beside_size(record: Record) -> str:
    return several(record.actors, "actor") + (f", {record.sample_time_s:g} s" if record.sample_time_s else "")


def plot_line(axes: Axes, line: Line, x: Callable[[Record], float], y: Get) -> None:
    """Draw a line's points with their bars, and connect them; leaves out points without a value."""
    points = [(x(record), point) for record in line.records if (point := y(record)) is not None]
    if points:
        xs, ys = zip(*points, strict=True)
        style: dict[str, Any] = {"color": line.color, "marker": line.marker, "linestyle": line.dashes}
        draw_ranges(axes, xs, ys, **style)


def plot_sizes(axes: Axes, records: Sequence[Record], y: Get) -> None:
    """Plot a figure of the records against the size of a message."""
    for line in lines_of(records):
        plot_line(axes, line, lambda record: record.msg_kb, y)


def plot_throughput(axes: Axes, records: Sequence[Record], link: float | None) -> None:
    """Plot throughput against the size of a message, with raw loops and the link's speed beside it."""
    plot_sizes(axes, records, throughput)
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
            named.append((f"{first.backend}: {several(crossing, 'actor')}", line.color))
            if min(points) <= crossing <= max(points):
                # From the crossing on the collection time is N_s T_rv, however many actors there are.
                points[crossing] = points[max(points)]
                mark = _crossing_mark(line.color)
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


def _crossing_mark(color: str) -> Line2D:
    """Make the mark of the point at which the critical path moves from the actors to the buffer."""
    style: dict[str, Any] = {"marker": "*", "linestyle": "", "markersize": 8, "markerfacecolor": "white"}
    return Line2D([], [], color=color, zorder=4, **style)


def _collection(record: Record) -> Range:
    return record.collection


def throughput(record: Record) -> Range | None:
    """Throughput, from that of the longest run to that of the shortest; None without one."""
    if record.mb_per_s is None:
        return None
    ends = (record.collection_max_s, record.collection_min_s)
    return Range(record.mb_per_s, *(record.mb_per_s * (record.collection_s / end) for end in ends))


# -- axes ----------------------------------------------------------------------------------------------


def _panels(figure: Figure, number: int) -> list[Axes]:
    if number > 1:
        figure.set_figheight(0.4 + PANEL * number)
    return panels_of(figure, number)


def _size_axis(axes: Axes, records: Sequence[Record], label: str = "Size of a message") -> None:
    """Make the x axis an axis of message sizes."""
    powers_axis(axes, sorted({record.msg_kb for record in records}), lambda kb: size(kb * KB))
    axes.set_xlabel(label)


def _legend(figure: Figure, records: Sequence[Record], marks: Sequence[Line2D] = ()) -> None:
    """Draw a legend of engines, varying settings and further marks above the panels, where no curve runs."""
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
    # Legends are filled column by column; empty handles fill up short rows.
    handles = [
        row[column] if column < len(row) else Line2D([], [], linestyle="", label=" ")
        for column in range(columns)
        for row in rows
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=1.8)

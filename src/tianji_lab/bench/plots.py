"""Figures of a measurement as PNG, one column of a two-column page wide.

Error bars reach from the shortest to the longest of the repeated runs; those of latencies reach from the
median to the 95th percentile.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import size
from tianji_cli.telemetry.plots import GREY, STYLE
from tianji_lab.bench.record import KB, Record
from tianji_lab.curves import (
    BLACK,
    collection_bars,
    collection_s,
    crossing_mark,
    engine_styles,
    legend,
    lines_of,
    logarithmic,
    median_of,
    panels_of,
    plot_line,
    plot_predictions,
    plot_sizes,
    plot_throughput,
    powers_axis,
    size_axis,
    up_to_p95,
)

PERCENTILES: Final = "median, bars to 95th percentile"


def draw(
    name: str,
    records: Sequence[Record],
    path: Path,
    *,
    link_mb_per_s: float | None = None,
) -> None:
    """Draw records into a PNG file.

    Args:
        name: of the figure: ``5a`` to ``5d``, or an experiment.
        records: what was measured.
        path: of the file.
        link_mb_per_s: what the link between two hosts carries, in MB of 1e6 bytes a second.

    Raises:
        OSError: the file cannot be written.
    """
    png = io.BytesIO()
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = _DRAWINGS[name](records, link_mb_per_s)
        figure.savefig(png, format="png")
    write_whole(path, png.getvalue())


# -- figures -------------------------------------------------------------------------------------------


def _draw_sizes(records: Sequence[Record], link: float | None) -> Figure:
    """5a: collection time and throughput against the size of a message."""
    figure, (above, below) = panels_of(2)
    plot_sizes(above, records, collection_s, collection_bars)
    logarithmic(above, "Collection time (s)")
    plot_throughput(below, records, link)
    size_axis(below, records)
    legend(figure, records)
    return figure


def _draw_bandwidth(records: Sequence[Record], link: float | None) -> Figure:
    """5d and ``bandwidth``: throughput against the size of a message."""
    figure, (axes,) = panels_of(1)
    plot_throughput(axes, records, link)
    size_axis(axes, records)
    legend(figure, records)
    return figure


def _draw_latency(records: Sequence[Record], link: float | None) -> Figure:
    """Half a round trip against the size of a message."""
    del link
    figure, (axes,) = panels_of(1)
    plot_sizes(axes, records, median_of(1.0), up_to_p95(1.0))
    logarithmic(axes, "Half a round trip (µs)")
    axes.set_title(PERCENTILES, fontsize=7, loc="right", pad=3)
    size_axis(axes, records)
    legend(figure, records)
    return figure


def _draw_weights(records: Sequence[Record], link: float | None) -> Figure:
    """Time until the slowest reader has the parameters, a line for each number of them."""
    del link
    figure, (axes,) = panels_of(1)
    plot_sizes(axes, records, median_of(1e-3), up_to_p95(1e-3))
    logarithmic(axes, "Time until all have it (ms)")
    axes.set_title(PERCENTILES, fontsize=7, loc="right", pad=3)
    size_axis(axes, records, "Size of the parameters")
    legend(figure, records)
    return figure


def _draw_actors(records: Sequence[Record], link: float | None) -> Figure:
    """5b and 5c: collection time against actors, a panel for each sample time, beside Equation 1."""
    del link
    settings = sorted({(record.sample_time_s, record.msg_kb) for record in records})
    figure, panels = panels_of(len(settings))
    for axes, setting in zip(panels, settings, strict=True):
        here = [record for record in records if (record.sample_time_s, record.msg_kb) == setting]
        for line in lines_of(here):
            plot_line(axes, line, lambda record: record.actors, collection_s, collection_bars)
        plot_predictions(axes, here)
        logarithmic(axes, "Collection time (s)")
        if here[0].sample_time_s == 0:  # curves do not fall: there is no empty corner for what is written
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
            marks.append(crossing_mark(GREY))
            marks[-1].set_label("the buffer limits")
    legend(figure, records, marks)
    return figure


def _title_of(axes: Axes, records: Sequence[Record]) -> None:
    first, hosts = records[0], max(record.hosts for record in records)
    said = [f"Sample time {first.sample_time_s:g} s", size(first.msg_kb * KB)]
    if hosts > 1:
        said.append(f"{hosts} hosts")
    axes.set_title(", ".join(said), fontsize=8, loc="right", pad=3)


def _draw_comm(records: Sequence[Record], link: float | None) -> Figure:
    """Any setting: against what varies, or engine beside engine if nothing does."""
    if len({record.msg_kb for record in records}) > 1:
        return _draw_sizes(records, link)
    if len({record.actors for record in records}) > 1:
        return _draw_actors(records, link)
    return _draw_engines(records)


def _draw_engines(records: Sequence[Record]) -> Figure:
    """One bar for each engine, and for each sample time."""
    figure, (axes,) = panels_of(1)
    styles = engine_styles([record.backend for record in records])
    several = len({record.sample_time_s for record in records}) > 1
    ordered = sorted(records, key=lambda record: (list(styles).index(record.backend), record.sample_time_s))
    for place, record in enumerate(ordered):
        low, high = collection_bars(record)
        axes.bar(place, record.collection_s, 0.6, color=styles[record.backend][0], linewidth=0)
        axes.errorbar(
            place, record.collection_s, [[low], [high]], color=BLACK, capsize=2, elinewidth=0.8, capthick=0.8
        )
        said = "" if record.mb_per_s is None else f"{record.mb_per_s:,.0f} MB/s".replace(",", "\u2009")
        top = record.collection_s + high
        axes.annotate(
            said,
            (place, top),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=6,
        )
    labels = [
        f"{record.backend}\n{record.sample_time_s:g} s" if several else record.backend for record in ordered
    ]
    axes.set_xticks(range(len(ordered)), labels)
    axes.set_xlim(-0.6, len(ordered) - 0.4)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    axes.set_ylabel("Collection time (s)")
    axes.margins(y=0.12)
    first = records[0]
    actors = f"{first.actors} actor{'s' if first.actors > 1 else ''}"
    axes.set_title(
        f"{first.messages} messages of {size(first.msg_kb * KB)}, {actors}", fontsize=8, loc="left"
    )
    return figure


_DRAWINGS: Final = {
    "5a": _draw_sizes,
    "5b": _draw_actors,
    "5c": _draw_actors,
    "5d": _draw_bandwidth,
    "comm": _draw_comm,
    "latency": _draw_latency,
    "bandwidth": _draw_bandwidth,
    "weights": _draw_weights,
}

"""Figures are drawn from records, in the engines' own colours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lab.bench.made_up import record, sweep
from matplotlib.figure import Figure
from PIL import Image

from tianji_lab.bench.plots import (
    ENGINES,
    draw,
    engine_styles,
    plot_predictions,
    plot_throughput,
    throughput,
)
from tianji_lab.bench.record import Record
from tianji_lab.ranges import Range, draw_ranges

SHM, ZMQ = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def over_actors(hosts: int = 1, times: tuple[float, ...] = (0.001, 0.01)) -> list[Record]:
    return [
        record(
            backend=backend,
            actors=actors,
            hosts=hosts,
            sample_time_s=time,
            predicted_s=10_000 * max(time / actors, receive),
            collection_s=10_500 * max(time / actors, receive),
            collection_min_s=10_000 * max(time / actors, receive),
            collection_max_s=11_000 * max(time / actors, receive),
        )
        for time in times
        for actors in (1, 2, 4, 8, 16, 32)
        for backend, receive in (("shm", 1e-4), ("zmq", 3e-4))
    ]


@pytest.mark.parametrize(
    ("name", "records"),
    [
        ("5a", sweep("comm")),
        ("5b", over_actors()),
        ("5c", over_actors(hosts=2)),
        ("5d", sweep("comm", hosts=2)),
        ("comm", [record(), record(backend="zmq", collection_s=1.02)]),
        ("comm", sweep("comm", actors=4)),
        ("comm", over_actors(times=(0.0,))),
        ("latency", sweep("latency")),
        ("bandwidth", sweep("bandwidth", raw_msgs_per_s=10.0)),
        ("weights", sweep("weights") + sweep("weights", actors=4)),
    ],
)
def test_every_figure_shows_every_engine_in_its_colour_whatever_is_missing(
    name: str, records: list[Record], tmp_path: Path
) -> None:
    draw(name, records, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 20)}
    assert {SHM, ZMQ} <= colours
    # One record alone, and one without any figure beside others.
    draw(name, [record()], tmp_path / "one.png")
    draw(name, [records[0], record(p50_us=None, mb_per_s=None, predicted_s=None)], tmp_path / "gap.png")


def test_equation_1_is_drawn_with_its_kink_marked_and_named_if_it_was_measured_so_far() -> None:
    axes = Figure().add_subplot()
    rows = over_actors(times=(0.001,))
    plot_predictions(axes, [replace(row, crossing_actors=10) for row in rows if row.backend == "shm"])
    (mark,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([10], [1.0])
    (dashed,) = [line for line in axes.lines if line is not mark]
    assert list(dashed.get_xdata()) == [1, 2, 4, 8, 10, 16, 32]
    assert list(dashed.get_ydata()) == [10.0, 5.0, 2.5, 1.25, 1.0, 1.0, 1.0]
    assert "shm: 10 actors" in [text.get_text() for text in axes.texts]
    axes = Figure().add_subplot()
    plot_predictions(axes, [replace(row, crossing_actors=100) for row in over_actors(times=(0.01,))])
    assert not [line for line in axes.lines if line.get_marker() == "*"]
    assert "shm: 100 actors" in [text.get_text() for text in axes.texts]


def test_raw_loops_and_the_links_own_limit_are_drawn_beside_throughput() -> None:
    axes = Figure().add_subplot()
    plot_throughput(axes, sweep("comm", ("shm",), raw_msgs_per_s=1e6), 12_500.0)
    drawn = [list(line.get_ydata()) for line in axes.lines]
    assert drawn.count([12_500.0, 12_500.0]) == 1
    assert [1024.0 * 2**power for power in range(8)] in drawn, "1e6 messages/s of 1 KB are 1024 MB/s"
    assert [text.get_text() for text in axes.texts] == ["link: 12500 MB/s"]


def test_error_bars_reach_to_the_fastest_and_the_slowest_run() -> None:
    measured = record(collection_s=2.0, collection_min_s=1.0, collection_max_s=4.0, mb_per_s=100.0)
    assert measured.collection == Range(2.0, 1.0, 4.0)
    assert throughput(measured) == Range(100.0, 50.0, 200.0)
    axes = Figure().add_subplot()
    draw_ranges(axes, [7.0], [measured.collection])
    (bar,) = axes.collections
    assert bar.get_paths()[0].vertices.tolist() == [[7.0, 1.0], [7.0, 4.0]]


def test_an_engine_has_its_colour_beside_any_others() -> None:
    alone, together = engine_styles(["ucx"]), engine_styles(["zzz", "ucx", "zmq", "shm", "shm+zmq"])
    assert alone["ucx"] == together["ucx"] == ENGINES["ucx"]
    assert list(together) == ["shm", "zmq", "ucx", "shm+zmq", "zzz"]
    assert len(set(together.values())) == 5

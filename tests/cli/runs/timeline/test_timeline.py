"""Timelines of spans that lie in one another: divided into pieces, shared out, written and read again."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tianji_cli.errors import TianjiError
from tianji_cli.files.traces import SPAN, WHAT, Spans, TracedProcess, TracePlace, TraceResult
from tianji_cli.runs.timeline.chrome import read_chrome, write_chrome
from tianji_cli.runs.timeline.figure import draw_timelines
from tianji_cli.runs.timeline.timeline import (
    Lane,
    Timeline,
    cut,
    is_outermost,
    pieces_of,
    read_timeline,
    shares_in,
)

ACTOR = TracedProcess(rank=2, title="actor 0", roles=("actor 0",), host="here", cores=(1,))


def made_of(*rows: tuple[float, float, str]) -> Spans:
    return np.array([(began_s, ended_s, 0, WHAT.index(what)) for began_s, ended_s, what in rows], SPAN)


TURNS = made_of(
    (0.0, 4.0, "turn"), (1.0, 2.0, "act"), (2.0, 3.5, "step"), (4.0, 5.0, "push"), (7.0, 9.0, "sleep")
)


def within(began: int, ended: int, depth: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Intervals inside another one, apart from each other, some with intervals inside."""

    @st.composite
    def build(draw: st.DrawFn) -> list[tuple[int, int]]:
        ends = draw(st.lists(st.integers(began, ended), max_size=6, unique=True).map(sorted))
        found = []
        for inner_began, inner_ended in zip(ends[::2], ends[1::2], strict=False):
            found.append((inner_began, inner_ended))
            if depth:
                found += draw(within(inner_began, inner_ended, depth - 1))
        return found

    return build()


@st.composite
def nested(draw: st.DrawFn) -> Spans:
    intervals = draw(within(0, 1000, 2))
    whats = [draw(st.integers(0, len(WHAT) - 1)) for _ in intervals]
    rows = [
        (float(began), float(ended), 0, what) for (began, ended), what in zip(intervals, whats, strict=True)
    ]
    spans = np.array(rows, SPAN)
    return spans[np.lexsort((-spans["ended_s"], spans["began_s"]))]


@given(nested())
def test_pieces_lie_apart_and_cover_what_the_outermost_spans_cover(spans: Spans) -> None:
    pieces = pieces_of(spans)
    assert (pieces["ended_s"] > pieces["began_s"]).all()
    assert (pieces["began_s"][1:] >= pieces["ended_s"][:-1]).all()
    outer = spans[is_outermost(spans)]
    covered = float((outer["ended_s"] - outer["began_s"]).sum())
    assert float((pieces["ended_s"] - pieces["began_s"]).sum()) == covered
    shares = shares_in(pieces, np.linspace(0.0, 1000.0, 8))
    assert (shares >= -1e-9).all()
    assert (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert shares.sum() * 1000 / 7 == pytest.approx(covered)


def test_a_piece_is_of_the_innermost_span() -> None:
    found = [(began_s, ended_s, WHAT[what]) for began_s, ended_s, _, what in pieces_of(TURNS).tolist()]
    assert found == [
        (0.0, 1.0, "turn"),
        (1.0, 2.0, "act"),
        (2.0, 3.5, "step"),
        (3.5, 4.0, "turn"),
        (4.0, 5.0, "push"),
        (7.0, 9.0, "sleep"),
    ]
    between = cut(TURNS, 1.5, 2.5)
    assert [(began_s, ended_s) for began_s, ended_s, *_ in between.tolist()] == [
        (1.5, 2.5),
        (1.5, 2.0),
        (2.0, 2.5),
    ]


def test_a_role_is_busy_in_outermost_spans_that_are_no_sleep() -> None:
    assert Lane("actor 0", ACTOR, TURNS, 10.0).busy == pytest.approx(0.5)
    assert Lane("actor 0", ACTOR, TURNS[:0], 10.0).busy == 0.0


def test_what_is_written_for_perfetto_is_read_again(tmp_path: Path) -> None:
    gone = ACTOR.model_copy(update={"rank": 3, "title": "actor 1", "missing": "was killed by SIGKILL"})
    lane = Lane("actor 0", ACTOR, TURNS, 10.0)
    timeline = Timeline("run/1", 10.0, (ACTOR.model_copy(update={"dropped": 7}), gone), [lane])
    write_chrome(timeline, tmp_path / "trace.json")
    again = read_chrome(tmp_path / "trace.json")
    assert (again.name, again.seconds, again.processes) == ("run/1", 10.0, timeline.processes)
    assert [role.role for role in again.lanes] == ["actor 0"]
    assert again.lanes[0].spans.tolist() == TURNS.tolist()
    assert list(again.notes()) == [
        "actor 0 did more than fits: its 7 oldest spans of 12 are left out",
        "nothing is known of actor 1: was killed by SIGKILL",
    ]
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    with pytest.raises(TianjiError, match=r"trace\.json is no trace that tianji has written"):
        read_chrome(tmp_path / "trace.json")


def test_names_are_drawn_as_they_are_and_no_formulas() -> None:
    actor = ACTOR.model_copy(update={"roles": ("$x^{$",)})
    lane = Lane("$x^{$", actor, TURNS, 10.0)
    figure = Figure()
    draw_timelines(figure, {"out$^{$/run/1": Timeline("run/1", 10.0, (actor,), [lane])})
    picture = io.BytesIO()
    figure.savefig(picture, format="svg")
    assert b"out$^{$/run/1" in picture.getvalue()


def test_the_rounds_that_are_drawn_are_no_pause_in_the_middle() -> None:
    learner = ACTOR.model_copy(update={"roles": ("learner",)})
    begins_s = [0.5 * i + (200.0 if i >= 10 else 0.0) for i in range(20)]
    rows = [span for s in begins_s for span in ((s, s + 0.3, "update"), (s + 0.4, s + 0.45, "publish"))]
    figure = Figure()
    draw_timelines(
        figure,
        {"run/1": Timeline("run/1", 210.0, (learner,), [Lane("learner", learner, made_of(*rows), 210.0)])},
    )
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["push, adopt, publish", "update"]


@pytest.fixture
def place(tmp_path: Path) -> TracePlace:
    return TracePlace(tmp_path)


def test_spans_are_brought_to_the_root_s_clock_and_cut_to_the_window(place: TracePlace) -> None:
    place.append_spans(2, TURNS[:2].tobytes())
    place.append_spans(2, TURNS[2:].tobytes())
    process = ACTOR.model_copy(update={"offset_s": 100.0, "uncertainty_s": 0.0005})
    timeline = read_timeline("run/1", place, TraceResult(began_s=101.5, ended_s=104.5, processes=(process,)))
    (lane,) = timeline.lanes
    assert [(began_s, ended_s, WHAT[what]) for began_s, ended_s, _, what in lane.spans.tolist()] == [
        (0.0, 2.5, "turn"),
        (0.0, 0.5, "act"),
        (0.5, 2.0, "step"),
        (2.5, 3.0, "push"),
    ]
    assert list(timeline.notes()) == ["the clock of here is known to within 0.5 ms"]


@pytest.mark.parametrize("damage", [b"torn", made_of((2.0, 1.0, "act")).tobytes(), b"\xff" * SPAN.itemsize])
def test_spans_that_no_worker_has_measured_are_refused(place: TracePlace, damage: bytes) -> None:
    place.append_spans(2, damage)
    with pytest.raises(TianjiError, match="the trace of actor 0 cannot be read"):
        read_timeline("run/1", place, TraceResult(began_s=0.0, ended_s=1.0, processes=(ACTOR,)))

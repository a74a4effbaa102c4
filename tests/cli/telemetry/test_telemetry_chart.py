"""The chart of the return: its scale, where its points are, and what it keeps of a long run."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.telemetry import chart
from tianji_cli.telemetry.chart import (
    ASCII,
    MOST_POINTS,
    UNICODE,
    LearningCurve,
    Scale,
    draw,
    place_of,
    read_learning_curve,
    trace,
)

returns = st.floats(-1e12, 1e12) | st.sampled_from([0.0, -1.0, 1e-9, 1e99, -1e99])
anything = st.none() | st.floats() | returns


def curve_of(
    points: list[tuple[int, float | None]], evaluations: list[tuple[int, float | None]]
) -> LearningCurve:
    curve = LearningCurve()
    for env_steps, value in points:
        curve.add(env_steps, value)
    for env_steps, value in evaluations:
        curve.add_evaluation(env_steps, value)
    return curve


def lines_of(curve: LearningCurve, columns: int = 80, lines: int = 8, **options: Any) -> list[str]:
    return [line.plain for line in draw(curve, columns, lines, labels=10, **options)]


def number(label: str) -> float:
    digits, _, unit = label.partition(" ")
    return float(digits) * {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}[unit]


@given(values=st.lists(returns, min_size=1, max_size=20), most=st.integers(1, 6))
def test_ticks_enclose_all_values_and_their_labels_ascend(values: list[float], most: int) -> None:
    scale = Scale.around(values, most)
    slack = 1e-6 * scale.step
    assert scale.ticks[0] - slack <= min(values) <= max(values) <= scale.ticks[-1] + slack
    assert 2 <= len(scale.ticks) <= most + 3
    written = [number(label) for label in scale.labels]
    assert all(low < high for low, high in pairwise(written)), scale.labels
    assert written == pytest.approx(scale.ticks, rel=1e-6, abs=1e-3 * scale.step)


@given(
    points=st.lists(st.tuples(st.integers(0, 10**9), returns), min_size=1, max_size=20),
    rows=st.integers(3, 20),
    columns=st.integers(1, 200),
)
def test_every_point_is_in_its_row_and_column(
    points: list[tuple[float, float]], rows: int, columns: int
) -> None:
    points = sorted(points)
    scale = Scale.around([value for _, value in points], min(4, rows - 2))
    last = points[-1][0]
    for marks in (UNICODE, ASCII):
        canvas = trace(points, scale, last, columns, rows, marks)
        assert all(0 <= x < columns and 0 <= y < rows for x, y in canvas)
        assert {place_of(point, scale, last, columns, rows) for point in points} <= canvas.keys()
    span = scale.ticks[-1] - scale.ticks[0]
    for steps, value in points:
        _, row = place_of((steps, value), scale, last, columns, rows)
        upper = scale.ticks[-1] - row * span / rows
        assert upper - span / rows - 1e-6 * span <= value <= upper + 1e-6 * span


@given(
    points=st.lists(st.tuples(st.integers(0, 10**9), anything), max_size=20),
    evaluations=st.lists(st.tuples(st.integers(0, 10**9), anything), max_size=20),
    columns=st.integers(14, 130),
    lines=st.integers(4, 15),
    goal=st.none() | st.floats(),
)
def test_whatever_is_told_the_chart_has_its_size_and_no_number_that_is_none(
    points: Any, evaluations: Any, columns: int, lines: int, goal: float | None
) -> None:
    curve = curve_of(sorted(points, key=lambda one: one[0]), sorted(evaluations, key=lambda one: one[0]))
    if curve.is_empty:
        known = [value for _, value in (*points, *evaluations) if value is not None]
        assert not any(abs(value) <= chart.LARGEST for value in known)
        return
    for marks in (UNICODE, ASCII):
        drawn = lines_of(curve, columns, lines, marks=marks, goal=goal)
        assert lines - 4 <= len(drawn) <= lines
        rows = [row for row, line in enumerate(drawn[:-1]) if f" {marks.tick}" in line]
        assert len({later - row for row, later in pairwise(rows)}) == 1, "ticks lie evenly"
        assert (rows[0], rows[-1]) == (0, len(drawn) - 2)
        text = "\n".join(drawn)
        assert "nan" not in text
        assert "inf" not in text
        if columns >= 40:
            assert max(map(len, drawn)) == columns
        assert marks is UNICODE or text.isascii()


@pytest.mark.parametrize("points", [[(1000, 5.0)], [(0, 5.0), (1000, 5.0)]])
def test_a_single_point_and_a_constant_are_in_the_middle(points: list[tuple[int, float | None]]) -> None:
    drawn = lines_of(curve_of(points, []), 40, 6, marks=ASCII)
    assert [line[:12] for line in drawn[:-1]] == [
        "       5.5 +",
        "           |",
        "       5.0 +",
        "           |",
        "       4.5 +",
    ]
    assert [line.count("*") for line in drawn] == [0, 0, 28 if len(points) > 1 else 1, 0, 0, 0]
    assert drawn[-1] == "            0           1.00 K env steps"


def test_an_evaluation_has_a_mark_of_its_own_and_the_goal_one_once_it_is_near() -> None:
    curve = curve_of([(0, 0.0), (500, 40.0), (1000, 60.0)], [(500, 80.0)])
    drawn = lines_of(curve, 60, 9, marks=ASCII, goal=110.0)
    assert sum(line.count("o") for line in drawn[:-1]) == 1
    assert any("-----" in line for line in drawn[:-1])
    assert drawn[-1].endswith("1.00 K env steps")
    assert "o evaluation" in drawn[-1]
    far = lines_of(curve, 60, 9, marks=ASCII, goal=500.0)
    assert not any("--" in line for line in far)
    assert "stops at 110" in lines_of(curve, 80, 9, marks=ASCII, goal=110.0)[-1]


def test_a_long_run_keeps_so_many_points_evenly() -> None:
    curve = LearningCurve()
    for second in range(40 * MOST_POINTS):
        curve.add(100 * second, float(second))
        curve.add_evaluation(100 * second, float(second))
        assert len(curve.returns.points) <= MOST_POINTS
    points = curve.returns.points
    assert len(points) >= MOST_POINTS / 3
    assert points[-1] == (100 * (40 * MOST_POINTS - 1), 40.0 * MOST_POINTS - 1)
    apart = [then[0] - first[0] for first, then in pairwise(points[:-1])]
    assert max(apart) <= 2 * min(apart)
    assert len(curve.evaluations.points) <= MOST_POINTS


def test_what_lies_beyond_a_checkpoint_is_forgotten_and_an_evaluation_ahead_of_the_run_is_not() -> None:
    curve = curve_of([(steps, 1.0 * steps) for steps in range(0, 1000, 100)], [(300, 1.0), (950, 2.0)])
    curve.add(950, 3.0)
    assert curve.evaluations.points == [(300, 1.0), (950, 2.0)]
    curve.add(500, None)
    assert [steps for steps, _ in curve.returns.points] == [0, 100, 200, 300, 400, 500]
    assert curve.evaluations.points == [(300, 1.0)]


def test_the_curve_of_a_run_is_read_back_whatever_else_is_in_its_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "metrics.jsonl"
    rows: list[dict[str, Any]] = [
        {"elapsed_s": n, "env_steps": 100 * n, "updates": n, "mean_100": float(n)} for n in range(1000)
    ]
    rows.insert(501, {"kind": "evaluation", "elapsed_s": 1, "env_steps": 49_000, "mean": 7.0})
    rows.insert(701, {"kind": "evaluation", "elapsed_s": 1, "env_steps": 69_000, "mean": None})
    lines = [json.dumps(row, separators=(",", ":")) for row in rows]
    lines.insert(100, "no row")
    path.write_text("\n".join(lines) + '\n{"elapsed_s"')
    curve = read_learning_curve(path)
    assert [point[0] for point in curve.returns.points] == [100 * n for n in range(1000)]
    assert curve.evaluations.points == [(49_000, 7.0)]
    monkeypatch.setattr(chart, "CURVE_BYTES", path.stat().st_size // 10)
    sparse = read_learning_curve(path)
    assert 80 <= len(sparse.returns.points) <= 110
    assert sparse.evaluations.points == [(49_000, 7.0)]
    assert read_learning_curve(tmp_path / "none").is_empty


def test_nothing_that_is_no_number_is_a_point() -> None:
    assert curve_of([(1, None), (2, math.nan), (3, math.inf), (4, 1e101)], [(1, -math.inf)]).is_empty

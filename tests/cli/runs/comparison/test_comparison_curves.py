"""Claims about curves on grids that several have in common."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.runs.comparison.curves import Curve, first_at, mean_height, read_curve, stretch, values_on

RISE = Curve((1.0, 2.0, 4.0), (100.0, 200.0, 400.0), (10.0, 30.0, 50.0))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    gaps = draw(st.lists(st.floats(0.01, 1e3), min_size=1, max_size=12))
    times = np.cumsum(gaps)
    returns = draw(st.lists(st.floats(-1e6, 1e6), min_size=len(gaps), max_size=len(gaps)))
    return Curve(tuple(times), tuple(7 * times), tuple(returns))


@given(curves(), st.booleans(), st.lists(st.floats(0, 2e4), min_size=1, max_size=30))
def test_nothing_is_known_before_a_curve_and_behind_it_only_where_it_is_held(
    curve: Curve, held: bool, places: list[float]
) -> None:
    grid = np.array(places)
    values = values_on(grid, curve, "train_s", held=held)
    first, last = curve.train_s[0], curve.train_s[-1]
    unknown = (grid < first) | ((grid > last) & (not held))
    assert (np.isnan(values) == unknown).all()
    known = values[~unknown]
    assert (known >= min(curve.returns) - 1e-3).all()
    assert (known <= max(curve.returns) + 1e-3).all()
    assert (values[grid > last] == curve.returns[-1]).all() or not held
    own = values_on(np.array(curve.train_s), curve, "train_s", held=held)
    assert own == pytest.approx(curve.returns)


@given(st.lists(st.tuples(curves(), st.booleans()), min_size=1, max_size=6))
def test_on_their_common_stretch_all_curves_are_known(drawn: list[tuple[Curve, bool]]) -> None:
    several, held = [curve for curve, _ in drawn], [keeps for _, keeps in drawn]
    first, last = stretch(several, "env_steps", held)
    if first < last:
        grid = np.linspace(first, last, 50)
        values = [values_on(grid, one, "env_steps", held=keeps) for one, keeps in drawn]
        assert not np.isnan(values).any()
    if not all(held):
        assert last == min(one.env_steps[-1] for one, keeps in drawn if not keeps)
    else:
        assert last == max(one.env_steps[-1] for one in several)


@given(curves())
def test_the_area_is_between_the_lowest_and_the_highest_return(curve: Curve) -> None:
    first, last = curve.train_s[0], curve.train_s[-1] + 5.0
    height = mean_height(curve, "train_s", first, last, held=True)
    assert min(curve.returns) - 1e-3 <= height <= max(curve.returns) + 1e-3


def test_the_area_of_straight_lines_is_what_can_be_counted_out() -> None:
    assert mean_height(RISE, "train_s", 1.0, 4.0, held=False) == pytest.approx((20 + 2 * 40) / 3)
    assert mean_height(RISE, "env_steps", 150.0, 250.0, held=False) == pytest.approx((25 + 32.5) / 2)
    # Held for as long again.
    assert mean_height(RISE, "train_s", 1.0, 7.0, held=True) == pytest.approx((20 + 2 * 40 + 3 * 50) / 6)


def test_a_threshold_is_reached_between_two_points() -> None:
    assert first_at(RISE, 20.0) == pytest.approx(1.5)
    assert first_at(RISE, 5.0) == 1.0
    assert first_at(RISE, 50.0) == 4.0
    assert first_at(RISE, 50.1) is None
    assert first_at(Curve((), (), ()), 1.0) is None
    assert RISE.steps_at(1.5) == pytest.approx(150)
    assert RISE.steps_at(0.5) == pytest.approx(50)


def test_rows_that_are_not_newer_are_left_out_and_the_summary_is_the_last() -> None:
    rows = [
        {"train_s": time, "env_steps": steps, "returns.mean_100": mean}
        for time, steps, mean in (
            (0.0, 0, 1.0),
            (1.0, 10, None),
            (2.0, 20, 5.0),
            (2.0, 21, 6.0),
            (9.0, 90, 7.0),
        )
    ]
    summary = {"train_s": 8.0, "env_steps": 80, "returns": {"mean_100": 6.5}}
    assert read_curve(rows, summary) == Curve((2.0, 8.0), (20, 80), (5.0, 6.5))
    assert read_curve(rows, None) == Curve((2.0, 9.0), (20, 90), (5.0, 7.0))
    assert read_curve(rows[:2], None) == Curve((), (), ())

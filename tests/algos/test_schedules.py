"""Hyperparameters after a number of env steps, by their schedules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_algos.schedules import Points, remaining

POINTS = st.dictionaries(st.integers(0, 1000), st.floats(0, 9), min_size=1, max_size=5)


@given(POINTS.map(lambda factors: tuple(sorted(factors.items()))), st.integers(0, 1100))
def test_points_are_joined_by_lines_and_hold_beyond_the_first_and_the_last(
    points: Points, env_steps: int
) -> None:
    expected = np.interp(env_steps, *zip(*points, strict=True))
    assert remaining(points, None, env_steps) == pytest.approx(expected, abs=1e-12)
    for at, factor in points:
        assert remaining(points, None, at) == pytest.approx(factor, abs=1e-12)


def test_words_need_no_points() -> None:
    assert [remaining("linear", 1000, steps) for steps in (0, 250, 2000)] == [1.0, 0.75, 0.0]
    assert remaining("constant", None, 10**9) == 1.0

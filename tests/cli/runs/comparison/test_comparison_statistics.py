"""Claims about interquartile means, bootstrap intervals, and who is better."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tianji_cli.runs.comparison import statistics
from tianji_cli.runs.comparison.statistics import (
    estimate,
    interquartile_mean,
    performance_profile,
    probability_of_improvement,
)

finite = st.floats(-1e6, 1e6)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7.0], 7.0),
        ([1.0, 2.0], 1.5),
        ([1.0, 2.0, 9.0], 4.0),
        ([1.0, 2.0, 3.0, 1000.0], 2.5),
        ([-1000.0, 1.0, 2.0, 3.0, 1000.0], 2.0),
        ([8.0, 1.0, 6.0, 2.0, 100.0, 5.0, 4.0, 3.0], 4.5),
        ([float(value) for value in range(11)], 5.0),
    ],
)
def test_the_interquartile_mean_is_a_mean_trimmed_by_a_quarter_at_each_end(
    values: list[float], expected: float
) -> None:
    # These are scipy.stats.trim_mean(values, 0.25).
    assert interquartile_mean(np.array(values)) == pytest.approx(expected)


@given(arrays(np.float64, st.tuples(st.integers(1, 12), st.just(3)), elements=finite))
def test_the_interquartile_mean_lies_within_the_values_and_knows_no_order(values: np.ndarray) -> None:
    means = interquartile_mean(values)
    assert means.shape == (3,)
    assert (means >= values.min(0) - 1e-6).all()
    assert (means <= values.max(0) + 1e-6).all()
    assert interquartile_mean(values[::-1]) == pytest.approx(means)
    assert interquartile_mean(values.T, axis=1) == pytest.approx(means)


def test_means_and_intervals_are_those_of_rliable() -> None:
    # It takes over two seconds, which each worker would spend to collect this.
    from rliable import library, metrics  # noqa: PLC0415

    values = np.random.default_rng(2).gamma(2, 100, (10, 1))
    found = estimate(values[:, 0])
    np.random.seed(2)  # rliable draws from numpy's own generator.
    means, intervals = library.get_interval_estimates(
        {"ours": values}, lambda scores: np.array([metrics.aggregate_iqm(scores)]), reps=5000
    )
    assert float(found.value) == pytest.approx(float(means["ours"][0]))
    low, high = intervals["ours"][:, 0]
    # Both draw at random: bounds of 5,000 resamples vary by a few hundredths of the interval.
    assert [float(found.low), float(found.high)] == pytest.approx([low, high], abs=0.05 * (high - low))


def test_the_probability_of_improvement_is_that_of_rliable() -> None:
    from rliable import library, metrics  # noqa: PLC0415

    rng = np.random.default_rng(5)
    # Whole numbers, so that there are ties.
    ours, theirs = np.round(rng.normal(11, 3, (8, 1))), np.round(rng.normal(10, 3, (6, 1)))
    found = probability_of_improvement(ours[:, 0], theirs[:, 0])
    np.random.seed(5)
    means, intervals = library.get_interval_estimates(
        {"ours,theirs": (ours, theirs)}, metrics.probability_of_improvement, reps=4000
    )
    assert float(found.value) == pytest.approx(float(means["ours,theirs"]))
    low, high = intervals["ours,theirs"][:, 0]
    assert [float(found.low), float(found.high)] == pytest.approx([low, high], abs=0.05 * (high - low))


def test_performance_profiles_are_those_of_rliable() -> None:
    from rliable import library  # noqa: PLC0415

    values, taus = np.random.default_rng(6).gamma(2, 100, (9, 1)), np.linspace(0, 600, 7)
    found = performance_profile(values[:, 0], taus)
    np.random.seed(6)
    shares, intervals = library.create_performance_profile({"ours": values}, taus, reps=4000)
    assert found.value == pytest.approx(shares["ours"])
    # Nine runs: bounds are ninths, and a resample more or less may make it the next one.
    assert np.abs(np.array([found.low, found.high]) - intervals["ours"]).max() <= 1 / 9 + 1e-9
    assert np.mean(np.isclose([found.low, found.high], intervals["ours"])) > 0.8


@pytest.mark.parametrize(
    ("ours", "theirs", "p"),
    [
        ([1.0], [1.0], 0.5),
        ([2.0, 3.0], [1.0], 1.0),
        ([1.0, 2.0], [2.0, 3.0], 0.125),  # Of four pairs one is a tie.
    ],
)
def test_a_tie_is_half_an_improvement(ours: list[float], theirs: list[float], p: float) -> None:
    there, back = np.array(ours), np.array(theirs)
    assert float(probability_of_improvement(there, back).value) == p
    assert float(probability_of_improvement(back, there).value) == 1 - p


@given(
    arrays(np.float64, st.integers(1, 8), elements=finite),
    arrays(np.float64, st.integers(1, 8), elements=finite),
)
def test_probabilities_lie_within_their_bounds_range_and_add_up(ours: np.ndarray, theirs: np.ndarray) -> None:
    found, back = (
        probability_of_improvement(a, b, resamples=200) for a, b in ((ours, theirs), (theirs, ours))
    )
    assert 0 <= found.low <= found.high <= 1
    assert found.value + back.value == pytest.approx(1)
    profile = performance_profile(ours, np.sort(theirs), resamples=200)
    assert (np.diff(profile.value) <= 0).all()
    assert ((profile.low >= 0) & (profile.low <= profile.high) & (profile.high <= 1)).all()


def test_what_is_infinite_leaves_a_mean_known_while_it_is_among_the_slowest_quarter() -> None:
    found = estimate(np.array([1.0, 2.0, 3.0, np.inf]))
    assert float(found.value) == 2.5
    assert np.isfinite(found.low)
    assert not np.isfinite(found.high)
    assert not np.isfinite(estimate(np.array([1.0, 2.0, np.inf, np.inf])).value)


@pytest.mark.parametrize(
    ("values", "interval"),
    [
        ([3.0] * 5, (3.0, 3.0, 3.0)),
        # Resamples of {0, 1} average 0 in a quarter of the cases, 1/2 in a half, 1 in a quarter.
        ([0.0, 1.0], (0.5, 0.0, 1.0)),
    ],
)
def test_the_interval_of_few_runs_is_what_can_be_counted_out(
    values: list[float], interval: tuple[float, ...]
) -> None:
    found = estimate(np.array(values))
    assert (float(found.value), float(found.low), float(found.high)) == interval


def test_a_run_is_drawn_as_a_whole_and_its_interval_holds_its_mean() -> None:
    values = np.random.default_rng(2).normal(size=7)
    found = estimate(np.stack([values, 2 * values, -values], axis=1))
    assert found.low[1] == pytest.approx(2 * found.low[0])
    assert found.low[2] == pytest.approx(-found.high[0])
    assert values.min() <= found.low[0] < found.value[0] < found.high[0] <= values.max()


def test_the_bootstrap_repeats_itself() -> None:
    values = np.random.default_rng(3).normal(size=6)
    first, again, other = estimate(values), estimate(values), estimate(values, seed=1)
    assert (first.low, first.high) == (again.low, again.high)
    assert (first.low, first.high) != (other.low, other.high)


def test_values_that_are_drawn_in_blocks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(7).normal(size=(9, 3))
    at_once = estimate(values, resamples=50)
    monkeypatch.setattr(statistics, "MOST_DRAWN", 100)
    for name in ("value", "low", "high"):
        assert (getattr(estimate(values, resamples=50), name) == getattr(at_once, name)).all()


def test_about_95_of_100_intervals_hold_the_true_mean() -> None:
    rng = np.random.default_rng(4)
    held = 0
    for _ in range(300):
        found = estimate(rng.normal(size=40), resamples=400)
        held += bool(found.low <= 0 <= found.high)
    assert held / 300 == pytest.approx(0.95, abs=0.035)

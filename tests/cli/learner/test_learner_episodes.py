import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.config.schema import Stop
from tianji_cli.roles.learner.learner import WINDOW, Episodes
from tianji_cli.wire.fragment import ended

returns = st.lists(st.integers(-500, 500).map(float), max_size=60)
batches = st.lists(returns, max_size=8)


@given(batches)
def test_means_are_those_of_the_last_hundred(batches: list[list[float]]) -> None:
    episodes, seen = Episodes(), list[float]()
    for batch in batches:
        episodes.record(batch, 0.0)
        seen += batch
        assert episodes.count == len(seen)
        assert episodes.in_mean == min(len(seen), WINDOW)
        assert episodes.full == (len(seen) >= WINDOW)
        assert episodes.mean == (pytest.approx(np.mean(seen[-WINDOW:])) if seen else None)


@given(batches, st.integers(-100, 100))
def test_the_best_mean_is_over_every_hundred_in_a_row(batches: list[list[float]], threshold: int) -> None:
    episodes, seen, crossed = Episodes([threshold]), list[float](), None
    for second, batch in enumerate(batches):
        best_before = episodes.best_mean
        improved = episodes.record(batch, float(second))
        seen += batch
        means = [np.mean(seen[i - WINDOW : i]) for i in range(WINDOW, len(seen) + 1)]
        assert episodes.best_mean == (pytest.approx(max(means)) if means else None)
        assert improved == (episodes.best_mean != best_before)
        if crossed is None and means and max(means) >= threshold:
            crossed = float(second)
        assert episodes.time_to == {threshold: crossed}


def test_a_long_run_does_not_drift() -> None:
    episodes, rng = Episodes(), np.random.default_rng(1)
    values = (rng.standard_normal(20_000) * 1e9).tolist()
    values += [0.1] * WINDOW
    for start in range(0, len(values), 50):
        episodes.record(values[start : start + 50], 0.0)
    assert episodes.mean == pytest.approx(0.1, rel=1e-12)


def test_a_resumed_run_keeps_its_best_and_its_thresholds() -> None:
    first = Episodes([10.0, 20.0])
    first.record([15.0] * WINDOW, 3.0)
    resumed = Episodes([10.0, 20.0, 30.0])
    resumed.load_state(json.loads(json.dumps(first.state())))
    assert (resumed.count, resumed.mean, resumed.best_mean) == (0, None, 15.0)
    assert resumed.time_to == {10.0: 3.0, 20.0: None, 30.0: None}
    assert not resumed.record([14.0] * WINDOW, 4.0)
    assert resumed.record([25.0] * WINDOW, 5.0)
    assert resumed.time_to == {10.0: 3.0, 20.0: 5.0, 30.0: None}


def test_the_best_win_rate_is_over_a_hundred_and_is_kept_by_a_resumed_run() -> None:
    first = Episodes()
    first.record([0.0] * 50, 1.0, [True] * 50)
    assert first.best_win_rate is None, "of fifty episodes"
    for won in (True, False, True):
        first.record([0.0] * 50, 2.0, [won] * 50)
    assert first.best_win_rate == 1.0
    assert first.win_rate == 0.5
    resumed = Episodes()
    resumed.load_state(json.loads(json.dumps(first.state())))
    assert resumed.best_win_rate == 1.0
    earlier = {name: value for name, value in first.state().items() if name != "best_win_rate"}
    resumed.load_state(earlier)
    assert resumed.best_win_rate is None


def test_lengths_are_those_of_the_last_hundred_episodes_of_the_own_policy() -> None:
    episodes = Episodes()
    assert episodes.mean_length is None
    episodes.record([1.0] * 50, 1.0, lengths=[10] * 50)
    assert episodes.mean_length == 10.0
    episodes.record([1.0] * 100, 2.0, lengths=[20] * 99 + [120])
    assert episodes.mean_length == 21.0
    episodes.take_over(np.ones(60))
    assert episodes.mean_length is None, "another's returns came, and no lengths"
    episodes.record([1.0], 3.0, lengths=[7])
    assert episodes.mean_length == 7.0


def test_returns_are_those_of_ended_episodes_in_the_order_they_ended() -> None:
    episode_return = np.array([[np.nan, 5], [2, np.nan], [np.nan, 7]], np.float32)
    won = np.array([[True, False], [True, False], [False, True]])
    metrics = np.arange(12.0).reshape(3, 2, 2)
    fields: dict[str, np.ndarray[Any, Any]] = {"episode_return": episode_return, "metrics": metrics}
    assert ended(fields, "episode_return") == [5.0, 2.0, 7.0]
    assert ended(fields, "won") == []
    assert ended(fields | {"won": won}, "won") == [False, True, True]
    assert ended(fields, "metrics") == [[2.0, 3.0], [4.0, 5.0], [10.0, 11.0]]


@given(st.lists(st.lists(st.booleans(), max_size=60), max_size=8))
def test_a_win_rate_is_that_of_the_last_hundred(batches: list[list[bool]]) -> None:
    episodes, seen = Episodes(), list[bool]()
    for batch in batches:
        episodes.record([0.0] * len(batch), 0.0, batch)
        seen += batch
        assert episodes.win_rate == (pytest.approx(np.mean(seen[-WINDOW:])) if seen else None)


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(-9, 9)), max_size=60), max_size=8))
def test_metrics_are_means_of_the_last_hundred(batches: list[list[tuple[bool, int]]]) -> None:
    episodes, seen = Episodes(metrics=("success", "score")), list[tuple[bool, int]]()
    for batch in batches:
        episodes.record([0.0] * len(batch), 0.0, metrics=batch)
        seen += batch
        means = np.mean(seen[-WINDOW:], axis=0).tolist() if seen else None
        found = episodes.metrics
        assert (found and [found["success"], found["score"]]) == (means and pytest.approx(means))


def test_where_nothing_is_won_or_measured_there_is_no_win_rate_and_there_are_no_metrics() -> None:
    episodes = Episodes()
    episodes.record([1.0] * 200, 0.0)
    assert (episodes.win_rate, episodes.metrics) == (None, None)


STEPS, RETURN, WINS = Stop(env_steps=1000), Stop(mean_return=475.0), Stop(win_rate=0.8)


@pytest.mark.parametrize(
    ("rule", "env_steps", "returns", "wins", "reason"),
    [
        (STEPS, 999, [], [], None),
        (STEPS, 1000, [], [], "1000 environment steps"),
        (STEPS, 1020, [1.0] * 200, [], "1000 environment steps"),
        (RETURN, 10**9, [500.0] * 99, [], None),
        (RETURN, 0, [474.9] * 100, [], None),
        (RETURN, 0, [475.0] * 100, [], "mean return of the last 100 episodes is 475"),
        (Stop(mean_return=0.93), 0, [0.9304] * 100, [], "mean return of the last 100 episodes is 0.9304"),
        (Stop(mean_return=0.0), 0, [-1.0] * 100, [], None),
        (Stop(mean_return=0.0), 0, [0.0] * 100, [], "mean return of the last 100 episodes is 0"),
        (Stop(mean_return=-100.0), 0, [-99.0] * 100, [], "mean return of the last 100 episodes is -99"),
        (WINS, 10**9, [0.0] * 99, [True] * 99, None),
        (WINS, 0, [0.0] * 100, [True] * 79 + [False] * 21, None),
        (WINS, 0, [0.0] * 100, [True] * 80 + [False] * 20, "80 % of the last 100 episodes were won"),
        (WINS, 10**9, [500.0] * 100, [], None),  # Nothing is won here.
        (Stop(wall_s=1e-9), 10**12, [1e9] * 200, [], None),  # The root keeps to limits of time.
    ],
)
def test_a_stop_rule_holds_of_steps_or_of_the_last_hundred_episodes(
    rule: Stop, env_steps: int, returns: list[float], wins: list[bool], reason: str | None
) -> None:
    episodes = Episodes()
    episodes.record(returns, 0.0, wins)
    assert episodes.rule_reached(rule, env_steps) == reason


def test_a_member_goes_on_with_the_returns_of_another_and_is_judged_by_its_own() -> None:
    episodes, other = Episodes(), Episodes()
    episodes.record([1000.0] * 250, 1.0)
    other.record([float(value) for value in range(170)], 1.0)
    assert other.returns.tolist() == list(range(70, 170))
    taken = other.returns[-60:]
    episodes.take_over(taken)
    assert episodes.mean == taken.mean()
    assert episodes.own_mean is None
    assert episodes.best_mean == 1000.0
    episodes.best_mean = None
    own = [1.0] * 39 + [5.0] * 2
    episodes.record(own, 2.0)
    assert episodes.returns.tolist() == [*taken[1:], *own]
    assert episodes.mean == np.mean(episodes.returns)
    # The best was when the window had just become full, of nothing that was there before the takeover.
    assert episodes.best_mean == pytest.approx(max(np.mean([*taken, *own[:-1]]), episodes.mean))
    assert episodes.own_mean == np.mean(own)
    assert episodes.count == 250 + len(own)

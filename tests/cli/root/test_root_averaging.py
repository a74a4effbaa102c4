"""The root averages each group at most once in a round, by its samples, and waits for nobody too long."""

import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from cli.root.averaging_line import JOB, AveragingLine
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_cli.root.observers.averaging import merge_statistics
from tianji_cli.wire.parameters import Contribution, contribution_layout

Open = Callable[..., AveragingLine]


@pytest.fixture
def averaging() -> Iterator[Open]:
    lines: list[AveragingLine] = []

    def open_line(*arguments: int, wait_s: float = 1000.0) -> AveragingLine:
        lines.append(AveragingLine(*arguments, wait_s=wait_s))
        return lines[-1]

    yield open_line
    for line in lines:
        line.close()


def expire(line: AveragingLine) -> None:
    """Let the open round's time be up."""
    line.averaging.deadline = time.monotonic()
    line.turn()


def test_a_round_is_over_when_every_group_has_contributed(averaging: Open) -> None:
    line = averaging(3)
    for group in range(2):
        line.contribute(group, group)
    line.turn()
    opened = line.latest()
    assert opened is not None
    assert (opened.round, opened.is_open, opened.contributors) == (0, True, 0)
    line.contribute(2, 2.0)
    line.turn()
    average = line.latest()
    assert average is not None
    assert (average.round, average.is_open, average.contributors) == (1, False, 3)
    assert average.taken.tolist() == [1, 1, 1]
    assert line.mean() == [1.0] * 4
    line.turn()


def test_groups_weigh_as_much_as_the_samples_they_used(averaging: Open) -> None:
    line = averaging(2)
    line.contribute(0, [0.0, 4.0, -4.0, 8.0], weight=300.0)
    line.contribute(1, [4.0, 0.0, 4.0, 0.0], weight=100.0)
    line.turn()
    assert line.mean() == [1.0, 3.0, -2.0, 6.0]


def test_what_is_alike_in_all_groups_stays_as_it_is_bit_by_bit(averaging: Open) -> None:
    line = averaging(3)
    alike = np.random.default_rng(1).standard_normal(4).astype(np.float32).tolist()
    for group, weight in enumerate((3.0, 7.0, 11.0)):
        line.contribute(group, alike, weight=weight)
    line.turn()
    assert line.mean() == alike


def test_a_variance_over_groups_has_what_their_means_are_apart(averaging: Open) -> None:
    """Means far from 0, whose squares would leave nothing of such variances in single precision."""
    line = averaging(2)
    for group, count in enumerate((300.0, 100.0)):
        mean = 10_000.0 + 2.0 * group
        values = [count, mean, 1.0 + group, 8.0 * group]
        line.contribute(group, values, weight=1.0 + 2.0 * group, statistics=(1, 1, 0))
    line.turn()
    merged = 0.75 * 1.0 + 0.25 * 2.0 + 0.75 * 0.25 * 2.0**2
    assert line.mean() == [150.0, 10_000.5, merged, 6.0], "parameters go by uses"


def test_what_float32_cannot_say_of_means_is_merged_with_them(averaging: Open) -> None:
    line, far = averaging(2, 5), np.array([1.7e9 + 60.0, 1.7e9 + 70.0])
    for group, mean in enumerate(far):
        values = [1.0, mean, 1.0, float(mean - np.float32(mean)), 8.0 * group]
        line.contribute(group, values, statistics=(1, 1, 1))
    line.turn()
    _, mean, variance, rest, parameter = line.mean()
    assert (mean + rest, variance, parameter) == (1.7e9 + 65.0, 26.0, 4.0)


def test_statistics_of_nothing_are_as_they_were(averaging: Open) -> None:
    line = averaging(2)
    for group in range(2):
        line.contribute(group, [0.0, 0.0, 1.0, 7.0], statistics=(1, 1, 0))
    line.turn()
    assert line.mean() == [0.0, 0.0, 1.0, 7.0]


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.floats(-1e4, 1e4, width=32), st.floats(0, 100, width=32)),
        min_size=1,
        max_size=5,
    )
)
def test_merged_statistics_are_those_of_all_that_groups_have_seen(
    groups: list[tuple[int, float, float]],
) -> None:
    contributions = []
    for own in groups:
        made = Contribution(memoryview(bytearray(contribution_layout(3).nbytes)))
        made.values[...] = own
        made.statistics[0] = 1, 1, 0
        contributions.append(made)
    found = merge_statistics(contributions)
    count, mean, variance = np.array(groups, np.float64).T
    if not count.any():
        assert found == []
        return
    shares = count / count.sum()
    expected = shares @ (variance + np.square(mean - shares @ mean))
    (place, merged), *others = found
    assert (place, others) == (slice(1, 3), [])
    np.testing.assert_allclose(merged, (shares @ mean, expected), rtol=1e-9, atol=1e-9)
    if len(set(mean.tolist())) == 1:
        assert merged[0] == mean[0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(1.0, 1e6)), min_size=2, max_size=5), st.randoms())
def test_the_mean_does_not_depend_on_who_comes_first(parts: list[tuple[float, float]], dice: object) -> None:
    means = []
    for shuffled in (False, True):
        line = AveragingLine(len(parts))
        order = list(range(len(parts)))
        if shuffled:
            dice.shuffle(order)  # type: ignore[attr-defined]
        for group in order:
            value, weight = parts[group]
            line.contribute(group, value, weight)
            line.turn()
        means.append(line.mean())
        line.close()
    assert means[0] == means[1]
    exact = np.average([value for value, _ in parts], weights=[weight for _, weight in parts])
    assert means[0][0] == pytest.approx(exact, rel=1e-4, abs=1e-2)


def test_who_is_late_is_left_out_reported_and_taken_into_the_next_round(averaging: Open) -> None:
    line = averaging(3)
    for group in range(2):
        line.contribute(group, 2.0)
    line.turn()
    expire(line)
    assert line.mean() == [2.0] * 4
    assert line.averaging.missed == [0, 0, 1]
    assert [event for event in line.events if "group 2 is late" in event] == line.events
    assert len(line.events) == 1

    line.contribute(2, 8.0)
    line.turn()
    for group in range(2):
        line.contribute(group, 2.0, number=2)
    line.turn()
    assert line.mean() == [4.0] * 4
    average = line.latest()
    assert average is not None
    assert average.taken.tolist() == [2, 2, 1]
    assert (line.averaging.rounds, line.averaging.missed) == (2, [0, 0, 1])
    assert line.noted[-1] == (2, [0, 0, 1]), "the overview knows it, too"


def test_a_group_by_itself_closes_no_round_and_who_lets_it_wait_is_reported_once(averaging: Open) -> None:
    line = averaging(3)
    line.contribute(0, 0.0)
    line.turn()
    expire(line)
    assert line.averaging.rounds == 0
    assert line.averaging.deadline == float("inf"), "nothing to wake up for"
    assert line.averaging.missed == [0, 1, 1]
    assert ["group 1 is late" in event for event in line.events] == [True, False]
    line.contribute(1, 6.0)
    line.turn()
    expire(line)
    assert line.mean() == [3.0] * 4
    assert (line.averaging.rounds, line.averaging.missed) == (1, [0, 1, 1])


def test_who_is_late_again_and_again_is_counted_and_not_reported_every_time(averaging: Open) -> None:
    line = averaging(3)
    for number in range(1, 21):
        for group in range(2):
            line.contribute(group, 2.0, number=number)
        line.turn()
        expire(line)
    assert line.averaging.missed == [0, 0, 20]
    assert len(line.events) == 1


def test_the_time_of_a_round_begins_with_its_second_contribution(averaging: Open) -> None:
    line = averaging(4, wait_s=50.0)
    assert line.averaging.deadline == float("inf")
    deadlines = []
    for group in range(3):
        before = time.monotonic()
        line.contribute(group, 1.0)
        line.turn()
        deadlines.append(line.averaging.deadline)
        if group < 2:
            assert before + 50.0 <= deadlines[-1] <= time.monotonic() + 50.0
    assert deadlines[0] < deadlines[1] == deadlines[2]
    line.contribute(3, 1.0)
    line.turn()
    assert line.averaging.deadline == float("inf")


def test_nobody_waits_for_a_lost_group_whose_contribution_still_counts(averaging: Open) -> None:
    line = averaging(3)
    line.contribute(2, 6.0)
    line.turn()
    line.lose(3)
    line.contribute(0, 0.0)
    line.contribute(1, 0.0)
    line.turn()
    assert line.mean() == [2.0] * 4
    line.contribute(0, 1.0, number=2)
    line.contribute(1, 1.0, number=2)
    line.turn()
    assert line.mean() == [1.0] * 4
    assert (line.averaging.rounds, line.averaging.missed) == (2, [0, 0, 0])


def test_a_round_that_waited_for_a_lost_group_alone_is_over(averaging: Open) -> None:
    line = averaging(2)
    line.contribute(0, 3.0)
    line.turn()
    line.lose(2)
    line.turn()
    assert line.mean() == [3.0] * 4


def test_values_that_are_not_finite_are_left_out_reported_and_keep_nobody_waiting(averaging: Open) -> None:
    line = averaging(2)
    line.contribute(1, [1.0, float("nan"), 1.0, 1.0])
    line.turn()
    told = line.latest(1)
    assert told is not None
    assert (told.taken.tolist(), told.contributors) == ([0, 1], 0)
    assert line.events == ["the parameters of group 1 are not finite: they are left out of the average"]
    line.contribute(0, 5.0)
    line.turn()
    line.contribute(1, 7.0, number=2)
    line.turn()
    assert line.mean() == [6.0] * 4


def test_a_second_contribution_in_one_round_is_refused(averaging: Open) -> None:
    line = averaging(3)
    line.contribute(0, 0.0)
    line.contribute(0, 100.0, number=2)
    line.turn()
    assert line.rejected.count == 1
    assert "again in one round" in line.rejected.first
    line.contribute(1, 0.0)
    line.contribute(2, 3.0)
    line.turn()
    assert line.mean() == [1.0] * 4


def test_what_is_no_contribution_of_this_job_is_refused_and_counted(averaging: Open) -> None:
    line = averaging(2)
    line.push(0, b"too short")
    line.turn()
    line.contribute(0, 1.0, job=JOB + 1)
    line.turn()
    assert line.rejected.count == 2
    assert line.latest() is None
    line.contribute(0, 1.0)
    line.contribute(1, 3.0)
    line.turn()
    assert line.mean() == [2.0] * 4


def test_a_round_takes_no_memory_of_the_size_of_a_contribution(averaging: Open) -> None:
    values = 500_000
    line = averaging(2, values)
    peaks = []
    for number in range(1, 5):
        for group in range(2):
            line.contribute(group, 1.0, number=number)
        tracemalloc.start()
        line.turn()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < values, "a quarter of a contribution's bytes"
    assert line.averaging.rounds == 4

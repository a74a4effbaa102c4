import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.wire.reports import PENDING, Distribution

records = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 50)), min_size=1, max_size=30)


@given(records)
def test_the_histogram_agrees_with_numpy_on_every_sample(records: list[tuple[int, int]]) -> None:
    staleness = Distribution()
    for lag, samples in records:
        staleness.record(lag, samples)
    expanded = np.repeat([lag for lag, _ in records], [samples for _, samples in records])
    summary = staleness.summary()
    assert summary is not None
    assert np.isclose(summary.mean, expanded.mean())
    assert summary.max == expanded.max()
    assert summary.p50 == np.percentile(expanded, 50, method="inverted_cdf")
    assert summary.p95 == np.percentile(expanded, 95, method="inverted_cdf")


def test_before_a_sample_was_used_there_is_no_staleness() -> None:
    staleness = Distribution()
    assert staleness.summary() is None
    staleness.record(5, 0)
    assert staleness.summary() is None


@pytest.mark.parametrize(("fresh", "p95"), [(95, 0), (94, 1)])
def test_billions_of_samples_are_counted_exactly(fresh: int, p95: int) -> None:
    staleness = Distribution()
    staleness.record(0, fresh * 10**11)
    staleness.record(1, (100 - fresh) * 10**11)
    summary = staleness.summary()
    assert summary is not None
    assert (summary.mean, summary.p50, summary.p95, summary.max) == ((100 - fresh) / 100, 0, p95, 1)


@given(
    st.lists(st.lists(st.integers(0, 5000), min_size=1, max_size=40), min_size=1, max_size=20),
    st.integers(1, 7),
)
def test_many_at_once_are_counted_as_one_by_one(batches: list[list[int]], width: int) -> None:
    together, alone = Distribution(width), Distribution(width)
    for batch in batches:
        together.record_all(np.array(batch * 30, np.int64))
        for value in batch:
            alone.record(value, 30)
    assert together.summary() == alone.summary()


def test_more_than_are_kept_waiting_are_counted_at_once() -> None:
    staleness = Distribution()
    staleness.record_all(np.ones(5, np.int64))
    staleness.record_all(np.full(PENDING + 1, 3, np.int64))
    summary = staleness.summary()
    assert summary is not None
    assert (summary.p50, summary.max) == (3, 3)
    assert summary.mean == (5 + 3 * (PENDING + 1)) / (PENDING + 6)

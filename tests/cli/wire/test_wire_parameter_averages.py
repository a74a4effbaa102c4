"""Contributions and averages are laid out as they say, and what is neither is refused with its reason."""

import tracemalloc

import numpy as np
import pytest

from tianji_cli.wire.parameters import Average, Contribution, average_layout, contribution_layout, values_in

JOB = 0xFEDCBA9876543210


def contribution(values: int = 5, group: int = 1, weight: float = 3.0) -> Contribution:
    made = Contribution(memoryview(bytearray(contribution_layout(values).nbytes)))
    made.values[...] = np.arange(values)
    made.stamp(JOB, group, 7, weight)
    return made


@pytest.mark.parametrize("values", [0, 1, 5, 1000])
def test_the_size_of_a_contribution_says_how_many_values_it_has(values: int) -> None:
    assert values_in(contribution_layout(values).nbytes) == values
    assert contribution(values).values.shape == (values,)


def test_a_contribution_is_read_as_it_was_written() -> None:
    read = Contribution(memoryview(bytes(contribution().memory)))
    assert read.rejection_from(1, JOB) is None
    assert (int(read.header["group"]), read.number, read.weight) == (1, 7, 3.0)
    assert read.values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("job", "group", "weight", "why"),
    [
        (JOB + 1, 1, 3.0, "its job is"),
        (JOB, 0, 3.0, "in the name of group 1, not of group 0"),
        (JOB, 1, 0.0, "weight is 0.0"),
        (JOB, 1, float("nan"), "weight is nan"),
        (JOB, 1, float("inf"), "weight is inf"),
    ],
)
def test_what_does_not_belong_is_refused(job: int, group: int, weight: float, why: str) -> None:
    rejection = contribution(weight=weight).rejection_from(group, job)
    assert rejection is not None
    assert why in rejection


def test_statistics_beyond_the_values_are_refused() -> None:
    made = contribution()
    made.statistics[1] = 1, 2, 0
    assert made.rejection_from(1, JOB) is None
    made.statistics[1] = 2, 2, 0
    assert "statistics at 2, 2 each, and 5 values" in str(made.rejection_from(1, JOB))
    made.statistics[1] = 0, 2, 0
    assert "statistics at 0, 2 each" in str(made.rejection_from(1, JOB)), "their count stands before them"
    made.statistics[1] = 1, 2, 0
    made.values[0] = -3.0
    assert "its statistics at 1 are of -3.0 observations" in str(made.rejection_from(1, JOB))


@pytest.mark.parametrize("byte", [0x00, 0x9A, 0xFF])
def test_noise_is_no_contribution_and_no_average(byte: int) -> None:
    noise = memoryview(bytearray([byte]) * average_layout(32, 3).nbytes)
    assert Contribution(noise).rejection_from(1, JOB) is not None
    assert Average(noise, 3).rejection(JOB) is not None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_one_value_that_is_not_finite_is_found(bad: float) -> None:
    one = contribution(1000)
    assert one.is_finite
    one.values[617] = bad
    assert not one.is_finite


def test_looking_for_values_that_are_not_finite_takes_no_memory() -> None:
    one = contribution(1_000_000)
    tracemalloc.start()
    try:
        assert one.is_finite
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("groups", [2, 3, 8, 9])
def test_an_average_is_read_as_it_was_written(groups: int) -> None:
    memory = bytearray(average_layout(5, groups).nbytes)
    written = Average(memoryview(memory), groups)
    taken = list(range(10, 10 + groups))
    written.fill_header(JOB, 4, 2, is_open=True, taken=taken)
    written.values[...] = np.arange(5)
    read = Average(memoryview(bytes(memory)), groups)
    assert read.rejection(JOB) is None
    assert (read.round, read.contributors, read.is_open) == (4, 2, True)
    assert read.taken.tolist() == taken
    assert read.values.tolist() == [0, 1, 2, 3, 4]


def test_an_average_of_another_job_or_number_of_groups_is_refused() -> None:
    average = Average(memoryview(bytearray(average_layout(5, 3).nbytes)), 3)
    average.fill_header(JOB, 1, 3, is_open=False, taken=[1, 1, 1])
    assert str(average.rejection(JOB + 1)).startswith("its job is")
    assert str(Average(average.memory, 2).rejection(JOB)).startswith("its layout is")

import math

import pytest

from tianji_cli.quantities import count, duration, number, ranges, rate, share


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.00 K"),
        (45_210, "45.2 K"),
        (999_499, "999 K"),
        (999_500, "1.00 M"),
        (1_234_567, "1.23 M"),
        (9_995_000, "10.0 M"),
        (2e9, "2.00 G"),
        (5e12, "5.00 T"),
    ],
)
def test_a_count_has_three_digits_and_a_unit(value: float, written: str) -> None:
    assert count(value) == written


@pytest.mark.parametrize(
    ("per_s", "written"), [(0, "0/s"), (0.5, "0.50/s"), (12.34, "12.3/s"), (45_210, "45.2 K/s")]
)
def test_a_rate_is_per_second(per_s: float, written: str) -> None:
    assert rate(per_s) == written


@pytest.mark.parametrize(
    ("seconds", "written"),
    [
        (0.04, "0.0 s"),
        (12.34, "12.3 s"),
        (59.96, "1 min"),
        (80, "1 min 20 s"),
        (3599.6, "1 h"),
        (7500, "2 h 5 min"),
        (86_399, "1 d"),
        (100_000, "1 d 4 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, written: str) -> None:
    assert duration(seconds) == written


def test_what_is_left_of_a_run_needs_no_tenths_of_a_second() -> None:
    assert duration(12.34, decimals=0) == "12 s"
    assert duration(59.6, decimals=0) == "1 min"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0.0, "0.000"),
        (-0.0123, "-0.012"),
        (1.2e-5, "1.2e-05"),
        (4.126, "4.13"),
        (475.04, "475.0"),
        (-1234.5, "-1234"),
        (3.2e9, "3.2e+09"),
        (math.nan, "nan"),
    ],
)
def test_a_number_keeps_what_people_can_read(value: float, written: str) -> None:
    assert number(value) == written


def test_ranges_and_shares_are_short() -> None:
    assert ranges([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert share(0.934) == "93 %"

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.config.schema import least_tolerance, usual_tolerance
from tianji_cli.roles.buffer.rate_limiter import RateLimiter

FRAGMENTS = st.integers(1, 4096)
BATCHES = st.integers(1, 4096)
RATIOS = st.one_of(st.sampled_from([0.1, 0.25, 1.0, 3.0, 4.0, 32.0]), st.floats(0.05, 100.0))
SLACK = 1e-6
"""For the rounding of sums."""


def play(balance: RateLimiter, fragment: int, batch: int, turns: int, eagerness: float, seed: int) -> int:
    """Let either side go on when it may, in a random order; give the turns in which one did."""
    dice = random.Random(seed)
    went_on = 0
    for _ in range(turns):
        receives, consumes = balance.may_receive(fragment), balance.may_consume(batch)
        if not (receives or consumes):
            break
        if receives and (not consumes or dice.random() < eagerness):
            balance.received += fragment
        else:
            balance.consumed += batch
        went_on += 1
    return went_on


@given(
    fragment=FRAGMENTS,
    batch=BATCHES,
    rho=RATIOS,
    warmup=st.integers(1, 10_000),
    more=st.one_of(st.just(0.0), st.floats(0, 1000)),
    eagerness=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    seed=st.integers(0, 9),
)
def test_with_the_least_tolerance_or_more_one_side_may_always_go_on_and_the_lead_stays_within_it(
    fragment: int, batch: int, rho: float, warmup: int, more: float, eagerness: float, seed: int
) -> None:
    tolerance = least_tolerance(fragment, batch, rho) + more
    balance = RateLimiter(rho, warmup, tolerance)
    settled = False  # The fragment that ends the warm-up may bring more than the tolerance.
    for _ in range(200):
        assert play(balance, fragment, batch, 1, eagerness, seed + balance.received) == 1, balance
        if balance.received >= warmup:
            assert balance.error >= -tolerance - SLACK
            settled = settled or balance.error <= tolerance
            assert balance.error <= (tolerance if settled else fragment) + SLACK


@given(fragment=FRAGMENTS, batch=BATCHES, rho=RATIOS, batches=st.integers(0, 10**7), seed=st.integers(0, 9))
def test_rounding_never_blocks_both_sides(
    fragment: int, batch: int, rho: float, batches: int, seed: int
) -> None:
    consumed = batch * batches
    balance = RateLimiter(rho, 1, least_tolerance(fragment, batch, rho), int(consumed / rho) + 1, consumed)
    assert play(balance, fragment, batch, 200, 0.5, seed) == 200, balance


@given(
    fragment=FRAGMENTS,
    batch=BATCHES,
    rho=RATIOS,
    warmup=st.integers(1, 1000),
    eagerness=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
)
def test_the_ratio_comes_to_rho_whoever_is_faster(
    fragment: int, batch: int, rho: float, warmup: int, eagerness: float
) -> None:
    tolerance = usual_tolerance(fragment, batch, rho)
    balance = RateLimiter(rho, warmup, tolerance)
    play(balance, fragment, batch, 2000, eagerness, seed=1)
    since = balance.received - warmup
    assert abs(since - balance.consumed / rho) <= tolerance + SLACK
    if since > 100 * tolerance:
        assert balance.actual == pytest.approx(rho, rel=0.02)


def test_below_the_least_tolerance_there_is_a_deadlock() -> None:
    fragment, batch, rho = 256, 512, 4.0
    least = least_tolerance(fragment, batch, rho)
    assert least == (256 + 128) / 2
    tight = RateLimiter(rho, warmup=0, tolerance=least - 65)
    assert play(tight, fragment, batch, 1000, 0.5, seed=1) < 1000
    assert (tight.may_receive(fragment), tight.may_consume(batch)) == (False, False)
    enough = RateLimiter(rho, warmup=0, tolerance=least)
    assert play(enough, fragment, batch, 1000, 0.5, seed=1) == 1000


def test_the_side_that_is_behind_is_never_held_back() -> None:
    fragment, batch, rho = 64, 256, 2.0
    for consumes_first in (True, False):
        balance = RateLimiter(rho, 1000, usual_tolerance(fragment, batch, rho))
        play(balance, fragment, batch, 500, 0.5, seed=2)
        while balance.may_consume(batch) if consumes_first else balance.may_receive(fragment):
            balance.consumed += batch * consumes_first
            balance.received += fragment * (not consumes_first)
        assert balance.may_receive(fragment) is consumes_first
        assert balance.may_consume(batch) is not consumes_first


def test_nothing_is_consumed_during_the_warm_up_and_reception_is_never_held_back() -> None:
    balance = RateLimiter(4.0, warmup=1000, tolerance=1.0)
    while balance.received < 1000:
        assert balance.may_receive(64)
        assert not balance.may_consume(1)
        assert balance.actual is None
        balance.received += 64
    assert balance.may_consume(1)
    assert not balance.may_receive(64)


def test_free_lets_both_sides_go_on_however_far_they_are_apart() -> None:
    for received, consumed in ((10**9, 0), (1000, 10**9)):
        balance = RateLimiter(4.0, 1000, None, received, consumed)
        assert balance.may_receive(64)
        assert balance.may_consume(256)
    assert not RateLimiter(4.0, 1000, None, 999).may_consume(256), (
        "the warm-up is the replay's, not the balance's"
    )


def test_the_actual_ratio_leaves_the_warm_up_out() -> None:
    balance = RateLimiter(4.0, warmup=1000, tolerance=None, received=1500)
    assert balance.actual is None
    balance.consumed = 1024
    assert balance.actual == 1024 / 500
    assert RateLimiter(4.0, 1000, None, 1000, 256).actual is None

"""What `latency` claims: whole round trips are counted, halved, and checked at both ends."""

import numpy as np
import pytest
from cli.bench.fake_sides import (
    DAMAGED,
    ENGINES,
    Flips,
    FlipsBetween,
    FlipsClock,
    FlipsLast,
    Loses,
    Shortens,
    opened,
    spoiling,
    trial_of,
)

from tianji_cli.bench import latency
from tianji_cli.bench.contents import DamagedMessageError
from tianji_cli.bench.experiment import TrialFailed
from tianji_transports.core import Transport

MESSAGES = 30


@pytest.mark.parametrize("store", ["copy", "inplace"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_round_trip_is_timed_halved_and_answered(engine: str, store: str) -> None:
    with opened(trial_of("latency", store=store), engine) as bed:
        for thorough in (True, False):
            outcome = bed.run(MESSAGES, thorough=thorough)
            assert outcome.messages == MESSAGES
            assert outcome.latencies_ns.shape == (MESSAGES,)
            assert np.all(outcome.latencies_ns > 0)
            assert 2 * outcome.latencies_ns.sum() <= outcome.seconds * 1e9
            assert outcome.sent[1].messages == MESSAGES + latency.WARM_UPS
        both = 2 * (MESSAGES + latency.WARM_UPS)
        assert (bed.endpoint.counters.pushes, bed.endpoint.counters.claims) == (both, both)
        bed.assert_all_claimed()


@pytest.mark.parametrize("damage", [Flips, FlipsClock, FlipsLast, Shortens])
def test_a_damaged_answer_is_caught(damage: type[Transport]) -> None:
    with (
        opened(trial_of("latency"), "shm", spoiling(damage)) as bed,
        pytest.raises(DamagedMessageError, match=f"message {DAMAGED - 1} of rank 1 in run 1"),
    ):
        bed.run(MESSAGES)


@pytest.mark.parametrize("damage", [Flips, FlipsClock, FlipsLast, Shortens])
def test_the_partner_catches_a_damaged_message(damage: type[Transport]) -> None:
    with (
        opened(trial_of("latency"), spoiling(damage), "shm") as bed,
        pytest.raises(TrialFailed, match=f"rank 1: message {DAMAGED - 1} of rank 0 in run 1"),
    ):
        bed.run(MESSAGES)


def test_a_thorough_run_looks_at_every_byte() -> None:
    with (
        opened(trial_of("latency"), "shm", spoiling(FlipsBetween)) as bed,
        pytest.raises(DamagedMessageError, match="is altered at byte 2056"),
    ):
        bed.run(MESSAGES, thorough=True)


@pytest.mark.usefixtures("impatient")
def test_a_lost_message_ends_the_run_on_both_sides() -> None:
    with opened(trial_of("latency"), spoiling(Loses), "shm") as bed:
        with pytest.raises(TrialFailed, match="waited for an answer of rank 1"):
            bed.run(MESSAGES)
        assert bed.call_off()[1].messages == DAMAGED - 1
        # The answer that the partner had prepared is given back: the next run has all credit.
        assert bed.run(MESSAGES).sent[1].refused == 0
        bed.assert_all_claimed()


def test_a_partner_that_dies_ends_the_run() -> None:
    with opened(trial_of("latency"), "shm") as bed:
        bed.partners[0].kill()
        with pytest.raises(TrialFailed, match="rank 1 died"):
            bed.run(MESSAGES)

"""What `bandwidth` claims: every window is whole, checked and acknowledged before the next begins."""

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

from tianji_cli.bench import bandwidth
from tianji_cli.bench.contents import DamagedMessageError
from tianji_cli.bench.experiment import TrialFailed
from tianji_cli.bench.trial import Run
from tianji_transports.core import Transport

WINDOW = 4
MESSAGES = 70
WINDOWS = 19  # one that warms up, 17 whole ones and one of two messages


def test_the_last_window_may_be_smaller() -> None:
    parts = bandwidth.windows(
        trial_of("bandwidth", window=WINDOW), Run(number=1, messages=MESSAGES, thorough=False)
    )
    assert [len(part) for part in parts] == [WINDOW] * (WINDOWS - 1) + [2]
    assert [number for part in parts for number in part] == list(range(WINDOW + MESSAGES))


@pytest.mark.parametrize("store", ["copy", "inplace"])
@pytest.mark.parametrize("engine", ENGINES)
def test_every_message_is_checked_and_every_window_acknowledged(engine: str, store: str) -> None:
    with opened(trial_of("bandwidth", window=WINDOW, store=store), engine) as bed:
        for thorough in (True, False):
            outcome = bed.run(MESSAGES, thorough=thorough)
            assert (outcome.messages, outcome.latencies_ns.size) == (MESSAGES, 0)
            assert outcome.seconds > 0
            assert outcome.sent[1].messages == WINDOW + MESSAGES
        counters = bed.endpoint.counters
        assert (counters.claims, counters.pushes) == (2 * (WINDOW + MESSAGES), 2 * WINDOWS)
        bed.assert_all_claimed()


@pytest.mark.parametrize("damage", [Flips, FlipsClock, FlipsLast, Shortens, Loses])
def test_a_damaged_or_lost_message_is_caught(damage: type[Transport]) -> None:
    with (
        opened(trial_of("bandwidth", window=WINDOW), "shm", spoiling(damage)) as bed,
        pytest.raises(DamagedMessageError, match=f"message {DAMAGED - 1} of rank 1 in run 1"),
    ):
        bed.run(MESSAGES)


def test_a_thorough_run_looks_at_every_byte() -> None:
    with (
        opened(trial_of("bandwidth", window=WINDOW), "shm", spoiling(FlipsBetween)) as bed,
        pytest.raises(DamagedMessageError, match="is altered at byte 2056"),
    ):
        bed.run(MESSAGES, thorough=True)


def test_the_sender_catches_a_damaged_acknowledgement() -> None:
    with (
        opened(trial_of("bandwidth", window=WINDOW), spoiling(Flips), "shm") as bed,
        pytest.raises(TrialFailed, match=f"rank 1: message {DAMAGED - 1} of rank 0 in run 1"),
    ):
        bed.run(MESSAGES)


@pytest.mark.usefixtures("impatient")
def test_a_lost_acknowledgement_ends_the_run_on_both_sides() -> None:
    with opened(trial_of("bandwidth", window=WINDOW), spoiling(Loses), "shm") as bed:
        with pytest.raises(TrialFailed, match="waited for a message of rank 1"):
            bed.run(MESSAGES)
        assert bed.call_off()[1].messages == WINDOW * DAMAGED
        bed.assert_all_claimed()

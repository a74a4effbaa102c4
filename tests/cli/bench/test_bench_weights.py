"""What `weights` claims: every reader has every version, and the slowest one's time is told."""

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
    Misnumbers,
    opened,
    spoiling,
    trial_of,
)

from tianji_cli.bench import weights
from tianji_cli.bench.contents import DamagedMessageError
from tianji_cli.bench.experiment import TrialFailed
from tianji_transports.core import Transport

VERSIONS = 20
READERS = 2
HOUR_NS = 3600 * 10**9


@pytest.mark.parametrize("engine", ENGINES)
def test_every_reader_has_every_version_of_every_run(engine: str) -> None:
    with opened(trial_of("weights", READERS, 64 * 1024), engine) as bed:
        for thorough in (True, False, False):
            outcome = bed.run(VERSIONS, thorough=thorough)
            assert outcome.messages == VERSIONS
            assert outcome.latencies_ns.shape == (VERSIONS,)
            assert np.all(outcome.latencies_ns > 0)
            assert outcome.latencies_ns.sum() <= outcome.seconds * 1e9
            received = {rank: sent.messages for rank, sent in outcome.sent.items()}
            assert received == dict.fromkeys((1, 2), VERSIONS + weights.WARM_UPS)
        published = 3 * (VERSIONS + weights.WARM_UPS)
        counters = bed.endpoint.counters
        assert (counters.publishes, counters.claims) == (published, READERS * published)
        bed.assert_all_claimed()


def test_the_slowest_reader_counts_and_its_clock_is_corrected() -> None:
    with opened(trial_of("weights", READERS), "shm") as bed:
        for behind, other in ((1, 2), (2, 1)):
            bed.watch.offsets_ns = {behind: -HOUR_NS, other: 0}
            assert np.all(bed.run(VERSIONS).latencies_ns > HOUR_NS)
            bed.watch.offsets_ns = {behind: HOUR_NS, other: 0}
            assert np.all(bed.run(VERSIONS).latencies_ns < HOUR_NS)


@pytest.mark.parametrize("damage", [Flips, FlipsClock, FlipsLast])
def test_a_damaged_version_is_caught(damage: type[Transport]) -> None:
    with (
        opened(trial_of("weights"), spoiling(damage), "shm") as bed,
        pytest.raises(TrialFailed, match=f"rank 1: message {DAMAGED - 1} of rank 0 in run 1 is altered"),
    ):
        bed.run(VERSIONS)


def test_a_thorough_run_looks_at_every_byte() -> None:
    with (
        opened(trial_of("weights"), spoiling(FlipsBetween), "shm") as bed,
        pytest.raises(TrialFailed, match="is altered at byte 2056"),
    ):
        bed.run(VERSIONS, thorough=True)


def test_a_version_that_is_not_the_next_is_damage() -> None:
    with (
        opened(trial_of("weights"), spoiling(Misnumbers), "shm") as bed,
        pytest.raises(TrialFailed, match=r"rank 1: version .* should come next"),
    ):
        bed.run(VERSIONS)


def test_a_damaged_answer_is_caught() -> None:
    with (
        opened(trial_of("weights"), "shm", spoiling(Flips)) as bed,
        pytest.raises(DamagedMessageError, match=f"message {DAMAGED - 1} of rank 1 in run 1"),
    ):
        bed.run(VERSIONS)


@pytest.mark.usefixtures("impatient")
def test_a_lost_version_ends_the_run_on_both_sides() -> None:
    with opened(trial_of("weights"), spoiling(Loses), "shm") as bed:
        with pytest.raises(TrialFailed, match="waited for rank 1 to have a version"):
            bed.run(VERSIONS)
        assert bed.call_off()[1].messages == DAMAGED - 1
        bed.assert_all_claimed()

"""Claims of `latency`, `bandwidth` and `weights`: each message is counted once, in order, and checked."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from lab.bench.damaging import DAMAGED
from lab.bench.stages import called_off, opened, trial_of

from tianji_cli.launch.children import Child
from tianji_lab.bench import experiment as experiments
from tianji_lab.bench import workers as bench_workers
from tianji_lab.bench.exchange import Latency, Weights
from tianji_lab.bench.experiment import TrialFailed
from tianji_lab.bench.workers import BenchWorkers, local_workers

MESSAGES = 70
WINDOW = 4
WARM_UPS = {"latency": Latency.warm_ups, "bandwidth": WINDOW, "weights": Weights.warm_ups}
HOUR_NS = 3600 * 10**9


@pytest.fixture(scope="module")
def workers() -> Iterator[BenchWorkers]:
    with local_workers(2) as there:
        yield there


@pytest.mark.parametrize(("engine", "store"), [("shm", "inplace"), ("zmq", "copy")])
@pytest.mark.parametrize(
    ("experiment", "partners", "times"), [("latency", 1, 2), ("bandwidth", 1, 0), ("weights", 2, 1)]
)
def test_every_message_of_every_run_counts_once_and_is_timed(
    workers: BenchWorkers, experiment: str, partners: int, times: int, engine: str, store: str
) -> None:
    with opened(workers, trial_of(experiment, engine, partners, store=store, window=WINDOW)) as session:
        for thorough in (True, False, False):
            outcome = session.run(MESSAGES, thorough=thorough)
            assert outcome.messages == MESSAGES
            assert {rank: sent.messages for rank, sent in outcome.sent.items()} == dict.fromkeys(
                range(1, partners + 1), MESSAGES + WARM_UPS[experiment]
            )
            assert outcome.latencies_ns.shape == ((MESSAGES,) if times else (0,))
            assert np.all(outcome.latencies_ns > 0)
            # Half a round trip is what is told of `latency`; bandwidth has a time of the whole only.
            assert times * outcome.latencies_ns.sum() <= outcome.seconds * 1e9
            assert outcome.seconds > 0


OF_PARTNER = f"rank 0: message {DAMAGED} of rank 1 in run 1"
OF_LEAD = f"worker 1: message {DAMAGED} of rank 0 in run 1"


@pytest.mark.parametrize(
    ("experiment", "lead", "partner", "said"),
    [
        *(("latency", "", damage, OF_PARTNER) for damage in ("FlipsShm", "FlipsClock", "FlipsLast")),
        *(("latency", damage, "", OF_LEAD) for damage in ("FlipsShm", "Shortens")),
        *(
            ("bandwidth", "", damage, OF_PARTNER)
            for damage in ("FlipsShm", "FlipsClock", "FlipsLast", "Shortens", "LosesShm")
        ),
        ("bandwidth", "FlipsShm", "", OF_LEAD),
        *(("weights", damage, "", OF_LEAD) for damage in ("FlipsShm", "FlipsClock", "FlipsLast")),
        ("weights", "Misnumbers", "", r"worker 1: version .* should come next"),
        ("weights", "", "FlipsShm", OF_PARTNER),
    ],
)
def test_whoever_gets_a_damaged_message_says_which_it_is(
    workers: BenchWorkers, experiment: str, lead: str, partner: str, said: str
) -> None:
    engines = {name: f"lab.bench.damaging:{name}" for name in (lead, partner) if name}
    trial = trial_of(experiment, engines.get(partner, "shm"))
    with pytest.raises(TrialFailed, match=said), opened(workers, trial, engines.get(lead, "shm")) as session:
        session.run(MESSAGES)


@pytest.mark.parametrize("experiment", WARM_UPS)
def test_a_thorough_run_looks_at_every_byte(workers: BenchWorkers, experiment: str) -> None:
    """Every byte of a message that the leading process receives, or of a value that the other publishes."""
    damaging = "lab.bench.damaging:FlipsBetween"
    trial = trial_of(experiment, "shm" if experiment == "weights" else damaging)
    lead = damaging if experiment == "weights" else "shm"
    with pytest.raises(TrialFailed, match="altered at byte 2056"), opened(workers, trial, lead) as session:
        session.run(MESSAGES, thorough=True)


@pytest.mark.parametrize(
    ("experiment", "received", "said"),
    [
        ("latency", DAMAGED, "waited for an answer of rank 1"),
        ("bandwidth", WINDOW * (DAMAGED + 1), "waited for a message of rank 1"),
        ("weights", DAMAGED, "waited for rank 1 to have a version"),
    ],
)
def test_a_lost_message_ends_the_run_on_both_sides_and_the_next_run_is_whole(
    workers: BenchWorkers, monkeypatch: pytest.MonkeyPatch, experiment: str, received: int, said: str
) -> None:
    # The default patience of Deadline is bound where it is defined.
    monkeypatch.setattr(experiments.Deadline.__init__, "__defaults__", (1.0,))
    with opened(workers, trial_of(experiment, "shm"), "lab.bench.damaging:LosesShm") as session:
        with pytest.raises(TrialFailed, match=said):
            session.run(MESSAGES)
        assert called_off(session)[1].messages == received
        again = session.run(MESSAGES).sent[1]
        assert (again.messages, again.refused) == (MESSAGES + WARM_UPS[experiment], 0)


def test_the_slowest_reader_of_weights_counts_and_its_clock_is_corrected(workers: BenchWorkers) -> None:
    with opened(workers, trial_of("weights", "shm", 2)) as session:
        for behind, other in ((1, 2), (2, 1)):
            session.offsets_ns = {behind: -HOUR_NS, other: 0}
            assert np.all(session.run(MESSAGES).latencies_ns > HOUR_NS)
            session.offsets_ns = {behind: HOUR_NS, other: 0}
            assert np.all(session.run(MESSAGES).latencies_ns < HOUR_NS)


def test_a_worker_that_ends_before_it_is_told_of_the_root_is_named_and_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def start(command: list[str], **options: Any) -> Child:
        second = bool(started)
        started.append(Child(["false"] if second else command, **options))
        if second:
            started[-1].wait()
        return started[-1]

    monkeypatch.setattr(bench_workers, "Child", start)
    with pytest.raises(TrialFailed, match="worker 2 exited with status 1"), local_workers(3):
        pytest.fail("a worker is missing")
    assert [child.process.returncode for child in started] == [-signal.SIGKILL, 1]

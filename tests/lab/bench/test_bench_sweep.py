"""Which runs are made, in which order, and what becomes of them."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tianji_cli.errors import UsageError
from tianji_cli.telemetry.progress import Progress
from tianji_lab.bench.experiment import ReadClock, TrialFailed
from tianji_lab.bench.request import FIGURES, Request, default_backends, figure_named, message_bytes
from tianji_lab.bench.sweep import Sweep, Terms
from tianji_lab.bench.workers import local_workers
from tianji_transports import registry
from tianji_transports.core import Capabilities
from tianji_transports.errors import TransportError
from tianji_transports.registry import Availability

SMALL = Request("comm", ["shm", "zmq"], [4.0], [1, 2], 100, [0.0], repeats=2, raw=True)
seconds = st.floats(1e-6, 1.0)


class Recording(Progress):
    """Remembers what a sweep says."""

    def __init__(self) -> None:
        super().__init__(0, quiet=True)
        self.began: list[str] = []
        self.ended = 0

    def begin(self, what: str) -> None:
        self.began.append(what)

    def done(self, result: str) -> None:
        del result
        self.ended += 1


@given(seconds, seconds, seconds)
def test_the_crossing_is_where_the_buffer_begins_to_limit(sample: float, send: float, receive: float) -> None:
    terms = Terms(sample, send, receive)
    at, below = terms.crossing, terms.crossing - 1
    assert terms.collection_s(1, at) == pytest.approx(receive)
    if below:
        assert terms.collection_s(1, below) > receive
        assert terms.collection_s(1, below) == pytest.approx((sample + send) / below)


def test_engines_of_other_packages_are_measured_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(name: str, **abilities: bool) -> Availability:
        can = Capabilities(lends=False, max_borrowed=0, peer_restart=True, max_bytes=1, **abilities)
        return Availability(name, can, None)

    brought = engine("brought", cross_host=True)
    inside, zmq = engine("inside", cross_host=True, cross_process=False), engine("zmq", cross_host=True)
    broken = Availability("broken", None, TransportError("no library"))
    monkeypatch.setattr(
        registry, "available", lambda: [broken, brought, inside, engine("shm", cross_host=False), zmq]
    )
    assert default_backends(crossing=False) == ["shm", "zmq", "brought"]
    assert default_backends(crossing=True) == ["zmq", "brought"]
    assert default_backends(crossing=False, raw=True) == ["shm", "zmq"]


def test_engines_take_turns_within_every_repeat_and_each_is_checked_first() -> None:
    progress = Recording()
    with local_workers(2) as workers:
        sweep = Sweep(workers, SMALL, progress)
        records = sweep.measure()
    points = ["shm, 4 KB, 1 actor", "zmq, 4 KB, 1 actor", "shm, 4 KB, 2 actors", "zmq, 4 KB, 2 actors"]
    steps = ["checking every byte", "run 1 of 2", "run 2 of 2"]
    assert progress.began == [f"{point}: {step}" for step in steps for point in points]
    assert progress.ended == sweep.steps
    cases = [("shm", 1), ("zmq", 1), ("shm", 2), ("zmq", 2)]
    assert [(record.backend, record.actors) for record in records] == cases
    for record in records:
        assert record.collection_min_s <= record.collection_s <= record.collection_max_s
    # A raw loop has one sender: there is a ratio where the case has, too.
    assert [record.raw_ratio is None for record in records] == [False, False, True, True]
    assert records[0].raw_msgs_per_s == records[2].raw_msgs_per_s


def test_a_worker_that_died_between_two_steps_is_named_with_its_end() -> None:
    with local_workers(1) as workers:
        (member,) = workers.members
        assert member.child is not None
        member.child.kill()
        with pytest.raises(TrialFailed, match="worker 1 was killed by SIGKILL"):
            # Until its connection is known to be gone.
            all(workers.send(member, ReadClock()) for _ in itertools.count())


def test_a_prediction_is_made_of_the_terms_beside_it() -> None:
    with local_workers(1) as workers:
        request = replace(SMALL, backends=["shm"], actors=[1], sample_times_s=[0.001], repeats=1, raw=False)
        (record,) = Sweep(workers, request, Recording()).measure()
    assert record.term_sample_s is not None
    assert record.term_send_s is not None
    assert record.term_receive_s is not None
    terms = Terms(record.term_sample_s, record.term_send_s, record.term_receive_s)
    assert record.predicted_s == terms.collection_s(record.messages, record.actors)
    assert record.crossing_actors == terms.crossing
    assert record.term_sample_s > 0.001


@pytest.mark.parametrize("size_kb", [0.0, 0.03, 1 / 3, float("nan"), float("inf")])
def test_sizes_that_cannot_be_checked_are_refused(size_kb: float) -> None:
    with pytest.raises(UsageError, match="multiple of 8"):
        message_bytes(size_kb)


@pytest.mark.parametrize(
    ("changes", "hosts", "match"),
    [
        ({"actors": [4]}, ["a", "a", "b"], "mpiexec -n 5"),
        ({"experiment": "latency"}, ["a", "a", "b"], "between two processes"),
        ({"backends": ["shm"], "actors": [1]}, ["a", "b"], "shm"),
        ({"backends": ["shm+"], "actors": [1]}, ["a", "a"], "one engine, or two"),
        ({"backends": ["inproc"], "actors": [1]}, ["a", "a"], "stays inside a process"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    changes: dict[str, object], hosts: Sequence[str], match: str
) -> None:
    with pytest.raises(UsageError, match=match):
        replace(SMALL, **changes).check(hosts, can_start=False)  # type: ignore[arg-type]


def test_a_figure_takes_no_more_actors_than_there_are_and_no_other_hosts() -> None:
    for name, hosts in (("5a", 1), ("5b", 1), ("5c", 2), ("5c", 4), ("5d", 2)):
        assert tuple(figure_named(name, hosts, None).actors) == tuple(FIGURES[name].actors)
        assert max(figure_named(name, hosts, 5).actors) <= 5
    for name, hosts in (("5a", 2), ("5b", 2), ("5c", 1), ("5d", 1), ("5d", 3), ("6", 1)):
        with pytest.raises(UsageError):
            figure_named(name, hosts, None)

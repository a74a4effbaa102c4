"""Sequences on their way to learners: through a transport, in shards, and as the limiter counts them."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from cli.buffer.naive_sequences import NaiveSequences, check_sequences, open_sequences
from cli.buffer.replays import JOB, ScriptedActor, fragment_layout
from cli.learner.replay_line import BUFFER, LEARNER, Line

from tianji_algos.batch import SequenceBatch
from tianji_algos.core import UpdateResult
from tianji_cli.config.edges import HEADERS, SHARDS
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.data_source import LocalReplayClient, ReplaySource
from tianji_cli.roles.learner.parallel.followers import ScatteredBatches
from tianji_cli.roles.learner.parallel.scatter import LAYOUT as HEADER_LAYOUT
from tianji_cli.roles.learner.parallel.scatter import RoundHeader, Scatter, ScatteringReplayClient
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

MOST, RHO, WARMUP = 6, 2.0, 32
LAYOUT = fragment_layout(4, 4)
EACH = 16
_numbers = itertools.count()


class Books:
    """A store that receives an actor's fragments, and what they are as lists."""

    def __init__(self, tolerance: float | None = None, end_rate: float = 0.3, most: int = MOST) -> None:
        wiring = Wiring(f"books-{next(_numbers)}", (Channel("fragments", 0, (1,), LAYOUT.nbytes, 100),))
        self.receiver, self.sender = InprocTransport(wiring, 0), InprocTransport(wiring, 1)
        self.actor = ScriptedActor(LAYOUT, 0, seed=4, end_rate=end_rate)
        self.naive = NaiveSequences(LAYOUT, 300, most)
        replay, limiter = open_sequences(LAYOUT, 300, most), RateLimiter(RHO, WARMUP, tolerance)
        self.store = ReplayStore(LAYOUT, JOB, {1: (0,)}, replay=replay, limiter=limiter)

    def receive(self, fragments: int = 1) -> None:
        for _ in range(fragments):
            loan = self.sender.loan(0, "fragments", LAYOUT.nbytes)
            assert hasattr(loan, "memory")
            self.actor.fill(loan.memory)
            self.naive.accept(loan.memory)
            self.sender.push(loan)
            claim = self.receiver.probe("fragments")
            assert claim is not None
            self.store.admit(claim)


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_sequences_from_another_process_are_those_that_were_acted(
    line: Callable[..., Line], engine: str
) -> None:
    one = line(engine, sequence_steps=MOST)
    naive, twin = NaiveSequences(one.layout, 300, MOST), ScriptedActor(one.layout, 0, seed=1)
    for _ in range(20):
        memory = memoryview(bytearray(one.layout.nbytes))
        twin.fill(memory)
        naive.accept(memory)
    one.send(20)
    drawn = 0
    for _ in range(30):
        into = one.batch()
        check_sequences(into, naive, ages=False)
        drawn += into.steps
        into = one.batch()
        drawn += into.steps
    assert one.store.limiter.consumed >= drawn
    assert one.learner.report().rejected["batches"] == (0, "")


def test_a_batch_of_another_length_is_none_of_the_job_s(line: Callable[..., Line]) -> None:
    """Its size alone would not tell: what is aligned may be as large."""
    one = line("inproc", sequence_steps=1)
    size, fields = one.batches.size, ("action",)
    lengths = [BatchLayout.of(one.layout, size, fields, steps) for steps in (None, 1, 2)]
    assert len({layout.record.fingerprint for layout in lengths}) == 3
    for layout in (lengths[0], lengths[2]):
        stranger = BatchArrays(layout)
        stranger.stamp(JOB)
        payload = bytes(stranger.memory)[: one.batches.nbytes].ljust(one.batches.nbytes, b"\0")
        one.say(BUFFER, LEARNER, "batches", payload)
        assert one.learner.draw() is None
    assert one.learner.report().rejected["batches"][0] == 2


def test_shards_of_a_batch_are_its_sequences_and_each_goes_to_one_learner() -> None:
    books = Books()
    books.receive(30)
    whole = BatchLayout.of(LAYOUT, 9, ("action",), MOST)
    shard = BatchLayout.of(LAYOUT, 3, ("action",), MOST)
    channels = [
        Channel(name, rank, (0,), nbytes, 1)
        for rank in (1, 2)
        for name, nbytes in ((HEADERS, HEADER_LAYOUT.nbytes), (SHARDS, shard.nbytes))
    ]
    wiring = Wiring(f"shards-{next(_numbers)}", tuple(channels))
    learner, one, other = (InprocTransport(wiring, rank) for rank in range(3))
    scatter = Scatter(learner, (1, 2), JOB, 1, shard.nbytes)
    source = ScatteringReplayClient(
        learner, books.store, whole, shard, scatter, publish_every=4, prioritised=False, in_step=False
    )
    feeds = [ScatteredBatches(end, JOB, shard, 0, prioritised=False) for end in (one, other)]
    drawn = 0
    for number in range(1, 11):
        assert source.send(5, 1, synchronise=False)
        header = RoundHeader(env_steps=5, version=1, shards=1, synchronise=False, publishes=number % 4 == 0)
        own = source.draw()
        assert own is not None
        parts = [own.batch]
        for feed in feeds:
            assert feed.header() == header
            parts.append(feed.batch())
        drawn += sum(int(part.length.sum()) for part in parts if isinstance(part, SequenceBatch))
        assert drawn == books.store.limiter.consumed
        check_sequences(source._whole, books.naive)
        for name in ("observation", "reward", "length", "terminated"):
            together = np.concatenate([getattr(part, name) for part in parts])
            np.testing.assert_array_equal(together, source._whole.arrays[name])
        for feed in feeds:
            feed.used(UpdateResult(0))
            assert feed.batch() is None


def test_nothing_is_drawn_and_nobody_held_back_until_a_sequence_is_complete() -> None:
    books = Books(tolerance=24.0, end_rate=0.0, most=40)
    arrays = BatchArrays(BatchLayout.of(LAYOUT, 1, ("action",), 40))
    source = LocalReplayClient(books.store, arrays)
    for _ in range(9):
        books.receive()
        assert not books.store.full, "the rate limiter alone would hold it back for ever"
        assert source.draw() is None
    assert books.store.limiter.error > 24.0
    books.receive()
    assert books.store.full
    assert source.draw() is arrays
    assert arrays.steps == 40


def test_the_balance_counts_steps_and_takes_a_batch_for_as_many_as_it_may_have() -> None:
    books = Books(tolerance=20.0)
    feed = ReplaySource(
        LocalReplayClient(books.store, BatchArrays(BatchLayout.of(LAYOUT, 4, ("action",), MOST))),
        rho=RHO,
        publish_every=10**6,
        prioritised=False,
        age_bin=1,
    )
    feed.advance(0)
    limiter, used = books.store.limiter, 0
    for _ in range(200):
        while not books.store.full:
            books.receive()
        while (batch := feed.batch()) is not None:
            assert isinstance(batch, SequenceBatch)
            used += int(batch.length.sum())
            feed.used(UpdateResult(0))
            assert limiter.error >= -20.0
        assert limiter.consumed == used
        assert limiter.error - 4 * MOST / RHO < -20.0 or limiter.received < WARMUP
    assert used / (limiter.received - WARMUP) == pytest.approx(RHO, rel=0.05)
    assert books.store.report().uses.mean == pytest.approx(used / limiter.received)

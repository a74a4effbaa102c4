"""A learner draws from several buffers in proportion, and answers each its own batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from cli.buffer.replays import JOB
from cli.learner.replay_line import BATCHES_LAYOUT, EACH, priorities

from tianji_cli.config.edges import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.learner.data_source import RemoteReplayClient
from tianji_cli.wire.batches import BatchArrays, priorities_layout, read_priorities
from tianji_cli.wire.fragment import FragmentStats, stats_layout
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

BUFFERS, LEARNER, WARMUP = (0, 1), 2, 2 * EACH
STATS, ANSWER = stats_layout(EACH), priorities_layout(BATCHES_LAYOUT.size)
_numbers = itertools.count()


class Shards:
    """Two buffers that a test speaks for, and the learner's end of them."""

    def __init__(self, warmup: int = 0) -> None:
        channels = (
            Channel(BATCHES, LEARNER, BUFFERS, BATCHES_LAYOUT.nbytes, 2),
            Channel(ARRIVALS, LEARNER, BUFFERS, STATS.nbytes, 64),
            *(Channel(PRIORITIES, rank, (LEARNER,), ANSWER.nbytes, 3) for rank in BUFFERS),
        )
        wiring = Wiring(f"shards-{next(_numbers)}", channels)
        self.ends = {rank: InprocTransport(wiring, rank) for rank in (*BUFFERS, LEARNER)}
        buffers = dict.fromkeys(BUFFERS, warmup)
        self.learner = RemoteReplayClient(self.ends[LEARNER], buffers, JOB, BATCHES_LAYOUT, EACH)

    def receive(self, rank: int, fragments: int) -> None:
        """Let a buffer report the arrival of fragments."""
        for _ in range(fragments):
            loan = self.ends[rank].loan(LEARNER, ARRIVALS, STATS.nbytes)
            FragmentStats(EACH, 0, ()).write(STATS, loan.memory, JOB)
            self.ends[rank].push(loan)
        self.learner.arrivals()

    def assemble(self) -> None:
        """Let both buffers assemble as many batches as the learner's window holds; keys are their ranks."""
        for rank in BUFFERS:
            while (loan := self.ends[rank].loan(LEARNER, BATCHES, BATCHES_LAYOUT.nbytes)) is not FULL:
                batch = BatchArrays(BATCHES_LAYOUT, loan.memory)
                batch.stamp(JOB)
                batch.key[:] = rank
                self.ends[rank].push(loan)

    def draw(self) -> int | None:
        """Draw a batch, and return the buffer that it is of."""
        batch = self.learner.draw()
        return None if batch is None else int(batch.key[0])

    def answers(self, rank: int) -> list[float]:
        """Priorities that a buffer has got, one of each batch."""
        found = []
        while (claim := self.ends[rank].probe(PRIORITIES)) is not None:
            update = read_priorities(ANSWER, claim.view(), JOB)
            assert not isinstance(update, str)
            np.testing.assert_array_equal(update[0], rank)
            found.append(float(update[1][0]))
            claim.release()
        return found


@pytest.fixture
def shards() -> Iterator[Shards]:
    one = Shards()
    yield one
    for end in one.ends.values():
        end.close()


def test_of_two_buffers_with_batches_each_is_used_for_as_much_as_it_received(shards: Shards) -> None:
    shards.receive(0, 30)
    shards.receive(1, 10)
    drawn = []
    for _ in range(40):
        shards.assemble()
        drawn.append(shards.draw())
    assert (drawn.count(0), drawn.count(1)) == (30, 10)
    assert all(1 in drawn[start : start + 5] for start in range(0, 40, 4)), "not one after the other"


def test_a_learner_does_not_wait_for_the_buffer_that_is_due(shards: Shards) -> None:
    shards.receive(0, 1)
    shards.receive(1, 10)
    shards.assemble()
    assert [shards.draw() for _ in range(5)] == [0, 1, 1, 0, None]


def test_priorities_go_back_to_the_buffer_that_their_batch_came_from(shards: Shards) -> None:
    for rank in BUFFERS:
        shards.receive(rank, 10)
    expected: dict[int | None, list[float]] = {rank: [] for rank in BUFFERS}
    for number in range(12):
        shards.assemble()
        expected[shards.draw()].append(float(number))
        shards.learner.give_priorities(priorities(float(number)))
        if number % 2:
            assert {rank: shards.answers(rank) for rank in BUFFERS} == expected
            expected = {rank: [] for rank in BUFFERS}


def test_nothing_is_drawn_before_the_warm_up_of_all_is_over() -> None:
    shards = Shards(WARMUP)
    shards.receive(0, 5)
    shards.assemble()
    assert shards.draw() is None
    shards.receive(1, 1)
    assert shards.draw() is None
    shards.receive(1, 1)
    assert shards.draw() is not None


def test_priorities_of_a_lost_buffer_are_given_up_and_the_others_go_on(shards: Shards) -> None:
    for rank in BUFFERS:
        shards.receive(rank, 10)
    for _ in range(12):
        shards.assemble()
        if shards.draw() == 0:  # More than its window holds: it claims none.
            shards.learner.give_priorities(priorities(1.0))
    shards.ends[LEARNER].peer_lost(0)
    for _ in range(4):
        shards.learner.draw()
    shards.assemble()
    assert shards.draw() == 1
    shards.learner.give_priorities(priorities(2.0))
    assert shards.answers(1) == [2.0]

"""A learner scatters whole rounds, knows when they have arrived, and gives back memory of those it drops."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from cli.buffer.replays import JOB
from cli.learner.replay_line import BATCHES_LAYOUT

from tianji_cli.config.edges import HEADERS, PRIORITIES, SHARDS
from tianji_cli.roles.learner.data_source import PriorityOutbox
from tianji_cli.roles.learner.parallel.scatter import LAYOUT, RoundHeader, Scatter, ScatteringReplayClient
from tianji_cli.wire.batches import BatchArrays, priorities_layout
from tianji_transports.core import Transport
from tianji_transports.inproc import InprocTransport
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.ucx.transport import UcxTransport
from tianji_transports.wiring import Channel, Wiring

LEARNER, ONE, OTHER = 0, 1, 2
NBYTES = 64
HEADER = RoundHeader(env_steps=5, version=1, shards=1, synchronise=False, publishes=True)
_numbers = itertools.count()
Ends = dict[int, Transport]


def ends(engine: type[Transport], window: int) -> Iterator[Ends]:
    channels = [
        Channel(name, rank, (LEARNER,), nbytes, window)
        for rank in (ONE, OTHER)
        for name, nbytes in ((HEADERS, LAYOUT.nbytes), (SHARDS, NBYTES))
    ]
    wiring = Wiring(f"scatter-{os.getpid()}-{next(_numbers)}", tuple(channels), ())
    opened = {rank: engine(wiring, rank) for rank in (LEARNER, ONE, OTHER)}
    for end in opened.values():
        end.connect({rank: other.address for rank, other in opened.items()})
    yield opened
    for end in opened.values():
        end.close()


@pytest.fixture(params=[1, 2], ids=["window 1", "window 2"])
def asked(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """Endpoints that send only while they are asked something."""
    yield from ends(UcxTransport, request.param)


@pytest.fixture
def unasked() -> Iterator[Ends]:
    yield from ends(ShmTransport, 1)


def scattered(opened: Ends) -> Scatter:
    scatter = Scatter(opened[LEARNER], (ONE, OTHER), job=7, shards=1, nbytes=NBYTES)
    while scatter.loans() is None:
        for rank in (ONE, OTHER):
            assert opened[rank].probe(SHARDS) is None
        opened[LEARNER].wait(0.01)
    scatter.push(HEADER)
    return scatter


def is_claimed(scatter: Scatter) -> bool:
    return scatter.is_claimed


def claim(opened: Ends, rank: int) -> None:
    end = opened[rank]
    while (shard := end.probe(SHARDS)) is None:
        end.wait(0.01)
    shard.take(memoryview(bytearray(NBYTES)))


def test_a_round_is_claimed_when_every_follower_has_its_shard_and_that_ends_a_sleep(asked: Ends) -> None:
    scatter = scattered(asked)
    for rank in (ONE, OTHER):
        assert not is_claimed(scatter)
        claim(asked, rank)
        while not is_claimed(scatter) and rank == OTHER:
            assert asked[LEARNER].wait(20.0), "the claim wakes the learner"
    assert is_claimed(scatter)


def test_what_was_lent_while_a_claim_was_awaited_serves_the_next_round(asked: Ends) -> None:
    scatter = scattered(asked)
    for _ in range(3):
        assert not is_claimed(scatter)
        for rank in (ONE, OTHER):
            while (first := asked[rank].probe(HEADERS)) is None:
                asked[rank].wait(0.01)
            first.release()
            claim(asked, rank)
        while not is_claimed(scatter):
            asked[LEARNER].wait(0.01)
        while (loans := scatter.loans()) is None:
            asked[LEARNER].wait(0.01)
        assert [len(shards) for shards in loans] == [1, 1]
        scatter.push(HEADER)


def test_nobody_waits_for_claims_where_messages_go_by_themselves(unasked: Ends) -> None:
    assert is_claimed(scattered(unasked))


def test_memory_for_a_round_that_is_not_to_be_is_given_back(unasked: Ends) -> None:
    scatter = scattered(unasked)
    claim(unasked, ONE)
    assert scatter.loans() is None, "the other has its shard yet to claim, and there is no more room"
    scatter.abandon()
    loan = unasked[LEARNER].loan(ONE, SHARDS, NBYTES)
    assert loan, "what had been lent for the first is free again"
    loan.abandon()


class Mixed:
    """A store with a table, whose batches have keys in a row."""

    tables = (None,)

    def __init__(self) -> None:
        self.updated: list[tuple[int, float]] = []

    def may_draw(self, most_steps: int) -> bool:
        return most_steps > 0

    def draw(self, into: BatchArrays) -> None:
        into.key[:] = np.arange(into.key.size)

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.float32]) -> None:
        self.updated += zip(keys.tolist(), priorities.tolist(), strict=True)


def test_with_tables_each_learner_has_its_share_of_every_part_of_a_batch() -> None:
    size, shard = BATCHES_LAYOUT.size, replace(BATCHES_LAYOUT, size=BATCHES_LAYOUT.size // 2)
    answer = priorities_layout(shard.size)
    channels = (
        Channel(HEADERS, ONE, (LEARNER,), LAYOUT.nbytes, 2),
        Channel(SHARDS, ONE, (LEARNER,), shard.nbytes, 2),
        Channel(PRIORITIES, LEARNER, (ONE,), answer.nbytes, 2),
    )
    wiring = Wiring(f"mixed-{next(_numbers)}", channels)
    learner, follower = InprocTransport(wiring, LEARNER), InprocTransport(wiring, ONE)
    scatter, store = Scatter(learner, (ONE,), JOB, 1, shard.nbytes), Mixed()
    options = {"publish_every": 1, "prioritised": True, "in_step": False}
    client = ScatteringReplayClient(learner, store, BATCHES_LAYOUT, shard, scatter, **options)  # type: ignore[arg-type]
    assert client.send(0, 0, synchronise=False)
    own = client.draw()
    claim = follower.probe(SHARDS)
    assert own is not None
    assert claim is not None
    theirs = BatchArrays(shard, claim.view())
    assert own.key.tolist() == list(range(0, size, 2))
    assert theirs.key.tolist() == list(range(1, size, 2))
    priorities = np.arange(shard.size, dtype=np.float32)
    client.give_priorities(priorities)
    PriorityOutbox(follower, LEARNER, JOB, shard.size).send(theirs.key, priorities)
    client.send(0, 0, synchronise=False)
    assert sorted(store.updated) == [(key, key // 2) for key in range(size)]
    for end in (learner, follower):
        end.close()

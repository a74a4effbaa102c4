"""Garbage between a replay and its learner is counted, and harms nothing."""

from collections.abc import Callable

import numpy as np
import pytest
from cli.buffer.replays import JOB
from cli.learner.replay_line import BATCH, BATCHES_LAYOUT, BUFFER, EACH, LEARNER, Line, priorities

from tianji_algos.errors import DivergedError
from tianji_cli.config.edges import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.buffer.replay.samplers import PrioritisedSampler
from tianji_cli.wire.batches import BatchArrays, priorities_layout
from tianji_cli.wire.fragment import stats_layout
from tianji_cli.wire.records import Record


def broken_batch(change: Callable[[BatchArrays], None]) -> bytes:
    arrays = BatchArrays(BATCHES_LAYOUT)
    arrays.stamp(JOB)
    change(arrays)
    return bytes(arrays.memory)


def set_header(name: str, value: int) -> Callable[[BatchArrays], None]:
    def change(arrays: BatchArrays) -> None:
        arrays._record.header[name] = value

    return change


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        b"x" * BATCHES_LAYOUT.nbytes,
        bytes(BATCHES_LAYOUT.nbytes),
        bytes(BATCHES_LAYOUT.nbytes + 1),
        *(broken_batch(set_header(name, 99)) for name in ("magic", "schema", "job", "layout")),
    ],
)
@pytest.mark.parametrize("engine", ["inproc", "zmq"])
def test_what_is_no_batch_is_counted_and_the_next_batch_comes(
    line: Callable[..., Line], engine: str, payload: bytes
) -> None:
    one = line(engine)
    one.say(BUFFER, LEARNER, BATCHES, payload)
    one.send(10)
    for _ in range(3):
        arrays = one.batch()
        assert arrays.rejection(JOB) is None
    count, why = one.learner.report().rejected["batches"]
    assert count == 1
    assert why.startswith("a message from rank 0 is none of this job: it")


STATS = stats_layout(EACH)


def stats(samples: int, age_ns: int, returns: int, wins: int = 0) -> bytes:
    record = Record(STATS, memoryview(bytearray(STATS.nbytes)))
    record.stamp(JOB, 0, 0, 0, 0)
    for name, number in (("samples", samples), ("age_ns", age_ns), ("returns", returns), ("wins", wins)):
        record.header[name] = np.frombuffer(number.to_bytes(8, "little"), record.header[name].dtype)[0]
    return bytes(record.memory)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x" * 31,
        b"\xff" * STATS.nbytes,
        stats(10**6, 0, 0),
        stats(2**64 - 1, 0, 0),
        stats(1, 2**63, 0),
        stats(1, 0, 10**6),
        stats(1, 0, 1, wins=2),
        stats(16, 0, 0)[:32],
    ],
)
def test_what_is_no_arrival_is_counted_and_the_others_are_heard(
    line: Callable[..., Line], payload: bytes
) -> None:
    one = line()
    one.say(BUFFER, LEARNER, ARRIVALS, payload)
    one.send(3)
    one.buffer.turn()
    heard = one.learner.arrivals()
    assert sum(arrived.samples for arrived in heard) == one.store.limiter.received > 0
    assert len(heard) == 3
    count, why = one.learner.report().rejected["batches"]
    assert count == 1
    assert why.startswith("a message from rank 0 is none of this job: it")


def update(value: float, key: int = 0) -> bytes:
    layout = priorities_layout(BATCH)
    record = Record(layout, memoryview(bytearray(layout.nbytes)))
    record.stamp(JOB)
    record.arrays["key"][...], record.arrays["priority"][...] = key, value
    return bytes(record.memory)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x",
        update(1.0)[:-1],
        update(1.0) + b"x",
        update(float("nan")),
        update(float("inf")),
        update(float("-inf")),
        update(-1.0),
    ],
)
@pytest.mark.parametrize("in_step", [False, True])
def test_what_are_no_priorities_is_counted_and_changes_nothing(
    line: Callable[..., Line], payload: bytes, in_step: bool
) -> None:
    one = line(in_step=in_step)
    one.send(10)
    one.batch()
    sampler = one.store.replay.sampler
    assert isinstance(sampler, PrioritisedSampler)
    before = sampler.tree.leaves.copy()
    one.say(LEARNER, BUFFER, PRIORITIES, payload)
    for _ in range(5):
        one.buffer.turn()
    np.testing.assert_array_equal(sampler.tree.leaves, before)
    count, why = one.buffer.report().rejected["fragments"]
    assert count == 1
    assert "rank 1" in why
    if in_step:
        assert one.learner.draw() is None, "they are not what the batch waits for"
    one.learner.give_priorities(priorities(2.0))
    for _ in range(5):
        one.batch()
        one.learner.give_priorities(priorities(2.0))


@pytest.mark.parametrize("key", [-1, -(2**63), 2**63 - 1, 10**9])
def test_priorities_of_samples_that_do_not_exist_are_stale(line: Callable[..., Line], key: int) -> None:
    one = line()
    one.send(10)
    one.batch()
    sampler = one.store.replay.sampler
    assert isinstance(sampler, PrioritisedSampler)
    before = sampler.tree.leaves.copy()
    one.say(LEARNER, BUFFER, PRIORITIES, update(7.0, key))
    one.buffer.turn()
    np.testing.assert_array_equal(sampler.tree.leaves, before)
    assert one.buffer.report().stale_priorities == BATCH
    one.batch()


def test_a_loss_that_diverged_ends_the_learner_and_not_the_buffer(line: Callable[..., Line]) -> None:
    one = line()
    one.send(10)
    one.batch()
    with pytest.raises(DivergedError, match="the loss has diverged"):
        one.learner.give_priorities(priorities(float("nan")))

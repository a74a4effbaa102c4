"""A replay in an endpoint of its own and the learner's end of it, over real engines on one thread."""

import threading
from collections.abc import Callable

import numpy as np
import pytest
from cli.buffer.replays import ScriptedActor, open_replay
from cli.learner.replay_line import (
    ACTOR,
    ALPHA,
    BATCH,
    BATCHES_LAYOUT,
    BUFFER,
    EACH,
    LAYOUT,
    LEARNER,
    RHO,
    WARMUP,
    Line,
    priorities,
)

from tianji_cli.config.edges import ARRIVALS, BATCHES, FRAGMENTS
from tianji_cli.errors import RunFailed
from tianji_cli.roles.buffer import buffer as replay_buffer
from tianji_cli.roles.buffer.replay.samplers import SMALLEST_PRIORITY
from tianji_cli.wire.batches import BatchArrays


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_batches_arrive_as_they_were_drawn(line: Callable[..., Line], engine: str) -> None:
    one = line(engine, sampler="uniform")
    twin = open_replay(LAYOUT, 300)
    actor = ScriptedActor(LAYOUT, 0, seed=1)
    for _ in range(10):
        actor.fill(twin.free)
        twin.accept()
    one.send(10)
    while one.store.limiter.received < twin.accepted:
        # Drawn too early, a batch is from less than its twin's.
        claim = one.ends[BUFFER].probe("fragments")
        if claim is not None:
            one.store.admit(claim)
    expected = BatchArrays(BATCHES_LAYOUT)
    for _ in range(20):
        twin.sample(expected)
        drawn = one.batch()
        np.testing.assert_array_equal(drawn.key, expected.key)
        np.testing.assert_array_equal(drawn.version, expected.version)
        np.testing.assert_array_equal(drawn.age, expected.age)
        for name in ("observation", "next_observation", "reward", "discount", "weight"):
            np.testing.assert_array_equal(getattr(drawn.batch, name), getattr(expected.batch, name))
        np.testing.assert_array_equal(drawn.batch.fields["action"], expected.batch.fields["action"])
    assert one.learner.report().rejected["batches"] == (0, "")


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_priorities_take_effect_on_the_samples_of_the_batch_they_belong_to(
    line: Callable[..., Line], engine: str
) -> None:
    one = line(engine)
    one.send(10)
    for value in (3.0, 5.0, 0.0):
        keys = one.batch().key.copy()
        one.learner.give_priorities(priorities(value))
        expected = np.float32((value + SMALLEST_PRIORITY) ** ALPHA)
        for _ in range(1000):
            one.buffer.turn()
            if (one.leaves(keys) == expected).all():
                break
            one.ends[BUFFER].wait(0.01)
        np.testing.assert_array_equal(one.leaves(keys), expected)
        others = np.setdiff1d(np.arange(one.store.replay.ring.slot_steps), keys)
        assert not (one.leaves(others) == expected).any()


def test_in_step_the_next_batch_waits_for_the_priorities_of_the_last(line: Callable[..., Line]) -> None:
    one = line(in_step=True)
    one.send(10)
    for _ in range(5):
        keys = one.batch().key.copy()
        for _ in range(20):
            one.buffer.turn()
            assert one.learner.draw() is None
        one.learner.give_priorities(priorities(2.0))
        one.batch()
        assert (one.leaves(keys) == np.float32((2.0 + SMALLEST_PRIORITY) ** ALPHA)).all()
        one.learner.give_priorities(priorities(1.0))


def test_out_of_step_batches_come_without_any_priorities(line: Callable[..., Line]) -> None:
    one = line()
    one.send(10)
    for _ in range(50):
        one.batch()
    assert one.store.limiter.consumed >= 50 * BATCH


def test_no_more_batches_are_assembled_ahead_than_the_window_holds(line: Callable[..., Line]) -> None:
    one = line()
    one.send(10)
    for _ in range(50):
        one.buffer.turn()
    assert one.store.limiter.consumed == 2 * BATCH
    one.batch()
    for _ in range(50):
        one.buffer.turn()
    assert one.store.limiter.consumed == 3 * BATCH


def test_the_buffer_holds_the_balance_by_the_batches_it_has_assembled(line: Callable[..., Line]) -> None:
    one = line(tolerance=24.0)
    one.send(100)
    for _ in range(400):
        one.learner.arrivals()
        one.buffer.turn()
        one.learner.draw()
        if one.store.limiter.received >= WARMUP:
            assert abs(one.store.limiter.error) <= 24.0
    assert one.store.limiter.received > 0.6 * 100 * EACH
    assert one.store.limiter.actual == pytest.approx(RHO, rel=0.1)


# Arrivals and the end.


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_at_the_end_arrivals_are_complete_and_in_order_though_the_learner_was_not_listening(
    line: Callable[..., Line], engine: str
) -> None:
    one = line(engine, arrivals_ahead=4)
    sizes = []
    for _ in range(60):
        before = one.actor.before
        one.send(1)
        sizes.append(one.actor.before - before)
    assert len(set(sizes)) > 1
    heard: list[int] = []
    over = threading.Event()

    def listen() -> None:
        while not over.wait(0.001):
            heard.extend(arrived.samples for arrived in one.learner.arrivals())
        heard.extend(arrived.samples for arrived in one.learner.arrivals())

    one.buffer.wind_down()
    one.learner.wind_down()
    while one.store.limiter.received < sum(sizes):
        one.buffer.turn()
    learner = threading.Thread(target=listen)
    learner.start()
    try:
        one.buffer.stop()
        one.ends[BUFFER].close(5.0)
    finally:
        over.set()
        learner.join()
    assert heard == sizes
    assert one.store.limiter.received == sum(sizes)


def test_a_learner_that_does_not_listen_is_an_error_of_the_buffer(
    line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_buffer, "DELIVERY_LIMIT_S", 0.05)
    one = line(arrivals_ahead=4)
    one.send(10)
    one.buffer.wind_down()
    with pytest.raises(RunFailed, match="the learner has not heard of 10 fragments"):
        one.buffer.stop()


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_winding_down_with_batches_in_flight_leaks_nothing(line: Callable[..., Line], engine: str) -> None:
    one = line(engine)
    one.send(10)
    one.batch()  # The learner holds it,
    while one.ends[BUFFER].unconfirmed(LEARNER, BATCHES) < 2:  # and two are on their way.
        one.buffer.turn()
    while one.ends[ACTOR].unconfirmed(BUFFER, FRAGMENTS):
        one.buffer.turn()
    one.buffer.wind_down()
    one.learner.wind_down()
    consumed = one.store.limiter.consumed
    for _ in range(1000):
        one.learner.arrivals()
        one.buffer.turn()
        if not any(one.ends[BUFFER].unconfirmed(LEARNER, channel) for channel in (BATCHES, ARRIVALS)):
            break
        one.ends[BUFFER].wait(0.01)
    assert one.store.limiter.consumed == consumed, "no more batches are assembled"
    one.buffer.stop()
    one.learner.arrivals()
    for end in one.ends:
        report = end.close(drain_s=10.0)  # What was claimed is still to be heard of.
        assert not any(report.unconfirmed.values())
        assert not any(report.unclaimed.values())

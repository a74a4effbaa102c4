"""A replay in an endpoint of its own and the learner's end of it, over real engines on one thread."""

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cli.data.replays import JOB, ScriptedActor, fragment_layout, open_replay

from tianji_cli.data import priority_update
from tianji_cli.data.arrival import Arrival
from tianji_cli.data.balance import Balance
from tianji_cli.data.batches import BatchArrays, BatchLayout
from tianji_cli.data.replay_store import ReplayStore
from tianji_cli.data.samplers import SMALLEST_PRIORITY, PrioritisedSampler, SamplerName
from tianji_cli.roles import replay_buffer
from tianji_cli.roles.remote_replay import RemoteReplay
from tianji_cli.roles.replay_buffer import ARRIVALS, BATCHES, PRIORITIES, ReplayBuffer
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions, Full, Loan, Transport
from tianji_transports.wiring import Channel, Wiring

BUFFER, LEARNER, ACTOR = 0, 1, 2
LAYOUT = fragment_layout(4, 4)
EACH, BATCH, RHO, WARMUP = 16, 8, 2.0, 32
BATCHES_LAYOUT = BatchLayout.of(LAYOUT, BATCH, ("action",))
ALPHA = 0.6
_numbers = itertools.count()


class Line:
    """An actor that is played, a buffer with its replay, and the learner's end."""

    def __init__(
        self,
        engine: str = "inproc",
        *,
        sampler: SamplerName = "prioritised",
        in_step: bool = False,
        arrivals_ahead: int = 64,
        tolerance: float | None = None,
    ) -> None:
        arrivals, priorities = Arrival.nbytes(EACH), priority_update.nbytes(BATCH)
        wiring = Wiring(
            f"replay-{next(_numbers)}",
            (
                Channel("fragments", BUFFER, (ACTOR,), LAYOUT.nbytes, 200),
                Channel(BATCHES, LEARNER, (BUFFER,), BATCHES_LAYOUT.nbytes + 64, 2),
                Channel(ARRIVALS, LEARNER, (BUFFER,), arrivals + 64, arrivals_ahead),
                Channel(PRIORITIES, BUFFER, (LEARNER,), priorities + 64, 3),
            ),
        )
        hosts = dict.fromkeys((BUFFER, LEARNER, ACTOR), "here")
        self.ends: list[Transport] = [
            open_endpoint(engine, engine, hosts, wiring, rank, 0, EngineOptions()) for rank in hosts
        ]
        addresses = {rank: end.address for rank, end in enumerate(self.ends)}
        for end in self.ends:
            end.connect(addresses)
        self.actor = ScriptedActor(LAYOUT, 0, seed=1)
        self.store = ReplayStore(
            LAYOUT,
            JOB,
            {ACTOR: (0,)},
            replay=open_replay(LAYOUT, 300, sampler=sampler, priority_exponent=ALPHA),
            balance=Balance(RHO, WARMUP, tolerance),
        )
        self.buffer = ReplayBuffer(
            self.ends[BUFFER],
            "fragments",
            self.store,
            learner=LEARNER,
            batches=BATCHES_LAYOUT,
            keeper=None,
            in_step=in_step,
        )
        self.learner = RemoteReplay(
            self.ends[LEARNER], BUFFER, JOB, batches=BATCHES_LAYOUT, balance=Balance(RHO, WARMUP, tolerance)
        )

    def loan(self, sender: int, dest: int, channel: str, nbytes: int) -> Loan:
        """Get memory as soon as both ends have met."""
        for _ in range(1000):
            loan = self.ends[sender].loan(dest, channel, nbytes)
            if not isinstance(loan, Full):
                return loan
            for end in (self.ends[dest], self.ends[sender]):
                end.wait(0.005)
        pytest.fail("there is no room")

    def send(self, fragments: int) -> None:
        for _ in range(fragments):
            loan = self.loan(ACTOR, BUFFER, "fragments", LAYOUT.nbytes)
            self.actor.fill(loan.memory)
            self.ends[ACTOR].push(loan)

    def say(self, sender: int, dest: int, channel: str, payload: bytes) -> None:
        loan = self.loan(sender, dest, channel, len(payload))
        loan.memory[:] = payload
        self.ends[sender].push(loan)

    def batch(self) -> BatchArrays:
        """Let the buffer work until the learner has a batch."""
        for _ in range(1000):
            arrays = self.learner.draw()
            if arrays is not None:
                return arrays
            if not self.buffer.turn():
                self.ends[LEARNER].wait(0.01)
        pytest.fail("no batch comes")

    def leaves(self, handles: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        sampler = self.store.replay.sampler
        assert isinstance(sampler, PrioritisedSampler)
        return sampler.tree.leaves[handles % self.store.replay.ring.span]

    def close(self) -> list[Any]:
        return [end.close() for end in self.ends]


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    lines: list[Line] = []

    def open_line(*arguments: Any, **keywords: Any) -> Line:
        lines.append(Line(*arguments, **keywords))
        return lines[-1]

    yield open_line
    for one in lines:
        one.close()


def priorities(value: float) -> npt.NDArray[np.float32]:
    return np.full(BATCH, value, np.float32)


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_batches_arrive_as_they_were_drawn(line: Callable[..., Line], engine: str) -> None:
    one = line(engine, sampler="uniform")
    twin = open_replay(LAYOUT, 300)
    actor = ScriptedActor(LAYOUT, 0, seed=1)
    for _ in range(10):
        actor.fill(twin.free)
        twin.accept()
    one.send(10)
    while one.store.balance.received < twin.accepted:
        # Whoever draws too early draws from less than its twin.
        claim = one.ends[BUFFER].probe("fragments")
        if claim is not None:
            one.store.admit(claim)
    expected = BatchArrays(BATCHES_LAYOUT)
    for _ in range(20):
        twin.sample(expected)
        drawn = one.batch()
        np.testing.assert_array_equal(drawn.handle, expected.handle)
        np.testing.assert_array_equal(drawn.version, expected.version)
        np.testing.assert_array_equal(drawn.age, expected.age)
        for name in ("observation", "next_observation", "reward", "discount", "weight"):
            np.testing.assert_array_equal(getattr(drawn.batch, name), getattr(expected.batch, name))
        np.testing.assert_array_equal(drawn.batch.fields["action"], expected.batch.fields["action"])
    assert one.learner.balance.consumed == 20 * BATCH
    assert one.learner.report()["rejected"]["batches"] == [0, ""]


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_priorities_take_effect_on_the_samples_of_the_batch_they_belong_to(
    line: Callable[..., Line], engine: str
) -> None:
    one = line(engine)
    one.send(10)
    for value in (3.0, 5.0, 0.0):
        handles = one.batch().handle.copy()
        one.learner.give_priorities(priorities(value))
        expected = np.float32((value + SMALLEST_PRIORITY) ** ALPHA)
        for _ in range(1000):
            one.buffer.turn()
            if (one.leaves(handles) == expected).all():
                break
            one.ends[BUFFER].wait(0.01)
        np.testing.assert_array_equal(one.leaves(handles), expected)
        others = np.setdiff1d(np.arange(one.store.replay.ring.span), handles)
        assert not (one.leaves(others) == expected).any()


def test_in_step_the_next_batch_waits_for_the_priorities_of_the_last(line: Callable[..., Line]) -> None:
    one = line(in_step=True)
    one.send(10)
    for _ in range(5):
        handles = one.batch().handle.copy()
        for _ in range(20):
            one.buffer.turn()
            assert one.learner.draw() is None
        one.learner.give_priorities(priorities(2.0))
        one.batch()
        assert (one.leaves(handles) == np.float32((2.0 + SMALLEST_PRIORITY) ** ALPHA)).all()
        one.learner.give_priorities(priorities(1.0))


def test_out_of_step_batches_come_without_any_priorities(line: Callable[..., Line]) -> None:
    one = line()
    one.send(10)
    for _ in range(50):
        one.batch()
    assert one.learner.balance.consumed == 50 * BATCH


def test_no_more_batches_are_assembled_ahead_than_the_window_holds(line: Callable[..., Line]) -> None:
    one = line()
    one.send(10)
    for _ in range(50):
        one.buffer.turn()
    assert one.store.balance.consumed == 2 * BATCH
    one.batch()
    for _ in range(50):
        one.buffer.turn()
    assert one.store.balance.consumed == 3 * BATCH


def test_the_buffer_holds_the_balance_by_the_batches_it_has_assembled(line: Callable[..., Line]) -> None:
    one = line(tolerance=24.0)
    one.send(100)
    for _ in range(400):
        one.learner.arrivals()
        one.buffer.turn()
        one.learner.draw()
        if one.store.balance.received >= WARMUP:
            assert abs(one.store.balance.lead) <= 24.0
    assert one.store.balance.received > 0.6 * 100 * EACH
    assert one.learner.balance.actual == pytest.approx(RHO, rel=0.1)


# Garbage.


def broken_batch(change: Callable[[BatchArrays], None]) -> bytes:
    arrays = BatchArrays(BATCHES_LAYOUT)
    arrays.stamp(JOB)
    change(arrays)
    return bytes(arrays.memory)


def set_header(name: str, value: int) -> Callable[[BatchArrays], None]:
    def change(arrays: BatchArrays) -> None:
        arrays.header[name] = value

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
        assert arrays.refusal(JOB) is None
    count, why = one.learner.report()["rejected"]["batches"]
    assert count == 1
    assert why.startswith("a message from rank 0 is none of this job: it")
    assert one.learner.balance.consumed == 3 * BATCH


def arrival(samples: int, age_ns: int, returns: int, nbytes: int) -> bytes:
    header = samples.to_bytes(8, "little") + age_ns.to_bytes(8, "little") + returns.to_bytes(8, "little")
    return (header + bytes(1000))[:nbytes]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"x" * 23,
        b"\xff" * Arrival.nbytes(EACH),
        arrival(10**6, 0, 0, Arrival.nbytes(EACH)),
        arrival(2**64 - 1, 0, 0, Arrival.nbytes(EACH)),
        arrival(1, 2**63, 0, Arrival.nbytes(EACH)),
        arrival(1, 0, 10**6, Arrival.nbytes(EACH)),
        arrival(16, 0, 0, 24),
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
    assert sum(arrived.samples for arrived in heard) == one.store.balance.received > 0
    assert len(heard) == 3
    assert one.learner.balance.received == one.store.balance.received
    count, why = one.learner.report()["rejected"]["batches"]
    assert (count, why) == (1, "a message from rank 0 is none of this job: it is no arrival")


def update(value: float, handle: int = 0) -> bytes:
    memory = memoryview(bytearray(priority_update.nbytes(BATCH)))
    message = np.ndarray(BATCH, [("handle", "<i8"), ("priority", "<f4")], memory)
    message["handle"], message["priority"] = handle, value
    return bytes(memory)


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
    count, why = one.buffer.report()["rejected"]["fragments"]
    assert count == 1
    assert "rank 1" in why
    if in_step:
        assert one.learner.draw() is None, "they are not what the batch waits for"
    one.learner.give_priorities(priorities(2.0))
    for _ in range(5):
        one.batch()
        one.learner.give_priorities(priorities(2.0))


@pytest.mark.parametrize("handle", [-1, -(2**63), 2**63 - 1, 10**9])
def test_priorities_of_samples_that_nobody_has_are_stale(line: Callable[..., Line], handle: int) -> None:
    one = line()
    one.send(10)
    one.batch()
    sampler = one.store.replay.sampler
    assert isinstance(sampler, PrioritisedSampler)
    before = sampler.tree.leaves.copy()
    one.say(LEARNER, BUFFER, PRIORITIES, update(7.0, handle))
    one.buffer.turn()
    np.testing.assert_array_equal(sampler.tree.leaves, before)
    assert one.buffer.report()["stale_priorities"] == BATCH
    one.batch()


def test_a_loss_that_diverged_ends_the_learner_and_not_the_buffer(line: Callable[..., Line]) -> None:
    one = line()
    one.send(10)
    one.batch()
    with pytest.raises(ValueError, match="the loss has diverged"):
        one.learner.give_priorities(priorities(float("nan")))


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
    while one.store.balance.received < sum(sizes):
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
    assert one.learner.balance.received == one.store.balance.received == sum(sizes)


def test_a_learner_that_does_not_listen_is_an_error_of_the_buffer(
    line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_buffer, "TELL_LIMIT_S", 0.05)
    one = line(arrivals_ahead=4)
    one.send(10)
    one.buffer.wind_down()
    with pytest.raises(TimeoutError, match="the learner has not heard of 6 fragments"):
        one.buffer.stop()


@pytest.mark.parametrize("engine", ["inproc", "shm", "zmq"])
def test_winding_down_with_batches_in_flight_leaks_nothing(line: Callable[..., Line], engine: str) -> None:
    one = line(engine)
    one.send(10)
    one.batch()  # The learner holds it,
    while one.ends[BUFFER].unconfirmed(LEARNER, BATCHES) < 2:  # and two are on their way.
        one.buffer.turn()
    one.buffer.wind_down()
    one.learner.wind_down()
    consumed = one.store.balance.consumed
    for _ in range(1000):
        one.learner.arrivals()
        one.buffer.turn()
        if not one.ends[BUFFER].unconfirmed(LEARNER, BATCHES):
            break
        one.ends[BUFFER].wait(0.01)
    assert one.store.balance.consumed == consumed, "no more batches are assembled"
    one.buffer.stop()
    one.learner.arrivals()
    for report in one.close():
        assert not any(report.unconfirmed.values())
        assert not any(report.unclaimed.values())

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.buffer.replays import JOB, ScriptedActor, fragment_layout, open_replay

from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment
from tianji_cli.wire.reports import ReplayFill
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

EXAMPLES = str(Path(__file__).parents[3] / "docs" / "examples")
LAYOUT = fragment_layout(4, 3)
EACH, BATCH, RHO, WARMUP = 12, 24, 2.0, 20
_numbers = itertools.count()


class Line:
    """An actor of rank 1, and the store of rank 0."""

    def __init__(
        self, tolerance: float | None = 24.0, end_rate: float = 0.0, sampler: str = "uniform"
    ) -> None:
        channel = Channel("fragments", 0, (1,), LAYOUT.nbytes + 64, 100)
        wiring = Wiring(f"store-{next(_numbers)}", (channel,))
        self.receiver, self.sender = InprocTransport(wiring, 0), InprocTransport(wiring, 1)
        self.actor = ScriptedActor(LAYOUT, 0, seed=1, end_rate=end_rate)
        self.store = ReplayStore(
            LAYOUT,
            JOB,
            {1: (0,)},
            replay=open_replay(LAYOUT, 20, sampler=sampler),
            limiter=RateLimiter(RHO, WARMUP, tolerance),
        )

    def send(self, payload: bytes | None = None) -> None:
        loan = self.sender.loan(0, "fragments", LAYOUT.nbytes if payload is None else len(payload))
        assert loan is not FULL
        if payload is None:
            self.actor.fill(loan.memory)
        else:
            loan.memory[:] = payload
        self.sender.push(loan)

    def admit(self) -> None:
        claim = self.receiver.probe("fragments")
        assert claim is not None
        self.store.admit(claim)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def line() -> Iterator[Callable[..., Line]]:
    with ExitStack() as lines:
        yield lambda *arguments, **keywords: lines.enter_context(closing(Line(*arguments, **keywords)))


def test_fragments_are_received_until_they_are_ahead_and_again_once_batches_were_drawn(
    line: Callable[..., Line],
) -> None:
    one = line()
    arrays = BatchArrays(BatchLayout.of(LAYOUT, BATCH, ("action",)))
    received = 0
    while not one.store.full:
        assert not one.store.may_draw(BATCH) or received >= WARMUP
        one.send()
        one.admit()
        received += EACH
    assert WARMUP + 24 - EACH < received <= WARMUP + 24
    assert one.store.may_draw(BATCH)
    one.store.draw(arrays)
    assert not one.store.full
    while one.store.may_draw(BATCH):
        one.store.draw(arrays)
    assert arrays.rejection(JOB) is None
    assert one.store.limiter.consumed == arrays.batch.reward.size * 3
    assert not one.store.full


@pytest.mark.parametrize("age_ns", [-1, -(2**63), 2**63 - 1])
def test_a_fragment_of_an_impossible_age_is_refused(line: Callable[..., Line], age_ns: int) -> None:
    one = line()
    memory = memoryview(bytearray(LAYOUT.nbytes))
    one.actor.fill(memory)
    Fragment(LAYOUT, memory).header["age_ns"] = age_ns
    one.send(bytes(memory))
    one.admit()
    assert (one.store.validator.rejected.count, one.store.limiter.received) == (1, 0)
    assert "claims an age" in one.store.validator.rejected.first


def test_a_sampler_of_ones_own_leaves_fragments_out_which_count_as_dropped(
    line: Callable[..., Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    one = line(sampler="recent:RewardedSampler")
    memory = memoryview(bytearray(LAYOUT.nbytes))
    for number in range(30):
        one.actor.fill(memory)
        Fragment(LAYOUT, memory).fields["reward"][...] = number % 3 == 0
        one.send(bytes(memory))
        one.admit()
    reception = one.store.validator.receptions[0, 0]
    taken = one.store.replay.accepted // EACH
    assert 10 < taken < 20, "those with a reward, and few of the others"
    assert (reception.samples, reception.dropped) == (taken * EACH, (30 - taken) * EACH)
    assert (one.store.limiter.received, len(one.store.arrivals())) == (taken * EACH, taken)


def test_when_it_winds_down_whatever_comes_is_received(line: Callable[..., Line]) -> None:
    one = line()
    one.send()
    one.admit()
    one.store.limiter.received = 10**6
    assert one.store.full
    one.store.wind_down()
    for _ in range(30):
        assert not one.store.full
        one.send()
        one.admit()
    assert one.store.validator.receptions[0, 0].samples == 31 * EACH


def test_what_is_no_fragment_leaves_no_trace_but_its_count(line: Callable[..., Line]) -> None:
    one = line(tolerance=None)
    one.send()
    one.admit()
    memory = bytearray(LAYOUT.nbytes)
    ScriptedActor(LAYOUT, 0, seed=2).fill(memoryview(memory))  # Number 0 again.
    payloads = (b"", b"x", bytes(LAYOUT.nbytes), b"\xff" * LAYOUT.nbytes, b"y" * (LAYOUT.nbytes + 1), memory)
    for payload in payloads:
        one.send(bytes(payload))
        one.admit()
    assert one.store.validator.rejected.count == len(payloads)
    assert one.store.validator.rejected.first.startswith("a message from rank 1")
    assert one.store.replay.size == one.store.limiter.received == EACH
    assert len(one.store.arrivals()) == 1
    one.send()
    one.admit()
    assert one.store.replay.size == 2 * EACH
    assert one.sender.unconfirmed(0, "fragments") == 0


def test_arrivals_are_told_once_and_in_order(line: Callable[..., Line]) -> None:
    one = line(tolerance=None, end_rate=0.4)
    sizes = []
    for _ in range(5):
        before = one.actor.before
        one.send()
        sizes.append(one.actor.before - before)
        one.admit()
    assert len(set(sizes)) > 1, "masked steps are no samples"
    assert [arrival.samples for arrival in one.store.arrivals()] == sizes
    assert one.store.arrivals() == []
    assert one.store.limiter.received == sum(sizes) == one.store.replay.size


def test_the_report_says_how_full_the_replay_is_and_how_its_samples_were_used(
    line: Callable[..., Line],
) -> None:
    one = line(tolerance=None)
    assert one.store.report().uses is None
    for _ in range(2):
        one.send()
        one.admit()
    one.store.draw(BatchArrays(BatchLayout.of(LAYOUT, BATCH, ("action",))))
    one.store.replay.update_priorities(np.array([10**9]), np.ones(1, np.float32))
    report = one.store.report()
    assert report.replay == ReplayFill(24, 240, one.store.replay.nbytes)
    assert report.uses is not None
    assert report.uses.mean == BATCH / 24
    assert report.stale_priorities == 1


def test_the_ratio_is_that_since_the_warm_up_and_what_comes_after_training_does_not_change_it(
    line: Callable[..., Line],
) -> None:
    one = line(tolerance=None)
    for _ in range(3):
        one.send()
        one.admit()
    assert one.store.report().ratio is None
    one.store.draw(BatchArrays(BatchLayout.of(LAYOUT, BATCH, ("action",))))
    assert one.store.report().ratio == BATCH / (3 * EACH - WARMUP)
    one.store.wind_down()
    one.send()
    one.admit()
    assert one.store.report().ratio == BATCH / (3 * EACH - WARMUP)


def test_a_table_has_its_rows_of_each_batch_and_counts_for_nothing_else() -> None:
    channel = Channel("fragments", 0, (1, 2), LAYOUT.nbytes, 100)
    wiring = Wiring(f"store-{next(_numbers)}", (channel,))
    receiver, *senders = (InprocTransport(wiring, rank) for rank in range(3))
    prioritised = {"sampler": "prioritised", "priority_exponent": 1.0}
    table = open_replay(LAYOUT, 5, **prioritised)
    replay, limiter = open_replay(LAYOUT, 20, **prioritised), RateLimiter(RHO, WARMUP, None)
    known = {1: (0,), 2: (7,)}
    tables: dict[str, Any] = {"tables": [table], "sources": {7: 0}, "rows": (18, 6)}
    store = ReplayStore(LAYOUT, JOB, known, replay=replay, limiter=limiter, **tables)
    actors = [ScriptedActor(LAYOUT, number, seed=1) for number in (0, 7)]

    def send(which: int, fragments: int) -> None:
        for _ in range(fragments):
            loan = senders[which].loan(0, "fragments", LAYOUT.nbytes)
            assert loan is not FULL
            actors[which].fill(loan.memory)
            senders[which].push(loan)
            claim = receiver.probe("fragments")
            assert claim is not None
            store.admit(claim)

    send(0, 3)
    assert not store.may_draw(BATCH), "the table is empty"
    send(1, 9)
    assert limiter.received == actors[0].before
    samples = {actor: reception.samples for (actor, _), reception in store.validator.receptions.items()}
    assert samples == {0: actors[0].before, 7: 0}
    assert store.validator.rejected.count == 0
    actors[1].sequence -= 1
    send(1, 1)
    assert store.validator.rejected.count == 1, "what comes twice is said, as an actor's is"
    assert len(store.arrivals()) == 3
    assert table.size <= 5 * EACH, "its oldest have made room"
    assert store.may_draw(BATCH)
    arrays = BatchArrays(BatchLayout.of(LAYOUT, BATCH, ("action",)))
    store.draw(arrays)
    assert limiter.consumed == 18
    of_replay = {bytes(memory) for memory in replay.memory.field(LAYOUT.fields[0]).reshape(-1, 2)}
    of_table = {bytes(memory) for memory in table.memory.field(LAYOUT.fields[0]).reshape(-1, 2)}
    drawn = [bytes(row) for row in arrays.batch.observation]
    assert set(drawn[:18]) <= of_replay
    assert set(drawn[18:]) <= of_table
    store.update_priorities(arrays.key, np.arange(1.0, BATCH + 1, dtype=np.float32))
    assert replay.stale_updates == table.stale_updates == 0
    alone = int(arrays.key[18])
    store.update_priorities(np.array([alone, -1]), np.array([1e9, 1.0], np.float32))
    assert replay.stale_updates == 0, "a key says which table its sample is of"
    store.draw(arrays)
    assert set(arrays.key[18:].tolist()) == {alone}, "the table's priorities are its own"
    assert len(set(arrays.key[:18].tolist())) > 1
    for end in (receiver, *senders):
        end.close()


def test_nothing_is_held_back_while_a_table_is_empty_since_its_fragments_come_the_same_way() -> None:
    wiring = Wiring(f"store-{next(_numbers)}", (Channel("fragments", 0, (1, 2), LAYOUT.nbytes, 100),))
    receiver, sender = InprocTransport(wiring, 0), InprocTransport(wiring, 1)
    table = open_replay(LAYOUT, 5)
    limiter, actor = RateLimiter(RHO, 0, 24.0), ScriptedActor(LAYOUT, 0, seed=1)
    store = ReplayStore(
        LAYOUT, JOB, {1: (0,)}, replay=open_replay(LAYOUT, 20), limiter=limiter, tables=[table], rows=(18, 6)
    )
    for _ in range(10):
        assert not store.full
        loan = sender.loan(0, "fragments", LAYOUT.nbytes)
        assert loan is not FULL
        actor.fill(loan.memory)
        sender.push(loan)
        claim = receiver.probe("fragments")
        assert claim is not None
        store.admit(claim)
    assert not store.may_draw(BATCH)
    for end in (receiver, sender):
        end.close()

"""The buffer of a replay by itself: what it saves, and when."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.buffer.replays import JOB, ScriptedActor, fragment_layout, open_replay

from tianji_cli.plan.graph import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.buffer.buffer import ReplayBuffer
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay import file as replay_keeper
from tianji_cli.roles.buffer.replay.file import ReplayKeeper
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.wire.batches import BatchLayout, priorities_layout
from tianji_cli.wire.fragment import stats_layout
from tianji_transports.core import FULL
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Wiring

BUFFER, LEARNER, ACTOR = 0, 1, 2
LAYOUT = fragment_layout(4, 4)
EACH, BATCH = 16, 8
BATCHES_LAYOUT = BatchLayout.of(LAYOUT, BATCH, ("action",))
_numbers = itertools.count()


class Line:
    """A buffer whose learner only listens."""

    def __init__(self, directory: Path, *, saves: bool = True, warmup: int = 32) -> None:
        wiring = Wiring(
            f"buffer-{next(_numbers)}",
            (
                Channel("fragments", BUFFER, (ACTOR,), LAYOUT.nbytes, 200),
                Channel(BATCHES, LEARNER, (BUFFER,), BATCHES_LAYOUT.nbytes, 2),
                Channel(ARRIVALS, LEARNER, (BUFFER,), stats_layout(EACH).nbytes, 64),
                Channel(PRIORITIES, BUFFER, (LEARNER,), priorities_layout(BATCH).nbytes, 3),
            ),
        )
        self.ends = [InprocTransport(wiring, rank) for rank in (BUFFER, LEARNER, ACTOR)]
        self.actor = ScriptedActor(LAYOUT, 0, seed=1, end_rate=0.0)
        self.replay = open_replay(LAYOUT, 10)
        self.store = ReplayStore(
            LAYOUT, JOB, {ACTOR: (0,)}, replay=self.replay, limiter=RateLimiter(2.0, warmup, 24.0)
        )
        self.directory = directory
        self.buffer = ReplayBuffer(
            self.ends[BUFFER],
            "fragments",
            self.store,
            learner=LEARNER,
            batches=BATCHES_LAYOUT,
            keeper=ReplayKeeper(self.replay, directory, 60.0) if saves else None,
            in_step=False,
        )

    def send(self, fragments: int) -> None:
        for _ in range(fragments):
            loan = self.ends[ACTOR].loan(BUFFER, "fragments", LAYOUT.nbytes)
            assert loan is not FULL
            self.actor.fill(loan.memory)
            self.ends[ACTOR].push(loan)

    def saved(self) -> int:
        """Samples in the last copy."""
        replay = open_replay(LAYOUT, 10)
        return replay.size if ReplayKeeper(replay, self.directory, 60.0).restore() else 0


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Callable[..., Line]]:
    lines: list[Line] = []

    def open_line(**keywords: Any) -> Line:
        lines.append(Line(tmp_path / "replay", **keywords))
        return lines[-1]

    yield open_line
    for one in lines:
        for end in one.ends:
            end.close()


def test_fragments_beyond_the_balance_stay_with_their_sender(line: Callable[..., Line]) -> None:
    one = line()
    one.send(20)
    for _ in range(5):
        one.buffer.turn()
    received = one.store.limiter.received
    # Two batches wait for the learner, who takes none: 8 env steps.
    assert 32 + 8 + 24 - EACH < received <= 32 + 8 + 24
    assert one.ends[ACTOR].unconfirmed(BUFFER, "fragments") == 20 - received // EACH


def test_nothing_is_assembled_during_the_warm_up(line: Callable[..., Line]) -> None:
    one = line(warmup=100)
    one.send(6)
    for _ in range(3):
        one.buffer.turn()
    assert one.store.limiter.consumed == 0
    assert one.ends[LEARNER].probe(BATCHES) is None
    one.send(1)
    one.buffer.turn()
    assert one.store.limiter.consumed > 0


def test_a_turn_says_whether_there_was_anything_to_do(line: Callable[..., Line]) -> None:
    one = line()
    assert not one.buffer.turn()
    one.send(1)
    assert one.buffer.turn()
    assert not one.buffer.turn()


def test_the_replay_is_saved_when_it_is_time(
    line: Callable[..., Line], work: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(replay_keeper.time, "monotonic", lambda: now[0])
    one = line()
    one.send(2)
    work(one.buffer, 5)
    assert one.saved() == 0
    now[0] += 60.0
    work(one.buffer)
    assert one.saved() == 2 * EACH


def test_what_comes_last_is_saved_too_and_told(line: Callable[..., Line]) -> None:
    one = line()
    one.send(20)
    one.buffer.wind_down()
    one.buffer.turn()
    told = 0
    while (claim := one.ends[LEARNER].probe(ARRIVALS)) is not None:
        claim.release()
        told += 1
    assert told == 20
    one.buffer.stop()
    assert one.ends[ACTOR].unconfirmed(BUFFER, "fragments") == 0
    assert one.store.limiter.received == 20 * EACH
    assert one.saved() == 0
    one.buffer.keep()
    assert one.saved() == one.replay.size == 10 * EACH


def test_a_replay_that_is_not_to_be_saved_is_not(line: Callable[..., Line]) -> None:
    one = line(saves=False)
    assert one.buffer.triggers == ()
    one.buffer.stop()
    one.buffer.keep()
    assert not one.directory.exists()

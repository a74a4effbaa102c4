"""A replay's buffer by itself: what it saves, and when."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cli.buffer.replays import open_replay
from cli.learner.replay_line import ACTOR, BUFFER, EACH, LAYOUT, LEARNER, Line

from tianji_cli.config.edges import ARRIVALS, BATCHES
from tianji_cli.files import directories
from tianji_cli.roles.buffer.replay.file import ReplayKeeper

Open = Callable[..., Line]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Open]:
    """Lines whose learner only listens, with a replay of 10 fragments that is saved."""
    lines: list[Line] = []

    def open_line(*, copies: Path | None = tmp_path / "replay", **options: Any) -> Line:
        lines.append(Line(tolerance=24.0, fragments=10, end_rate=0.0, copies=copies, **options))
        return lines[-1]

    yield open_line
    for one in lines:
        one.close()


def saved(directory: Path) -> int:
    """Samples in the last copy."""
    replay = open_replay(LAYOUT, 10, sampler="prioritised")
    return replay.size if ReplayKeeper(replay, directory / "replay", 60.0).restore() else 0


def test_fragments_beyond_the_balance_stay_with_their_sender(line: Open) -> None:
    one = line()
    one.send(20)
    for _ in range(5):
        one.buffer.turn()
    received = one.store.limiter.received
    # Two batches wait for the learner, who takes none: 8 env steps.
    assert 32 + 8 + 24 - EACH < received <= 32 + 8 + 24
    assert one.ends[ACTOR].unconfirmed(BUFFER, "fragments") == 20 - received // EACH


def test_nothing_is_assembled_during_the_warm_up(line: Open) -> None:
    one = line(warmup=100)
    one.send(6)
    for _ in range(3):
        one.buffer.turn()
    assert one.store.limiter.consumed == 0
    assert one.ends[LEARNER].probe(BATCHES) is None
    one.send(1)
    one.buffer.turn()
    assert one.store.limiter.consumed > 0


def test_a_turn_says_whether_there_was_anything_to_do(line: Open) -> None:
    one = line()
    assert not one.buffer.turn()
    one.send(1)
    assert one.buffer.turn()
    assert not one.buffer.turn()


def test_the_replay_is_saved_when_it_is_time(
    line: Open, work: Callable[..., bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(directories.time, "monotonic", lambda: now[0])
    one = line()
    one.send(2)
    work(one.buffer, 5)
    assert saved(tmp_path) == 0
    now[0] += 60.0
    work(one.buffer)
    assert saved(tmp_path) == 2 * EACH


def test_fragments_that_come_last_are_saved_and_announced(line: Open, tmp_path: Path) -> None:
    one = line()
    one.send(20)
    one.buffer.wind_down()
    one.buffer.turn()
    announced = 0
    while (claim := one.ends[LEARNER].probe(ARRIVALS)) is not None:
        claim.release()
        announced += 1
    assert announced == 20
    one.buffer.stop()
    assert one.ends[ACTOR].unconfirmed(BUFFER, "fragments") == 0
    assert one.store.limiter.received == 20 * EACH
    assert saved(tmp_path) == 0
    one.buffer.keep()
    assert saved(tmp_path) == one.store.replay.size == 10 * EACH


def test_a_replay_that_is_not_to_be_saved_is_not(line: Open, tmp_path: Path) -> None:
    one = line(copies=None)
    assert one.buffer.triggers == ()
    one.buffer.stop()
    one.buffer.keep()
    assert not (tmp_path / "replay").exists()

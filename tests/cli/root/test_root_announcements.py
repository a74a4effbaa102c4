"""What the root says of workers that are not there yet."""

from types import SimpleNamespace
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.observers import announcements
from tianji_cli.root.observers.announcements import Announcements
from tianji_cli.telemetry.snapshot import RoleStatus


def open_announcements(said: list[str], actors: int) -> Announcements:
    config = load_config("configs/ppo_cartpole.toml", [f"distribution.actor.num={actors}"])
    return Announcements(make_plan(config, [Host("here", (0, 1))]), said.append)


def test_whoever_takes_long_to_start_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    one = open_announcements(said, actors=5)
    one.check_start({1, 2})
    assert said == []
    monkeypatch.setattr(announcements, "SLOW_START_S", -1.0)
    one.check_start({3, 2})
    one.check_start({2})
    assert said == ["not ready yet after -1 s: actor 0 (group 0), actor 1 (group 0)"]


def test_of_many_that_take_long_the_first_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "SLOW_START_S", -1.0)
    said: list[str] = []
    open_announcements(said, actors=5).check_start({2, 3, 4, 5, 6})
    (words,) = said
    assert words.endswith(": actor 0 (group 0), actor 1 (group 0), actor 2 (group 0) and 2 more")


def test_no_time_counts_in_which_an_examiner_or_the_root_sleeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(announcements.time, "monotonic", lambda: now_s)
    said: list[str] = []
    one = open_announcements(said, actors=1)

    def hanging(*, until_s: float, is_suspended: bool = False) -> list[int]:
        nonlocal now_s
        found: dict[int, str] = {}
        while now_s < until_s and not found:
            now_s += 1.0
            found = one.check_hanging({1: 85.0}, lambda _rank: is_suspended)
            one.check_training([1], snapshot_of(0))
        return list(found)

    assert hanging(until_s=50.0) == []
    now_s = 200.0
    assert hanging(until_s=260.0) == [], "the root was asleep"
    assert hanging(until_s=400.0, is_suspended=True) == []
    assert hanging(until_s=475.0) == [], "it was asleep"
    assert hanging(until_s=490.0) == [1]
    assert said[-1].endswith("does not come back from a step, an action or a picture after 85 s: ending it")


def test_a_process_hangs_that_is_silent_for_ten_times_as_long_as_ever_and_for_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(announcements.time, "monotonic", lambda: now_s)
    one = open_announcements([], actors=2)
    now_s = 8.0
    one.note_alive(1, 7.0)
    found = {}
    while now_s < 100.0:
        now_s += 1.0
        for rank, how in one.check_hanging({1: 60.0, 2: 60.0}, lambda _rank: False).items():
            found[rank] = (now_s, how)
        assert one.stuck == (None if now_s <= 10.0 else 2 if now_s <= 78.0 else 1)
        one.note_alive(2, 1.0) if now_s > 61.0 else None
    words = "in a step, an action or a picture"
    assert found == {2: (61.0, f"hung for 60 s {words}"), 1: (79.0, f"hung for 70 s {words}")}
    assert one.stuck == 1
    one.check_training((), snapshot_of(1))
    assert one.stuck is None, "something was made since"


def snapshot_of(env_steps: int, updates: int = 0) -> Any:
    learner = SimpleNamespace(env_steps=env_steps, updates=updates)
    return SimpleNamespace(learner=learner, produced=env_steps)


def test_a_training_in_which_nothing_goes_on_says_so_once_and_again_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(announcements.time, "monotonic", lambda: now_s)
    said: list[str] = []
    one = open_announcements(said, actors=1)
    for second, steps, updates in ((0, 0, 0), (29, 0, 0), (58, 5, 0), (87, 5, 1), (116, 5, 1)):
        now_s = float(second)
        one.check_training((), snapshot_of(steps, updates))
    assert said == [], "something was made or learnt in every half minute"
    for second in (118, 200):
        now_s = float(second)
        one.check_training((), snapshot_of(5, 1))
    assert said == ["no environment step and no update for 30 s"]
    one.check_training((), snapshot_of(6, 1))
    assert said[1:] == ["training goes on"]


@pytest.mark.parametrize(
    ("rank", "grows_by", "said_of"),
    [(2, 0.05, "actor 0 (group 0)"), (2, 0.001, ""), (2, -0.01, ""), (1, 0.05, "")],
    ids=["an actor that grows", "one that grows little", "one that shrinks", "a learner whose replay fills"],
)
def test_a_memory_that_grows_steadily_is_named(
    monkeypatch: pytest.MonkeyPatch, rank: int, grows_by: float, said_of: str
) -> None:
    now_s = 0.0
    monkeypatch.setattr(announcements.time, "monotonic", lambda: now_s)
    said: list[str] = []
    one = open_announcements(said, actors=1)
    for minute in range(19):
        now_s = 60.0 * minute
        one.check_memory(
            [RoleStatus(rank, "actor", 0, "here", 7, 0.5, memory=int(1e9 * (1 + grows_by * minute)))]
        )
        assert not said or minute >= announcements.GROWING - 1
    expected = f"the memory of {said_of} grows steadily: 1.00 GB 9 min ago, 1.45 GB now"
    assert [line.partition(";")[0] for line in said] == ([expected] if said_of else [])

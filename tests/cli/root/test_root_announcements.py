"""Announcements of workers that are not there yet."""

import pytest
from cli.root.stub_job import stub_job

from tianji_cli.config.loader import load_config
from tianji_cli.plan.plan import Host, make_plan
from tianji_cli.root.observers import announcements
from tianji_cli.root.observers.announcements import Announcements
from tianji_cli.telemetry.snapshot import RoleStatus


def open_announcements(said: list[str], actors: int) -> Announcements:
    config = load_config("configs/ppo_cartpole.toml", [f"distribution.actor.num={actors}"])
    return Announcements(stub_job(make_plan(config, [Host("here", (0, 1))]), said))


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

"""What the root says of workers that are not there yet."""

import pytest

from tianji_cli.cluster.plan import Host, make_plan
from tianji_cli.config.loader import load_config
from tianji_cli.roles import announcements
from tianji_cli.roles.announcements import Announcements


def open_announcements(said: list[str], actors: int) -> Announcements:
    config = load_config("configs/ppo_cartpole.toml", [f"distribution.actor.num={actors}"])
    return Announcements(make_plan(config, [Host("here", (0, 1))]), said.append)


def test_whoever_takes_long_to_start_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    one = open_announcements(said, actors=5)
    one.mind_start({1, 2})
    assert said == []
    monkeypatch.setattr(announcements, "SLOW_START_S", -1.0)
    one.mind_start({3, 2})
    one.mind_start({2})
    assert said == ["not ready yet after -1 s: actor 0 (group 0), actor 1 (group 0)"]


def test_of_many_that_take_long_the_first_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements, "SLOW_START_S", -1.0)
    said: list[str] = []
    open_announcements(said, actors=5).mind_start({2, 3, 4, 5, 6})
    (words,) = said
    assert words.endswith(": actor 0 (group 0), actor 1 (group 0), actor 2 (group 0) and 2 more")

"""Each copy of an environment, and what is put around it, can know its number."""

from __future__ import annotations

import os
import socket
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.gym import GymFactory
from tianji_envs.options import numbered
from tianji_envs.serial import UserFactory
from tianji_envs.wrappers import Wrapper

given: list[Any] = []
"""Options of each wrapper and environment that was made, with the number of its copy."""


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps its options."""

    def __init__(self, env: Any = None, **options: Any) -> None:
        super().__init__(env or gymnasium.make("CartPole-v1"))
        given.append(options | {"COPY": os.environ["TIANJI_COPY"]})


def asks(index: int, speed: int = 1) -> Recorder:
    return Recorder(index=index, speed=speed)


class Asks(Recorder):
    def __init__(self, index: int, speed: int = 1) -> None:
        super().__init__(index=index, speed=speed)


@pytest.fixture(autouse=True)
def of_the_fourth_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    given.clear()
    for name, number in (("ACTOR", "3"), ("COPIES", "2"), ("COPY", "0")):
        monkeypatch.setenv(f"TIANJI_{name}", number)


def test_options_and_keywords_of_wrappers_have_the_numbers_of_their_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Recorder-v0", EnvSpec("Recorder-v0", entry_point=Recorder))
    options = {"world": "w-{actor}-{copy}", "deep": [{"id": "{index}"}], "other": "{name} {", "n": 5}
    wrapper = Wrapper("Recorder", Recorder, {"number": "{index}"})
    GymFactory().make("Recorder-v0", 2, options=options, wrappers=[wrapper]).close()
    plain = {"other": "{name} {", "n": 5}
    assert given == [
        plain | {"world": "w-3-0", "deep": [{"id": 6}], "COPY": "0"},
        {"number": 6, "COPY": "0"},
        plain | {"world": "w-3-1", "deep": [{"id": 7}], "COPY": "1"},
        {"number": 7, "COPY": "1"},
    ]


def test_an_environment_with_a_vector_of_its_own_is_built_one_by_one_for_numbers() -> None:
    made = GymFactory().make("CartPole-v1", 2, options={"sutton_barto_reward": "{copy}"})
    copies = [one.unwrapped for one in vars(made)["_with_info"]]
    assert [vars(one)["_sutton_barto_reward"] for one in copies] == [0, 1]
    made.close()


@pytest.mark.parametrize("maker", [Asks, asks])
def test_a_factory_that_asks_for_its_index_gets_it_unless_options_say_another(maker: Any) -> None:
    factory = UserFactory("mine", maker)
    factory.make("", 2, options={"speed": "{copy}"})
    factory.make("", 2, options={"index": 99})
    found = [(one["index"], one["speed"]) for one in given]
    assert found == [(6, 0), (7, 1), (99, 1), (99, 1)]


def test_a_factory_whose_index_is_no_keyword_is_not_given_one() -> None:
    def makes(index: int = 5, /) -> Recorder:
        return Recorder(index=index)

    UserFactory("mine", makes).make("", 1)
    assert given == [{"index": 5, "COPY": "0"}]


def test_a_copy_beyond_the_last_port_has_one_of_those_before_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIANJI_ACTOR", "4999")
    monkeypatch.setattr("tianji_envs.options._PORTS", range(60_000, 65_536, 10_000))
    with pytest.raises(BrokenEnvironmentError, match="no port is free for copy 9998"):
        numbered("{port}")


def test_no_two_copies_have_one_port_nor_one_that_others_have_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numbered("at:{port}") == f"at:{numbered('{port}')}"
    port = numbered("{port}")
    with socket.socket() as other:
        other.bind(("", port))
        assert numbered("{port}") % 10_000 == port % 10_000 != port
    monkeypatch.setenv("TIANJI_COPY", "1")
    assert numbered("{port}") % 10_000 == port % 10_000 + 1
    monkeypatch.setattr("tianji_envs.options._PORTS", range(port, port, 10_000))
    with pytest.raises(BrokenEnvironmentError, match="no port is free for copy 7"):
        numbered("{port}")

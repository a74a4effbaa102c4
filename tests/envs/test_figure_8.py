"""Environments that follow the paper's Figure 8 train as it is printed, or an error says what to change."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tianji_envs import registry
from tianji_envs.errors import BrokenEnvironmentError, UnsupportedSpaceError

PRINTED = """
from abc import ABCMeta, abstractmethod

class BaseEnv(object, metaclass=ABCMeta):

    @abstractmethod
    def init(self, *args, **kwargs):
        ...

    @abstractmethod
    def step(self, action):
        raise NotImplementedError()

    @abstractmethod
    def render(self):
        raise NotImplementedError()

    @abstractmethod
    def reset(self):
        raise NotImplementedError()

    @abstractmethod
    def close(self):
        raise NotImplementedError()

    def seed(self, seed):
        raise NotImplementedError()
"""
OURS = "from tianji_envs.core import BaseEnv\n"
LIFTS = """
import random
import numpy as np
from gymnasium import spaces

class Lift(BaseEnv):
    def init(self, floors=8):
        self.observation_space = spaces.Box(0, floors, (2,), np.float32)
        self.action_space = spaces.Discrete(3)
        self.floors, self.dice = floors, random.Random(0)

    def reset(self):
        self.at, self.wanted = self.dice.randrange(self.floors), self.dice.randrange(self.floors)
        return np.array([self.at, self.wanted], np.float32)

    def step(self, action):
        self.at = min(max(self.at + action - 1, 0), self.floors - 1)
        there = self.at == self.wanted
        return np.array([self.at, self.wanted], np.float32), float(there), there, {}

    def render(self):
        return np.full((4, 4, 3), self.floors, np.uint8)

    def close(self):
        pass

class Seeded(Lift):
    def seed(self, seed):
        self.dice = random.Random(seed)

class Cut(Lift):
    def step(self, action):
        observation, _, _, _ = super().step(action)
        return observation, 0.0, True, {"TimeLimit.truncated": True}

class Constructed(Lift):
    def __init__(self, floors=8, name="lift"):
        self.name = name
        self.init(floors)

class WithoutSpaces(Lift):
    def init(self):
        self.status_dim, self.action_dim = 2, 3

class Three(Lift):
    def step(self, action):
        return super().step(action)[:3]

def make(floors):
    lift = Lift()
    lift.init(floors)
    return lift
"""


@pytest.fixture(params=[PRINTED, OURS], ids=["printed", "ours"])
def template(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], str]:
    """A name in a module whose ``BaseEnv`` is the figure's, or tianji's."""
    (tmp_path / "lifts.py").write_text(request.param + LIFTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "lifts", raising=False)
    return "lifts:{}".format


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Lift", {"floors": 5}),
        ("Seeded", {"floors": 5}),
        ("Constructed", {"floors": 5, "name": "paternoster"}),
        ("make", {"floors": 5}),
    ],
)
def test_an_environment_after_the_figure_is_stepped(
    template: Callable[[str], str], roll: Callable[..., Any], name: str, options: dict[str, Any]
) -> None:
    factory = registry.find(template(name))
    assert factory.takes_wrappers == (name == "make")
    vector = factory.make("", 3, options=options)
    rollout = roll(vector, 40, act=lambda shown: 1 + np.sign(shown[:, 1] - shown[:, 0]).astype(int))
    arrived = rollout.observation[1:, :, 0] == rollout.observation[1:, :, 1]
    assert (rollout.terminated == arrived & ~rollout.begun).all()
    assert rollout.terminated.any()
    assert not rollout.truncated.any()
    assert rollout.observation.max() == 4
    assert vector.render()[0, 0, 0] == 5
    vector.close()


def test_its_seed_repeats_its_episodes(template: Callable[[str], str], roll: Callable[..., Any]) -> None:
    make = registry.find(template("Seeded")).make
    one, same, other = (roll(make("", 2), 30, seed).observation for seed in (5, 5, 6))
    assert (one == same).all()
    assert (one[0] != other[0]).any()


def test_done_at_a_limit_is_truncation(template: Callable[[str], str], roll: Callable[..., Any]) -> None:
    rollout = roll(registry.find(template("Cut")).make("", 1), 4)
    assert rollout.truncated[:, 0].tolist() == [True, False, True, False]
    assert not rollout.terminated.any()


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("WithoutSpaces", {}, "lifts:WithoutSpaces has no observation_space; set it in init(), which gets"),
        ("Lift", {"height": 5}, "lifts:Lift cannot be built with options {'height': 5}: TypeError: "),
        ("Three", {}, "lifts:Three: step() gave 3 values"),
    ],
)
def test_what_differs_from_the_figure_is_named(
    template: Callable[[str], str],
    roll: Callable[..., Any],
    name: str,
    options: dict[str, Any],
    words: str,
) -> None:
    with pytest.raises((BrokenEnvironmentError, UnsupportedSpaceError), match=re.escape(words)):
        roll(registry.find(template(name)).make("", 1, options=options), 1)


def test_a_class_that_has_no_init_and_is_no_base_env_is_still_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "unlike.py").write_text("class Unlike:\n    def reset(self): ...\n    step = reset")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BrokenEnvironmentError, match=re.escape("a subclass of BaseEnv, gymnasium.Env")):
        registry.find("unlike:Unlike")

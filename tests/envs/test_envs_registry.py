"""Types and ids lead to environments, or to an error that says what would be right."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from tianji_envs import registry
from tianji_envs.errors import (
    BrokenEnvironmentError,
    MissingExtraError,
    UnknownEnvironmentError,
    UnsupportedSpaceError,
)
from tianji_envs.gym import GymFactory

MINE = """
import gymnasium
import numpy as np
from tianji_envs.core import BaseEnv, EnvironmentFactory


class Walk(BaseEnv):
    def __init__(self, goal=3):
        self.observation_space = gymnasium.spaces.Box(-goal, goal, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.goal = goal

    def reset(self, seed=None):
        self.at = 0
        return np.array([0], np.float32)

    def step(self, action):
        self.at += 2 * action - 1
        return np.array([self.at], np.float32), float(self.at), abs(self.at) == self.goal, False

    def render(self):
        return np.full((4, 4, 3), 7, np.uint8)


class GymnasiumWalk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}


class NoSpaces(Walk):
    def __init__(self):
        pass


class NoSpacesOfGymnasium(gymnasium.Env):
    pass


class EmptyObservation(GymnasiumWalk):
    observation_space = gymnasium.spaces.Box(-1, 1, (0,), np.float32)


class NoStep(BaseEnv):
    def reset(self, seed=None):
        return 0


class SequenceObservation(Walk):
    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Sequence(self.observation_space)


class WrongShape(Walk):
    def reset(self, seed=None):
        return np.zeros(2)


class FiveValues(Walk):
    def step(self, action):
        return (*super().step(action), {})


class OldWalk(Walk):
    def step(self, action):
        return (*super().step(action)[:3], {"TimeLimit.truncated": False})


class OldGymnasiumWalk(GymnasiumWalk):
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, {"TimeLimit.truncated": False}


class OldReset(GymnasiumWalk):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32)


class Raises(Walk):
    def step(self, action):
        raise ZeroDivisionError("mine")


class OldVector(gymnasium.vector.VectorEnv):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs):
        self.num_envs = num_envs
        self.single_observation_space = GymnasiumWalk.observation_space
        self.single_action_space = GymnasiumWalk.action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        ended = np.ones(self.num_envs, bool)
        return np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs), ended, {}


class Factory(EnvironmentFactory):
    def check_id(self, id):
        pass


class FactoryOfBefore(Factory):
    def make(self, id, num_envs, max_episode_steps=None, options=None, render=False):
        raise AssertionError("called with what it does not take")


class FactoryWithoutThreads(Factory):
    def make(self, id, num_envs, max_episode_steps=None, options=None, render=False, *, evaluation=False):
        raise AssertionError("called with what it does not take")


class FactoryWithoutWrappers(Factory):
    takes_wrappers = True

    def make(
        self, id, num_envs, max_episode_steps=None, options=None, render=False, *, evaluation=False, threads=1
    ):
        raise AssertionError("called with what it does not take")


class FactoryWithoutIds(Factory):
    def make(self, *arguments, **keywords):
        raise AssertionError("refused before")

    def check_options(self, options):
        raise AssertionError("called with what it does not take")


class FactoryOfAll(Factory):
    def make(self, *arguments, **keywords):
        return keywords


not_an_environment = 3
ONE = Walk()


def walk_to(goal=3):
    return Walk(goal)


def gymnasium_walk():
    return GymnasiumWalk()


def same():
    return ONE


def nothing():
    Walk()


def of_gymnasium(length, /, **options):
    raise AssertionError("called with too little")


def vector():
    return gymnasium.make_vec("CartPole-v1", 2)


class Drawn(GymnasiumWalk):
    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def render(self):
        return np.full((4, 4, 3), 9, np.uint8) if self.render_mode == "rgb_array" else None


def drawn(render_mode=None):
    return Drawn(render_mode)


def drawn_with_anything(**options):
    return Drawn(**options)


def drawn_anyhow():
    return Drawn("rgb_array")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own on the Python path."""
    (tmp_path / "mine_envs.py").write_text(MINE)
    (tmp_path / "does_not_parse.py").write_text("class\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("mine_envs", "does_not_parse"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "mine_envs"


def test_a_base_env_of_ones_own_is_found_and_gets_the_options(mine: str, roll: Callable[..., Any]) -> None:
    vector = registry.find(f"{mine}:Walk").make("", 2, options={"goal": 2})
    rollout = roll(vector, 9, act=lambda observation: (observation[:, 0] >= 0).astype(int))
    assert rollout.observation[:, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert vector.render().shape == (4, 4, 3)
    vector.close()
    vector.close()


def test_a_gymnasium_class_of_ones_own_is_found(mine: str, roll: Callable[..., Any]) -> None:
    rollout = roll(registry.find(f"{mine}:GymnasiumWalk").make("", 2), 4)
    assert rollout.terminated[:, 0].tolist() == [True, False, True, False]


def test_an_entry_point_leads_to_a_factory_and_is_listed(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("walk", f"{mine}:Walk", registry.TYPES.group),
        EntryPoint("gym2", "tianji_envs.gym:GymFactory", registry.TYPES.group),
    ]
    brought = {entry.name: entry for entry in entries}
    monkeypatch.setattr("tianji_plugins._brought", lambda group: brought if group == entries[0].group else {})
    assert registry.names() == sorted({*registry.TYPES.built_in, "gym2", "walk"})
    assert isinstance(registry.find("gym2"), GymFactory)
    assert registry.find("walk").make("", 1).num_envs == 1


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("gymm", UnknownEnvironmentError, "did you mean 'gym'?"),
        ("does_not_parse:Env", BrokenEnvironmentError, "SyntaxError"),
        ("mine_envs:not_an_environment", BrokenEnvironmentError, "subclass of BaseEnv"),
        (
            "mine_envs:FactoryOfBefore",
            BrokenEnvironmentError,
            "mine_envs:FactoryOfBefore: FactoryOfBefore.make() should take evaluation= and threads=",
        ),
        ("mine_envs:FactoryWithoutThreads", BrokenEnvironmentError, "make() should take threads="),
        ("mine_envs:FactoryWithoutWrappers", BrokenEnvironmentError, "make() should take wrappers="),
        (
            "mine_envs:FactoryWithoutIds",
            BrokenEnvironmentError,
            "FactoryWithoutIds.check_options() should take id and options",
        ),
    ],
)
def test_a_wrong_type_says_what_would_be_right(
    mine: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        registry.find(name)


def test_a_factory_of_ones_own_may_take_whatever_it_is_given_and_have_no_options_to_check(mine: str) -> None:
    factory = registry.find(f"{mine}:FactoryOfAll")
    factory.check_options("", {"goal": 2})
    assert factory.make("", 1, evaluation=True) == {"evaluation": True}  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("name", ["walk_to", "Walk"])
def test_a_function_makes_environments_as_a_class_does(
    mine: str, name: str, roll: Callable[..., Any]
) -> None:
    vector = registry.find(f"{mine}:{name}").make("", 2, options={"goal": 2})
    rollout = roll(vector, 5, act=lambda observation: (observation[:, 0] >= 0).astype(int))
    assert rollout.observation[:, 1, 0].tolist() == [0, 1, 2, 0, 1, 2]


def test_a_function_may_make_gymnasium_s(mine: str, roll: Callable[..., Any]) -> None:
    rollout = roll(registry.find(f"{mine}:gymnasium_walk").make("", 2), 4)
    assert rollout.terminated[:, 0].tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "mine_envs:nothing returned NoneType; a BaseEnv or a gymnasium.Env is wanted"),
        ("vector", "mine_envs:vector returned CartPoleVectorEnv; a BaseEnv or a gymnasium.Env is wanted"),
        ("same", "mine_envs:same returned the same environment twice; each call should make a new one"),
        ("of_gymnasium", "mine_envs:of_gymnasium cannot be built with options {}: TypeError: of_gymnasium()"),
    ],
)
def test_what_a_function_makes_is_checked(mine: str, name: str, words: str) -> None:
    with pytest.raises(BrokenEnvironmentError, match=re.escape(words)):
        registry.find(f"{mine}:{name}").make("", 2)


@pytest.mark.parametrize("name", ["Drawn", "drawn", "drawn_with_anything", "drawn_anyhow"])
def test_render_mode_is_given_to_what_takes_it(mine: str, name: str, roll: Callable[..., Any]) -> None:
    vector = registry.find(f"{mine}:{name}").make("", 1, render=True)
    roll(vector, 1)
    assert vector.render()[0, 0, 0] == 9


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("NoSpaces", BrokenEnvironmentError, "has no observation_space"),
        (
            "NoSpacesOfGymnasium",
            BrokenEnvironmentError,
            "has no observation_space; set it in its constructor",
        ),
        ("EmptyObservation", UnsupportedSpaceError, "of no numbers; one at least is wanted"),
        ("NoStep", BrokenEnvironmentError, "abstract method"),
        ("SequenceObservation", UnsupportedSpaceError, "Box, Discrete, MultiBinary and MultiDiscrete"),
    ],
)
def test_an_environment_that_does_not_fit_is_refused_when_built(
    mine: str, name: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        registry.find(f"{mine}:{name}").make("", 1)
    assert words in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("WrongShape", BrokenEnvironmentError, "reset() gave an observation of shape (2,)"),
        ("FiveValues", BrokenEnvironmentError, "step() gave 5 values"),
        ("OldWalk", BrokenEnvironmentError, "gave 4 values, the first of shape (1,) and float32, [1.]; (obs"),
        (
            "OldGymnasiumWalk",
            BrokenEnvironmentError,
            "step() gave 4 values; gymnasium's (observation, reward, ",
        ),
        (
            "OldReset",
            BrokenEnvironmentError,
            "reset() gave a value of shape (2,) and float32, [0. 0.]; gymnasium's (observation, info)",
        ),
        ("Raises", ZeroDivisionError, "mine"),
    ],
)
def test_a_step_that_breaks_the_contract_says_how(
    mine: str, name: str, error: type[Exception], words: str, roll: Callable[..., Any]
) -> None:
    vector = registry.find(f"{mine}:{name}").make("", 1)
    with pytest.raises(error, match=re.escape(words)):
        roll(vector, 1)


def test_a_vector_step_that_breaks_the_contract_says_how(mine: str, roll: Callable[..., Any]) -> None:
    gymnasium.register("OldVector-v0", vector_entry_point=f"{mine}:OldVector")
    try:
        with pytest.raises(BrokenEnvironmentError, match=r"OldVector-v0: step\(\) gave 4 values"):
            roll(GymFactory().make("OldVector-v0", 2), 1)
    finally:
        del gymnasium.registry["OldVector-v0"]


def test_options_that_the_constructor_does_not_take_are_named(mine: str) -> None:
    for factory, env_id in ((registry.find(f"{mine}:Walk"), ""), (GymFactory(), "CartPole-v1")):
        with pytest.raises(BrokenEnvironmentError, match="'gaol'"):
            factory.make(env_id, 1, options={"gaol": 3})


def test_an_environment_of_ones_own_has_no_id(mine: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match="has no id 'CartPole-v1'"):
        registry.find(f"{mine}:Walk").check_id("CartPole-v1")


def is_ale(spec: EnvSpec) -> bool:
    return str(spec.entry_point).startswith("ale_py")


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Cartpole-v1", "did you mean CartPole-v1"),
        ("CartPole", "did you mean CartPole-v1"),
        ("LunarLander-v2", "did you mean LunarLander-v3"),
        ("no_such_module:Some-v0", "cannot import 'no_such_module'"),
        ("", "gymnasium has no environment ''"),
        ("ALE/Pong-v5", "gymnasium has no environment 'ALE/Pong-v5'; environment.type = \"atari\" has it"),
        ("PongNoFrameskip-v4", 'environment.type = "atari" has it'),
        ("SpaceInvaders", 'environment.type = "atari" has it'),
    ],
)
def test_an_unknown_id_names_the_nearest(env_id: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # ale_py registers its games with gymnasium when another test imports it.
    registered = {name: spec for name, spec in gymnasium.registry.items() if not is_ale(spec)}
    monkeypatch.setattr(gymnasium, "registry", registered)
    with pytest.raises(UnknownEnvironmentError, match=re.escape(words)):
        registry.find("gym").check_id(env_id)


@pytest.mark.parametrize("name", registry.names())
def test_a_built_in_type_says_whether_its_environments_are_teams(name: str) -> None:
    assert registry.find(name).makes_teams is (name not in ("atari", "gym"))


def test_a_users_environment_itself_says_whether_it_is_a_team(mine: str) -> None:
    assert registry.find(f"{mine}:Walk").makes_teams is None


@pytest.mark.parametrize(
    ("extra", "package"), [("box2d", "tianji"), ("mujoco", "tianji"), ("jax", "gymnasium")]
)
def test_a_missing_library_is_answered_with_the_pip_command(extra: str, package: str) -> None:
    def create(**_keywords: object) -> gymnasium.Env[Any, Any]:
        raise gymnasium.error.DependencyNotInstalled(
            f'Library is not installed, run `pip install swig` and `pip install "gymnasium[{extra}]"`'
        )

    gymnasium.register("NeedsALibrary-v0", entry_point=create)
    try:
        with pytest.raises(MissingExtraError) as caught:
            GymFactory().make("NeedsALibrary-v0", 1)
        assert str(caught.value).endswith(f"pip install '{package}[{extra}]'")
    finally:
        del gymnasium.registry["NeedsALibrary-v0"]


def test_a_missing_module_is_answered_with_the_pip_command() -> None:
    gymnasium.register("NeedsAModule-v0", entry_point="a_library_that_is_not_there:Env")
    try:
        with pytest.raises(MissingExtraError, match="pip install a_library_that_is_not_there"):
            GymFactory().make("NeedsAModule-v0", 1)
    finally:
        del gymnasium.registry["NeedsAModule-v0"]


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3"])
def test_a_vector_made_for_rendering_draws_its_first_environment(
    env_id: str, roll: Callable[..., Any]
) -> None:
    vector = GymFactory().make(env_id, 2, render=True)
    roll(vector, 1)
    frame = vector.render()
    assert frame.ndim == 3
    assert frame.shape[2] == 3
    assert frame.dtype == "uint8"
    vector.close()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
@pytest.mark.filterwarnings("ignore:.*render method without specifying any render mode:UserWarning")
def test_a_vector_not_made_for_rendering_says_so(env_id: str, roll: Callable[..., Any]) -> None:
    vector = GymFactory().make(env_id, 1)
    roll(vector, 1)
    with pytest.raises(BrokenEnvironmentError, match="make it with render=True"):
        vector.render()

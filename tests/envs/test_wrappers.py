"""Wrappers are found by name and put around each environment; what they break is refused with their place."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import NormalizeObservation

from tianji_envs import registry
from tianji_envs.errors import (
    BrokenEnvironmentError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownEnvironmentError,
)
from tianji_envs.gym import GymFactory, OwnVectorEnvironment
from tianji_envs.serial import UserFactory
from tianji_envs.wrappers import Wrapper, find, with_statistics

MINE = """
import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

import tianji_envs.core


class Bytes(gymnasium.Env):
    observation_space = Box(0, 255, (2,), np.uint8)
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.at = 10
        return np.array([10, 20], np.uint8), {}

    def step(self, action):
        self.at += 10
        return np.array([self.at, 20], np.uint8), 1.0, self.at == 60, False, {}


class Still(tianji_envs.core.BaseEnv):
    observation_space, action_space = Bytes.observation_space, Bytes.action_space

    def reset(self, seed=None):
        return [10, 20]

    def step(self, action):
        return [10, 20], 1.0, False, False


class Quarter(gymnasium.ObservationWrapper):
    def __init__(self, env, of=1.0):
        super().__init__(env)
        self.of = of

    def observation(self, seen):
        return seen / self.of / 4


class LateQuarter(gymnasium.Wrapper):
    def step(self, action):
        seen, *rest = super().step(action)
        return seen / 4, *rest


class LateHalf(gymnasium.Wrapper):
    def step(self, action):
        seen, *rest = super().step(action)
        return seen[:1], *rest


def scaled(env, by):
    box = Box(0.0, 999.0, (2,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen * np.float32(by), box)


def raised(env, by):
    box = Box(0.0, 999.0, (2,), np.float32)
    return gymnasium.wrappers.TransformObservation(env, lambda seen: seen + np.float32(by), box)


def forgets(env):
    env.reset()


def forgets_all():
    return None


def needs_a_module(env):
    import a_library_that_is_not_there


not_a_wrapper = 3
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's own on the Python path."""
    (tmp_path / "my_wrappers.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_wrappers", raising=False)


def bytes_of_mine() -> UserFactory:
    factory = registry.find("my_wrappers:Bytes")
    assert isinstance(factory, UserFactory)
    return factory


def found(*entries: str | tuple[str, Mapping[str, Any]]) -> list[Wrapper]:
    pairs = [(entry, {}) if isinstance(entry, str) else entry for entry in entries]
    return [find(index, name, keywords) for index, (name, keywords) in enumerate(pairs)]


def test_wrappers_go_around_an_environment_in_their_order(roll: Callable[..., Any]) -> None:
    scaled, raised = ("my_wrappers:scaled", {"by": 2}), ("my_wrappers:raised", {"by": 1})
    of_mine = bytes_of_mine()
    first = roll(of_mine.make("", 1, wrappers=found(scaled, raised)), 1)
    second = roll(of_mine.make("", 1, wrappers=found(raised, scaled)), 1)
    assert first.observation[:, 0].tolist() == [[21, 41], [41, 41]]
    assert second.observation[:, 0].tolist() == [[22, 42], [42, 42]]


def test_what_has_a_vector_of_its_own_is_stepped_singly_with_wrappers(roll: Callable[..., Any]) -> None:
    bare = GymFactory().make("CartPole-v1", 2)
    timed = GymFactory().make("CartPole-v1", 2, wrappers=found("TimeAwareObservation"))
    assert isinstance(bare, OwnVectorEnvironment)
    assert not isinstance(timed, OwnVectorEnvironment)
    assert timed.observation_space.shape == (5,)
    assert roll(timed, 3).observation[:, 1, 4].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("limit", "found_limit"), [(None, 500), (6, 6)])
def test_wrappers_find_the_time_limit(limit: int | None, found_limit: int) -> None:
    vector = GymFactory().make("CartPole-v1", 1, limit, wrappers=found("TimeAwareObservation"))
    assert isinstance(vector.observation_space, gymnasium.spaces.Box)
    assert vector.observation_space.high[4] == found_limit


def test_the_time_limit_counts_steps_inside_the_wrappers(roll: Callable[..., Any]) -> None:
    wrappers = found(("RepeatAction", {"num_repeats": 2}))
    vector = GymFactory().make("CartPole-v1", 1, 6, wrappers=wrappers)
    assert roll(vector, 4).truncated[:, 0].tolist() == [False, False, True, False]


def test_wrappers_of_a_users_class_find_the_time_limit_too(roll: Callable[..., Any]) -> None:
    wrappers = found(("TimeAwareObservation", {"normalize_time": True}))
    vector = bytes_of_mine().make("", 1, 4, wrappers=wrappers)
    rollout = roll(vector, 5)
    assert rollout.observation[:, 0, -1].tolist() == [0, 0.25, 0.5, 0.75, 1, 0]
    assert rollout.truncated[:, 0].tolist() == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("name", "keywords", "error", "words"),
    [
        ("TimeAwareObservatoin", {}, UnknownEnvironmentError, "did you mean 'TimeAwareObservation'?"),
        ("my_wrappers:Quartr", {}, UnknownEnvironmentError, "did you mean my_wrappers:Quarter?"),
        (
            "my_wrappers:not_a_wrapper",
            {},
            BrokenEnvironmentError,
            "'my_wrappers:not_a_wrapper' is 3; a class",
        ),
        ("no_such_module:X", {}, UnknownEnvironmentError, "there is no module 'no_such_module'"),
        ("TimeLimit", {}, BrokenEnvironmentError, "missing a required argument: 'max_episode_steps'"),
        (
            "TimeAwareObservation",
            {"normalise_time": True},
            BrokenEnvironmentError,
            "unexpected keyword argument 'normalise_time'; did you mean 'normalize_time'?",
        ),
        (
            "my_wrappers:forgets_all",
            {},
            BrokenEnvironmentError,
            "wrapper 'my_wrappers:forgets_all' takes no environment",
        ),
        ("my_wrappers:scaled", {"to": 2}, BrokenEnvironmentError, "argument: 'by'; they are by"),
    ],
)
def test_what_is_wrong_with_an_entry_is_found_before_anything_is_built(
    name: str, keywords: dict[str, Any], error: type[EnvironmentFailure], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        find(0, name, keywords)


@pytest.mark.parametrize(
    ("name", "keywords", "error", "words"),
    [
        (
            "RescaleObservation",
            {"min_obs": 0, "max_obs": "x"},
            BrokenEnvironmentError,
            "environment.wrappers[1] (RescaleObservation) cannot wrap "
            "<OrderEnforcing<TimeLimit<CartPoleEnv<CartPole-v1>>>> with "
            "{'min_obs': 0, 'max_obs': 'x'}: TypeError: Expected new_max to be",
        ),
        (
            "my_wrappers:forgets",
            {},
            BrokenEnvironmentError,
            "environment.wrappers[1] (my_wrappers:forgets) gave NoneType; a gymnasium.Env is wanted",
        ),
        (
            "my_wrappers:needs_a_module",
            {},
            MissingExtraError,
            "(my_wrappers:needs_a_module) needs 'a_library_that_is_not_there': pip install a_library",
        ),
    ],
)
def test_what_goes_wrong_when_they_are_put_around_names_the_entry(
    name: str, keywords: dict[str, Any], error: type[EnvironmentFailure], words: str
) -> None:
    with pytest.raises(error, match=re.escape(words)):
        GymFactory().make("CartPole-v1", 1, wrappers=found("OrderEnforcing", (name, keywords)))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Quarter", "Bytes: reset() gave an observation of shape (2,) and float64, "),
        (
            "LateQuarter",
            "observation_space says (2,) and uint8; a wrapper has to change both (copy 0, step 1 of ",
        ),
        ("LateHalf", "step() gave an observation of shape (1,) and uint8, [20]; observation_space says (2,)"),
    ],
)
def test_observations_changed_behind_their_space_are_refused(
    name: str, words: str, roll: Callable[..., Any]
) -> None:
    vector = bytes_of_mine().make("", 1, wrappers=found(f"my_wrappers:{name}"))
    with pytest.raises(BrokenEnvironmentError, match=re.escape(words)):
        roll(vector, 1)


def test_whole_numbers_that_fit_an_unsigned_space_are_accepted(
    monkeypatch: pytest.MonkeyPatch, roll: Callable[..., Any]
) -> None:
    vector = registry.find("my_wrappers:Still").make("", 1)
    assert roll(vector, 1).observation.dtype == np.uint8
    monkeypatch.setattr("my_wrappers.Still.reset", lambda _self, _seed: np.array([10, 256]))
    with pytest.raises(BrokenEnvironmentError, match=r"int64, \[ 10 256\], with 256 at \[1\]; obs"):
        roll(vector, 1)


def test_only_gymnasium_environments_take_wrappers() -> None:
    taking = {name for name in registry.names() if registry.find(name).takes_wrappers}
    assert taking == {"gym"}
    assert registry.find("my_wrappers:Bytes").takes_wrappers
    assert not registry.find("my_wrappers:Still").takes_wrappers


class Masked(gymnasium.Env[Any, Any]):
    """Has ``info`` at every step."""

    def __init__(self, info: Any, action_space: Any = None) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = action_space or gymnasium.spaces.Discrete(3)
        self.info = info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        return np.zeros(2, np.float32), self.info

    def step(self, action: Any) -> Any:  # noqa: ARG002
        return np.zeros(2, np.float32), 0.0, False, False, self.info


def test_a_mask_in_the_info_becomes_a_part_of_the_observation() -> None:
    wrapped = find(0, "ActionMask", {})(Masked({"action_mask": np.array([0, 1, 1], np.int8)}))
    for shown in (wrapped.reset()[0], wrapped.step(0)[0]):
        assert shown["action_mask"].tolist() == [False, True, True]
        assert shown["observation"].shape == (2,)
    assert set(wrapped.observation_space.spaces) == {"observation", "action_mask"}


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({}, r"no 'action_mask' in its info, which is \[\]"),
        (None, "in its info, which is None"),
        ({1: 2, "a": 3}, r"which is \['1', 'a'\]"),
        ({"action_mask": [1, 0]}, r"of shape \(2,\) in its info for 3 actions; \(3,\)"),
    ],
)
def test_an_info_without_a_fitting_mask_is_refused(info: Any, message: str) -> None:
    wrapped = find(0, "ActionMask", {})(Masked(info))
    with pytest.raises(BrokenEnvironmentError, match=message):
        wrapped.reset()


def test_masks_are_for_single_actions() -> None:
    with pytest.raises(
        BrokenEnvironmentError, match=r"^environment.*\(ActionMask\): <Masked.* of Discrete ones"
    ):
        find(0, "ActionMask", {})(Masked({}, gymnasium.spaces.Box(-1.0, 1.0, (2,))))


class Holds:
    """An environment of no package's that plays in another one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def reset(self, seed: int | None = None) -> Any: ...

    def step(self, action: Any) -> Any: ...


def test_what_learns_statistics_is_found_however_deep_it_is() -> None:
    def cartpole() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("CartPole-v1")

    plain = gymnasium.wrappers.RecordEpisodeStatistics(
        gymnasium.wrappers.FrameStackObservation(cartpole(), 2)
    )
    deep = gymnasium.wrappers.ClipReward(gymnasium.wrappers.NormalizeReward(cartpole()), -1.0)
    vector = gymnasium.make_vec("CartPole-v1", 2, vectorization_mode="sync", wrappers=[NormalizeObservation])
    frozen = NormalizeObservation(cartpole())
    frozen.update_running_mean = False
    assert with_statistics(plain) == with_statistics(frozen) == []
    assert with_statistics(deep) == with_statistics(Holds(deep)) == ["NormalizeReward"]
    assert with_statistics(vector) == ["NormalizeObservation"]
    both = gymnasium.wrappers.vector.NormalizeReward(gymnasium.wrappers.vector.NormalizeObservation(vector))
    assert with_statistics(OwnVectorEnvironment("both", both)) == ["NormalizeReward", "NormalizeObservation"]
    for one in (deep, plain, frozen, both):
        one.close()

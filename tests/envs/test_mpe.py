"""Particle worlds are what ``mpe2`` makes of them, only faster; in spread a policy made by hand does well."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs import registry
from tianji_envs.errors import MissingExtraError, UnknownEnvironmentError, WrongOptionError
from tianji_envs.teams.mpe import find_world, installed_worlds

Roll = Callable[..., Any]

WORLDS = ["simple_adversary", "simple_speaker_listener", "simple_spread", "simple_tag"]


def make(env_id: str, num_envs: int = 2, **keywords: Any) -> Any:
    return registry.find("mpe").make(env_id, num_envs, **keywords)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("world", [*WORLDS, "simple_crypto", "simple_reference", "simple_world_comm"])
def test_worlds_are_those_that_mpe2s_own_parallel_env_makes(world: str, continuous: bool, roll: Roll) -> None:
    options = {"continuous_actions": continuous}
    own = make(world, options=options)
    theirs = registry.find("pettingzoo").make(f"mpe2.{find_world(world)}", 2, options=options)
    assert own.agents == theirs.agents
    assert own.action_space == theirs.action_space
    names = theirs.observation_space.dtype.names
    assert names == (*own.observation_space.dtype.names, "truncated"), "a world cuts off all agents at once"
    first, second = roll(own, 55), roll(theirs, 55)
    assert first.truncated.sum() == 4
    for part in first.observation.dtype.names:
        np.testing.assert_array_equal(first.observation[part], second.observation[part])
    for part in ("reward", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(first, part), getattr(second, part))


def test_actions_out_of_bounds_do_what_the_bounds_do(roll: Roll) -> None:
    strong, weak = (
        roll(
            make("simple_spread", options={"continuous_actions": True}),
            20,
            act=lambda seen: np.full((len(seen), 3, 5), [0, 0, most, 0, most], np.float32),  # noqa: B023
        )
        for most in (9.0, 1.0)
    )
    np.testing.assert_array_equal(strong.observation["observation"], weak.observation["observation"])


def test_an_episode_has_25_steps_or_what_the_config_says(roll: Roll) -> None:
    assert np.nonzero(roll(make("simple_tag"), 55).truncated[:, 0])[0].tolist() == [24, 50]
    rollout = roll(make("simple_tag", max_episode_steps=40), 55)
    assert np.nonzero(rollout.truncated[:, 0])[0].tolist() == [39]
    assert not rollout.terminated.any()


def test_success_may_end_an_episode_of_spread(roll: Roll) -> None:
    vector = make("simple_spread", 8, options={"terminate_on_success": True, "N": 2})
    rollout = roll(vector, 60, act=vector.heuristic)
    assert rollout.terminated.any()
    ended = rollout.observation[1:][rollout.terminated]
    assert not ended["alive"].any()


@pytest.mark.parametrize(("env_id", "name"), [("simple_spread", "simple_spread_v3"), ("simple_tag_v3", None)])
def test_an_id_means_the_newest_version_unless_it_says_which(env_id: str, name: str | None) -> None:
    assert find_world(env_id) == (name or env_id)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("simple_spred", "did you mean 'simple_spread'?"),
        ("simple_spread_v99", "did you mean 'simple_spread'?"),
        ("spreading", "it has collect_treasure, simple, "),
        ("", "mpe2 has no world ''"),
    ],
)
def test_an_unknown_world_names_the_nearest(env_id: str, words: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=re.escape(words)):
        registry.find("mpe").check_id(env_id)


def test_a_missing_library_is_answered_with_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpe2", None)  # type: ignore[arg-type]  # how imports are made to fail
    with pytest.raises(MissingExtraError, match=r"pip install 'tianji\[marl\]'"):
        registry.find("mpe").check_id("simple_spread")
    assert installed_worlds() == {}


def test_an_option_that_the_world_does_not_have_is_named_before_one_is_built_too() -> None:
    words, wrong = "simple_tag has no option 'num_goods'; did you mean 'num_good'", {"num_goods": 2}
    with pytest.raises(WrongOptionError, match=words):
        make("simple_tag", options=wrong)
    with pytest.raises(WrongOptionError, match=words):
        registry.find("mpe").check_options("simple_tag", wrong)
    registry.find("mpe").check_options("simple_tag", {"num_good": 2})


def test_a_vector_made_for_rendering_draws_its_first_world(roll: Roll) -> None:
    vector = make("simple_adversary", render=True)
    roll(vector, 1)
    assert vector.render().shape[2] == 3
    vector.close()


def seen(vector: Any, velocity: Any, landmarks: Any) -> npt.NDArray[Any]:
    """A record in which agents have velocities ``[M, 2]`` and landmarks are at ``[M, M, 2]`` from each."""
    record = np.zeros(1, vector.observation_space.dtype)
    row = record["observation"][0]
    row[:, :2] = velocity
    row[:, 4 : 4 + 2 * len(row)] = np.reshape(landmarks, (len(row), -1))
    return record


STILL = [[0, 0], [0, 0]]


def test_the_heuristics_assignment_is_that_of_least_total_distance() -> None:
    vector = make("simple_spread", options={"N": 2})
    # Both are nearest to the first landmark, and agent 0 is nearer; yet agent 1 has far to go to the second.
    record = seen(vector, STILL, [[[0.5, 0], [0, 0.6]], [[0.6, 0], [0, 5]]])
    assert vector.heuristic(record).tolist() == [[4, 2]]


@pytest.mark.parametrize(
    ("landmark", "velocity", "action"),
    [
        ([-1, 0.5], [0, 0], 1),
        ([1, 0.5], [0, 0], 2),
        ([0.5, -1], [0, 0], 3),
        ([0.5, 1], [0, 0], 4),
        ([0.05, 0.05], [0, 0], 0),
        ([0.5, 0], [1.25, 0], 0),
        ([0.2, 0], [2, 0], 1),
    ],
)
def test_the_heuristic_pushes_towards_the_landmark_and_stops_in_time(
    landmark: list[float], velocity: list[float], action: int
) -> None:
    vector = make("simple_spread", options={"N": 1})
    assert vector.heuristic(seen(vector, [velocity], [[landmark]])).tolist() == [[action]]
    box = make("simple_spread", options={"N": 1, "continuous_actions": True})
    pushes = box.heuristic(seen(box, [velocity], [[landmark]]))[0, 0]
    assert box.action_space.contains(pushes[None])
    assert action == 0 or pushes[action] > 0


@pytest.mark.parametrize(("continuous", "at_least"), [(False, -35.0), (True, -28.0)])
def test_the_heuristic_is_far_above_random(continuous: bool, at_least: float, roll: Roll) -> None:
    vector = make("simple_spread", 16, options={"continuous_actions": continuous})
    by_hand = roll(vector, 51, act=vector.heuristic).reward.sum() / 32
    at_random = roll(vector, 51).reward.sum() / 32
    assert at_random < -65 < at_least < by_hand


@pytest.mark.parametrize(
    ("world", "options"),
    [("simple_tag", {}), ("simple_spread", {"N": 9}), ("simple_spread", {"num_landmark_neighbors": 1})],
)
def test_there_is_no_heuristic_for_other_worlds_many_agents_or_landmarks_out_of_sight(
    world: str, options: dict[str, Any]
) -> None:
    assert make(world, 1, options=options).heuristic is None

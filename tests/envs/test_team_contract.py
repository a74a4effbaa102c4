"""Promises of every type whose environments are teams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from tianji_envs import registry
from tianji_envs.core import BaseEnv, VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.team import TeamSpace

Roll = Callable[..., Any]

TEAMS = [
    ("matrix_game", "climbing", {}),
    ("matrix_game", "penalty", {"penalty": -50}),
    ("matrix_game", "prisoners_dilemma", {}),
    ("matrix_game", "two_step", {}),
    ("mpe", "simple_adversary", {}),
    ("mpe", "simple_speaker_listener", {}),
    ("mpe", "simple_speaker_listener", {"continuous_actions": True}),
    ("mpe", "simple_spread", {}),
    ("mpe", "simple_spread", {"continuous_actions": True, "N": 2}),
    ("mpe", "simple_tag", {}),
    ("pettingzoo", "mpe2.simple_tag_v3", {"num_good": 2}),
    ("pettingzoo", "mpe2.simple_adversary_v3", {"continuous_actions": True}),
]

every_team = pytest.mark.parametrize(
    ("type_name", "env_id", "options"), TEAMS, ids=[f"{name}-{env_id}-{o}" for name, env_id, o in TEAMS]
)


def make(type_name: str, env_id: str, options: dict[str, Any], num_envs: int = 3) -> VectorEnvironment:
    return registry.find(type_name).make(env_id, num_envs, max_episode_steps=9, options=options)


@every_team
def test_records_are_finite_and_leave_everybody_an_action(
    type_name: str, env_id: str, options: dict[str, Any], roll: Roll
) -> None:
    vector = make(type_name, env_id, options)
    seen = roll(vector, 40).observation
    for part in ("observation", "reward", "state"):
        assert part not in seen.dtype.names or np.isfinite(seen[part]).all()
    assert not seen["observation"][~seen["alive"]].any()
    assert seen["alive"].shape[-1] == len(vector.agents)
    if isinstance(vector.action_space, spaces.MultiDiscrete):
        assert seen["available"].any(axis=-1).all()
        padding = np.arange(seen["available"].shape[-1]) >= vector.action_space.nvec[:, None]
        assert not seen["available"][:, :, padding].any()
    else:
        assert "available" not in seen.dtype.names
        assert vector.action_space.shape is not None
        assert vector.action_space.shape[0] == len(vector.agents)


@every_team
def test_the_step_after_an_end_begins_an_episode_without_rewards_or_flags(
    type_name: str, env_id: str, options: dict[str, Any], roll: Roll
) -> None:
    rollout = roll(make(type_name, env_id, options), 40)
    over = rollout.terminated | rollout.truncated
    assert over[:-1].any(axis=0).all()
    ended = np.nonzero(over[:-1])
    fresh = ended[0] + 1, ended[1]
    assert not rollout.reward[fresh].any()
    assert not over[fresh].any()
    first = rollout.observation[1:][fresh]
    assert not first["reward"].any()
    assert first["alive"].all()


@every_team
def test_a_teams_reward_is_its_agents_sum_or_that_of_each(
    type_name: str, env_id: str, options: dict[str, Any], roll: Roll
) -> None:
    rollout = roll(make(type_name, env_id, options), 40)
    each = rollout.observation["reward"][1:]
    if type_name == "matrix_game" and env_id != "prisoners_dilemma":
        assert (each == rollout.reward[:, :, None]).all()
    else:
        np.testing.assert_allclose(each.sum(axis=-1), rollout.reward, rtol=1e-5, atol=1e-5)


@every_team
def test_the_same_seed_repeats_all_records(
    type_name: str, env_id: str, options: dict[str, Any], roll: Roll
) -> None:
    first, again = (roll(make(type_name, env_id, options), 25, seed=11) for _ in range(2))
    for part in first.observation.dtype.names:
        np.testing.assert_array_equal(first.observation[part], again.observation[part])
    np.testing.assert_array_equal(first.terminated, again.terminated)
    np.testing.assert_array_equal(first.truncated, again.truncated)


@pytest.mark.parametrize("env_id", ["simple_spread", "simple_tag"])
def test_neither_environments_nor_seeds_share_a_stream(env_id: str, roll: Roll) -> None:
    firsts = [roll(make("mpe", env_id, {}), 0, seed=seed).observation["observation"][0] for seed in (1, 2)]
    assert len(np.unique(np.concatenate(firsts).reshape(6, -1), axis=0)) == 6


class Pair(BaseEnv):
    """A team of the user's own; ``change`` makes its first record wrong."""

    agents = ("left", "right")

    def __init__(self, change: Callable[[npt.NDArray[Any]], Any]) -> None:
        self.observation_space = TeamSpace(2, 3, 4)
        self.action_space = spaces.MultiDiscrete([4, 2])
        self._change = change

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002 - nothing is left to chance
        record = np.zeros((), self.observation_space.dtype)
        record["available"] = [[True] * 4, [True, True, False, False]]
        record["alive"] = [True, False]
        return self._change(record)

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002 - nothing comes of it
        return self.reset(), 0.0, False, False


def without_actions(record: npt.NDArray[Any]) -> npt.NDArray[Any]:
    record["available"][1] = False
    return record


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_actions, r"pair: reset\(\) .* leaves agents \[1\] no available action; .* not alive too"),
        (
            lambda _: np.zeros((), TeamSpace(2, 3, 4, state=1).dtype),
            r"pair: reset\(\) gave \{.*'state'.*a record of observation_space\.dtype is wanted: \{",
        ),
        (lambda _: np.float32(0), r"reset\(\) gave float32, a record of"),
    ],
    ids=["no action for the dead", "another record", "no record"],
)
def test_a_first_record_that_breaks_the_contract_is_refused(
    change: Callable[[npt.NDArray[Any]], Any], words: str, roll: Roll
) -> None:
    with pytest.raises(BrokenEnvironmentError, match=words):
        roll(SerialVectorEnvironment("pair", lambda: Pair(change), 2), 0)


@pytest.mark.parametrize("kind", [np.array, lambda record: record[()]], ids=["an array", "an element"])
def test_a_first_record_may_be_an_array_or_an_element_of_one(
    kind: Callable[[npt.NDArray[Any]], Any], roll: Roll
) -> None:
    seen = roll(SerialVectorEnvironment("pair", lambda: Pair(kind), 2), 1).observation
    assert seen["available"].any(axis=-1).all()


def test_a_record_is_aligned_and_knows_whether_it_is_one() -> None:
    space = TeamSpace(2, 3, 5, state=1)
    record = np.zeros(4, space.dtype)[1]
    assert space.contains(record)
    assert not space.contains(np.zeros(3))
    assert not space.is_np_flattenable
    assert space.dtype is not None
    assert space.dtype.itemsize % 4 == 0
    with pytest.raises(NotImplementedError, match="cannot be drawn"):
        space.sample()

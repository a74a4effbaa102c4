"""Matrix games pay what their papers' tables say."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.errors import BrokenEnvironmentError, UnknownEnvironmentError, WrongOptionError
from tianji_envs.teams.matrix_game import IDS, MatrixGameFactory

Roll = Callable[..., Any]


def play(env_id: str, steps: list[list[tuple[int, int]]], **options: float) -> tuple[Any, ...]:
    """Play N episodes at once, given as their joint actions by step: ``[T][N]``."""
    vector = MatrixGameFactory().make(env_id, len(steps[0]), options=options)
    record = np.zeros((len(steps) + 1, len(steps[0])), vector.observation_space.dtype)
    reward = np.zeros((len(steps), len(steps[0])), np.float32)
    terminated, truncated = np.zeros((2, *reward.shape), np.bool_)
    vector.reset(0, record[0])
    for t, joint in enumerate(steps):
        vector.step(np.array(joint), record[t + 1], reward[t], terminated[t], truncated[t])
    assert not truncated.any()
    return record, reward, terminated


def table(env_id: str, size: int, **options: float) -> npt.NDArray[np.float32]:
    """Each agent's reward of a game of one step, by both actions."""
    joint = list(itertools.product(range(size), repeat=2))
    record, _, terminated = play(env_id, [joint], **options)
    assert terminated.all()
    rewards: npt.NDArray[np.float32] = record["reward"][1].reshape(size, size, 2)
    return rewards


JOINT = list(itertools.product((0, 1), repeat=2))


@pytest.mark.parametrize(("first", "second"), list(itertools.product(JOINT, repeat=2)))
def test_two_step_pays_7_in_one_game_and_up_to_8_in_the_other(
    first: tuple[int, int], second: tuple[int, int]
) -> None:
    record, reward, terminated = play("two_step", [[first], [second], [(1, 1)], [first]])
    chosen = first[0]  # The second agent's first action changes nothing.
    pays = [[0, 1], [1, 8]][second[0]][second[1]] if chosen else 7
    assert reward[:, 0].tolist() == [0, pays, 0, 0]
    assert record["reward"][2, 0].tolist() == [pays, pays]
    assert terminated[:, 0].tolist() == [False, True, False, False]
    assert record["state"][:2, 0].tolist() == [[1, 0, 0], [0, 1 - chosen, chosen]]
    np.testing.assert_array_equal(record["state"][3:, 0], record["state"][:2, 0])
    for agent in range(2):
        np.testing.assert_array_equal(record["observation"][:, :, agent], record["state"])


def test_climbing_pays_what_claus_and_boutilier_say() -> None:
    pays = table("climbing", 3)
    assert pays[..., 0].tolist() == [[11, -30, 0], [-30, 7, 6], [0, 0, 5]]
    np.testing.assert_array_equal(pays[..., 0], pays[..., 1])


@pytest.mark.parametrize("k", [-100.0, 0.0])
def test_the_penalty_is_an_option(k: float) -> None:
    assert table("penalty", 3, penalty=k)[..., 0].tolist() == [[10, 0, k], [0, 2, 0], [k, 0, 10]]


def test_in_the_prisoners_dilemma_each_gets_its_own_and_betraying_always_pays() -> None:
    pays = table("prisoners_dilemma", 2)
    np.testing.assert_array_equal(pays[..., 0], pays[..., 1].T)
    assert (pays[1, :, 0] > pays[0, :, 0]).all()
    assert pays[0, 0].sum() > pays[1, 1].sum()
    _, reward, _ = play("prisoners_dilemma", [[(0, 0), (1, 0), (1, 1)]])
    assert reward[0].tolist() == [6, 5, 2]


def test_environments_are_in_different_states_and_begin_anew_on_their_own(roll: Roll) -> None:
    vector = MatrixGameFactory().make("two_step", 64)
    rollout = roll(vector, 30)
    assert rollout.terminated[1::3].all()
    assert not rollout.terminated[::3].any()
    second = rollout.observation["state"][1]
    assert len(np.unique(second, axis=0)) == 2


def test_a_limit_of_the_config_cuts_a_game(roll: Roll) -> None:
    rollout = roll(MatrixGameFactory().make("two_step", 2, max_episode_steps=1), 4)
    assert rollout.truncated[:, 0].tolist() == [True, False, True, False]
    assert not rollout.terminated.any()


@pytest.mark.parametrize(
    ("env_id", "words"), [("two_steps", "did you mean 'two_step'?"), ("", ", ".join(IDS))]
)
def test_an_unknown_game_names_the_nearest(env_id: str, words: str) -> None:
    with pytest.raises(UnknownEnvironmentError, match=re.escape(words)):
        MatrixGameFactory().check_id(env_id)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"penlty": -1}, "did you mean 'penalty'?"),
        ({"penalty": 1}, "at most 0"),
        ({"penalty": "much"}, "a number"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(options: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongOptionError, match=re.escape(words)):
        MatrixGameFactory().check_options("penalty", options)


def test_only_the_penalty_game_has_a_penalty() -> None:
    options, words = {"penalty": -1.0}, "'two_step' has no option 'penalty'; only the game 'penalty' has one"
    with pytest.raises(WrongOptionError, match=words):
        MatrixGameFactory().check_options("two_step", options)
    with pytest.raises(WrongOptionError, match=words):
        MatrixGameFactory().make("two_step", 1, options=options)
    MatrixGameFactory().check_options("penalty", options)
    MatrixGameFactory().check_options("two_step", {})


def test_a_matrix_game_has_no_picture() -> None:
    with pytest.raises(BrokenEnvironmentError, match="draws nothing"):
        MatrixGameFactory().make("climbing", 1, render=True).render()

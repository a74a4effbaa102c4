"""Lives and ends of games that real games show too rarely for a test, by scripted emulators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from tianji_envs.atari.environment import AtariVectorEnvironment, Emulators, Turn
from tianji_envs.atari.games import AtariOptions

Step = tuple[float, int, str]
"""Reward, lives afterwards, and "over" or "cut" where the game ended with the step."""


class Scripted(Emulators):
    """One emulator whose steps are given; remembers the actions it got."""

    num_actions = 4

    def __init__(self, lives: int, steps: list[Step]) -> None:
        self.lives, self.steps = lives, iter(steps)
        self.actions: list[int] = []
        self.frame = 0

    def _frames(self) -> npt.NDArray[np.uint8]:
        self.frame += 1
        return np.full((1, 1, 84, 84), self.frame, np.uint8)

    def reset(self, seeds: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        assert seeds.shape == (1,)
        return self._frames(), np.array([self.lives], np.int32)

    def step(self, actions: npt.NDArray[np.int32]) -> Turn:
        self.actions.append(int(actions[0]))
        reward, lives, end = next(self.steps)
        return Turn(
            self._frames(),
            np.array([reward], np.float32),
            np.array([end == "over"]),
            np.array([end == "cut"]),
            np.array([lives], np.int32),
        )

    def close(self) -> None:
        pass


Row = tuple[float, bool, bool, float, bool]


def play(
    emulators: Scripted,
    steps: int,
    options: AtariOptions | None = None,
    game: str = "breakout",
    *,
    evaluation: bool = False,
) -> list[Row]:
    """Step with action 3; gives reward, terminated, truncated, score and over of each step."""
    vector = AtariVectorEnvironment(game, emulators, 1, options or AtariOptions(), evaluation=evaluation)
    frame, reward = np.zeros((1, 84, 84), np.uint8), np.zeros(1, np.float32)
    terminated, truncated = np.zeros((2, 1), np.bool_)
    vector.reset(0, frame)
    rows = []
    for _ in range(steps):
        vector.step(np.array([3]), frame, reward, terminated, truncated)
        assert vector.games is not None
        score, over = vector.games.score[0], vector.games.over[0]
        rows.append((float(reward[0]), bool(terminated[0]), bool(truncated[0]), float(score), bool(over)))
    return rows


def test_the_reward_of_the_step_that_loses_a_life_is_kept_and_that_of_the_next_counts_as_score() -> None:
    emulators = Scripted(3, [(0, 3, ""), (5, 2, ""), (7, 2, ""), (-2, 2, "")])
    assert play(emulators, 4) == [
        (0, False, False, 0, False),
        (1, True, False, 5, False),
        (0, False, False, 12, False),
        (-1, False, False, 10, False),
    ]
    assert emulators.actions == [3, 3, 1, 3]


def test_without_fire_the_step_that_begins_a_life_does_nothing() -> None:
    emulators = Scripted(3, [(0, 2, ""), (0, 2, ""), (0, 2, "")])
    play(emulators, 3, AtariOptions(fire_reset=False))
    assert emulators.actions == [3, 0, 3]


@pytest.mark.parametrize(("full", "first"), [(False, 0), (True, 1)])
def test_a_game_whose_actions_have_no_fire_begins_its_lives_without(full: bool, first: int) -> None:
    emulators = Scripted(3, [(0, 2, ""), (0, 2, ""), (0, 2, "")])
    play(emulators, 3, AtariOptions(full_action_space=full), "ms_pacman")
    assert emulators.actions == [3, first, 3]


@pytest.mark.parametrize("fire", [True, False])
@pytest.mark.parametrize("evaluation", [True, False])
def test_where_lives_end_no_episode_an_action_is_replaced_only_if_nobody_learns_from_it(
    fire: bool, evaluation: bool
) -> None:
    emulators = Scripted(3, [(0, 2, ""), (4, 2, ""), (0, 2, "")])
    options = AtariOptions(fire_reset=fire, life_loss=False)
    rows = play(emulators, 3, options, evaluation=evaluation)
    assert [(row[0], row[1]) for row in rows] == [(0, False), (1, False), (0, False)]
    assert emulators.actions == [3, 1 if fire and evaluation else 3, 3]


def test_no_lives_left_are_the_end_only_once_the_game_is_over() -> None:
    rows = play(Scripted(1, [(0, 0, ""), (3, 0, ""), (2, 0, "over"), (0, 1, ""), (0, 1, "")]), 5)
    assert [row[1] for row in rows] == [False, False, True, False, False]
    assert [row[3:] for row in rows] == [(0, False), (3, False), (5, True), (0, False), (0, False)]


def test_a_life_won_ends_nothing() -> None:
    rows = play(Scripted(3, [(0, 4, ""), (0, 3, ""), (0, 3, ""), (0, 3, "")]), 4)
    assert [row[1] for row in rows] == [False, True, False, False]


def test_a_new_game_with_fewer_lives_than_the_last_one_has_lost_none() -> None:
    rows = play(Scripted(3, [(0, 4, ""), (0, 4, "cut"), (0, 3, ""), (0, 3, "")]), 4)
    assert [row[1:3] for row in rows] == [(False, False), (False, True), (False, False), (False, False)]


def test_a_life_lost_in_the_step_that_begins_an_episode_ends_no_other() -> None:
    rows = play(Scripted(3, [(0, 2, ""), (0, 1, ""), (0, 1, ""), (0, 1, "")]), 4)
    assert [row[1] for row in rows] == [True, False, False, False]


def test_a_game_that_ends_in_the_step_that_begins_an_episode_is_over_with_the_next() -> None:
    for end in ("over", "cut"):
        emulators = Scripted(3, [(1, 1, ""), (6, 1, end), (0, 3, ""), (0, 3, ""), (1, 3, "")])
        assert play(emulators, 5) == [
            (1, True, False, 1, False),
            (0, False, False, 7, False),
            (0, True, False, 7, True),
            (0, False, False, 0, False),
            (1, False, False, 1, False),
        ]
        assert emulators.actions == [3, 1, 3, 1, 3]


def test_a_reset_forgets_lives_scores_and_what_was_to_begin() -> None:
    emulators = Scripted(3, [(5, 2, ""), (1, 3, "")])
    vector = AtariVectorEnvironment("breakout", emulators, 1, AtariOptions())
    frame, out = np.zeros((1, 84, 84), np.uint8), (np.zeros(1, np.float32), *np.zeros((2, 1), np.bool_))
    vector.reset(0, frame)
    vector.step(np.array([3]), frame, *out)
    vector.reset(0, frame)
    vector.step(np.array([3]), frame, *out)
    assert emulators.actions == [3, 3]
    assert vector.games is not None
    assert vector.games.score.tolist() == [1]
    assert [flags.tolist() for flags in out[1:]] == [[False], [False]]

"""Atari by both backends: episodes, lives, rewards and scores of real games."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from envs.conftest import Rollout, roll_out

from tianji_envs.atari import environment as atari
from tianji_envs.atari.environment import AtariFactory
from tianji_envs.core import VectorEnvironment

BACKENDS = ["ale", "envpool"]
SEED = 3


def play(vector: VectorEnvironment, steps: int, seed: int = SEED, actions: Any = None) -> Rollout:
    if actions is None:
        actions = np.random.default_rng(seed).integers(0, vector.action_space.n, (steps, vector.num_envs))  # type: ignore[attr-defined]
    return roll_out(vector, steps, seed, actions=actions)


def make(backend: str, game: str, n: int = 3, limit: int | None = None, **how: Any) -> VectorEnvironment:
    keywords = {key: how.pop(key) for key in ("evaluation", "threads") if key in how}
    return AtariFactory().make(game, n, limit, {"backend": backend, **how}, **keywords)


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def berzerk(backend: str) -> tuple[Rollout, Rollout]:
    """The same seed and actions in training and in evaluation: three short lives, 50 points a robot."""
    training, evaluation = (
        play(make(backend, "Berzerk", evaluation=evaluation), 330) for evaluation in (False, True)
    )
    return training, evaluation


def test_the_step_after_an_end_has_no_reward_and_no_flags(berzerk: tuple[Rollout, Rollout]) -> None:
    for each in berzerk:
        assert each.begun.sum() >= 3
        assert not each.reward[each.begun].any()
        assert not each.ended[each.begun].any()


def test_a_lost_life_ends_an_episode_and_the_same_game_goes_on(berzerk: tuple[Rollout, Rollout]) -> None:
    training, evaluation = berzerk
    np.testing.assert_array_equal(training.observation, evaluation.observation)
    assert training.over is not None
    assert training.over.any()
    assert not (training.over & ~training.ended).any()
    for i in np.nonzero(training.over.any(axis=0))[0]:
        first = np.argmax(training.over[:, i])
        assert training.ended[: first + 1, i].sum() == 3


def test_rewards_are_clipped_in_training_and_the_games_own_in_evaluation(
    berzerk: tuple[Rollout, Rollout],
) -> None:
    training, evaluation = berzerk
    assert evaluation.reward.max() == 50
    expected = np.clip(evaluation.reward, -1, 1)
    expected[training.begun] = 0
    np.testing.assert_array_equal(training.reward, expected)


def test_a_score_is_the_sum_of_the_games_own_rewards_over_all_lives(berzerk: tuple[Rollout, Rollout]) -> None:
    training, evaluation = berzerk
    assert training.score is not None
    assert training.over is not None
    np.testing.assert_array_equal(training.over, evaluation.ended)
    for i in range(3):
        total = 0.0
        for t in range(330):
            total += evaluation.reward[t, i]
            assert training.score[t, i] == total
            if evaluation.ended[t, i]:
                total = 0.0


def test_evaluation_plays_whole_games(berzerk: tuple[Rollout, Rollout]) -> None:
    training, evaluation = berzerk
    assert evaluation.score is None
    assert evaluation.terminated.sum() < training.terminated.sum()
    assert not evaluation.truncated.any()


def test_the_action_of_a_step_that_begins_an_episode_is_ignored(
    berzerk: tuple[Rollout, Rollout], backend: str
) -> None:
    training, _ = berzerk
    other = np.where(training.begun, (training.actions + 1) % 18, training.actions)
    again = play(make(backend, "Berzerk"), 330, actions=other)
    np.testing.assert_array_equal(training.observation, again.observation)
    np.testing.assert_array_equal(training.reward, again.reward)


def test_pong_has_no_lives_and_ends_with_the_game(backend: str) -> None:
    pong = play(make(backend, "Pong", 1), 800, actions=np.zeros((800, 1), np.int64))
    assert pong.score is not None
    (over,) = np.nonzero(pong.terminated)[0]
    assert pong.over is not None
    assert np.nonzero(pong.over)[0].tolist() == [over]
    assert pong.score[over] == pong.reward[: over + 1].sum() == -21
    assert pong.reward[over] == -1
    assert pong.score[over + 1] == 0


@pytest.mark.parametrize("evaluation", [False, True])
def test_a_limit_truncates_the_game_though_lives_are_left(backend: str, evaluation: bool) -> None:
    vector = make(backend, "Breakout", 2, limit=10, evaluation=evaluation, frame_skip=2)
    cut = play(vector, 23, actions=np.zeros((23, 2), np.int64))
    assert np.nonzero(cut.truncated[:, 0])[0].tolist() == [9, 20]
    assert not cut.terminated.any()
    if cut.over is not None:
        np.testing.assert_array_equal(cut.over, cut.truncated)


def test_a_game_is_truncated_after_half_an_hour_of_frames(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(atari, "MAX_FRAMES", 42)
    cut = play(make(backend, "Breakout", 1, frame_skip=3), 16)
    assert np.nonzero(cut.truncated[:, 0])[0].tolist() == [13]


@pytest.mark.parametrize("evaluation", [False, True])
def test_fire_begins_every_life_so_that_breakout_never_waits(backend: str, evaluation: bool) -> None:
    idle = np.zeros((170, 1), np.int64)
    fires = play(make(backend, "Breakout", 1, evaluation=evaluation), 170, actions=idle)
    waits = play(make(backend, "Breakout", 1, evaluation=evaluation, fire_reset=False), 170, actions=idle)
    assert fires.ended.sum() >= (1 if evaluation else 5)
    assert not waits.ended.any()


@pytest.fixture(scope="module")
def breakout(backend: str) -> Iterator[VectorEnvironment]:
    """Two games in which actions stick, cut short."""
    vector = make(backend, "Breakout", 2, limit=40, sticky=0.25)
    yield vector
    vector.close()


def test_the_same_seed_repeats_the_games_past_autoresets(backend: str, breakout: VectorEnvironment) -> None:
    first, again = play(breakout, 90), play(breakout, 90)
    two_threads = play(make(backend, "Breakout", 2, limit=40, sticky=0.25, threads=2), 90)
    assert first.truncated.any()
    for other in (again, two_threads):
        np.testing.assert_array_equal(first.observation, other.observation)
        np.testing.assert_array_equal(first.reward, other.reward)


def test_environments_and_seeds_have_streams_of_their_own(breakout: VectorEnvironment) -> None:
    # The same actions everywhere: only the no-ops and the sticking of actions differ.
    actions = np.repeat(np.random.default_rng(0).integers(0, 4, (60, 1)), 2, axis=1)
    played = [play(breakout, 60, seed, actions).observation for seed in (1, 2)]
    assert len({games[:, i].tobytes() for games in played for i in range(2)}) == 4


def test_strided_rows_get_the_same_as_packed_ones(breakout: VectorEnvironment) -> None:
    names = ("observation", "reward", "terminated", "truncated")
    shapes = ((84, 84), (), (), ())
    kinds = (np.uint8, np.float32, np.bool_, np.bool_)
    rows = np.zeros((61, 2), [*zip(names, kinds, shapes, strict=True), ("between", np.uint8)])
    packed = play(breakout, 60)
    breakout.reset(SEED, rows["observation"][0])
    for t in range(60):
        breakout.step(packed.actions[t], *(rows[t + 1][name] for name in names))
    np.testing.assert_array_equal(rows["observation"], packed.observation)
    for name in names[1:]:
        np.testing.assert_array_equal(rows[name][1:], getattr(packed, name))
    assert not rows["between"].any()


def test_a_drawing_is_the_newest_frame_enlarged(breakout: VectorEnvironment) -> None:
    played = play(breakout, 5)
    drawn = breakout.render()
    assert drawn.shape == (336, 336, 3)
    np.testing.assert_array_equal(drawn[::4, ::4, 1], played.observation[-1, 0])


def test_actions_stick_only_where_asked_for(backend: str) -> None:
    # An action that repeats itself cannot be told from one that sticks.
    actions = np.tile(np.array([[2], [3]]), (20, 1))
    games = [
        play(make(backend, "Breakout", 1, noop_max=1, sticky=sticky), 40, seed, actions).observation
        for sticky, seed in ((0.0, 1), (0.0, 2), (0.5, 1))
    ]
    np.testing.assert_array_equal(games[0], games[1])
    assert (games[0] != games[2]).any()


def test_both_backends_show_the_same_first_frames() -> None:
    firsts = []
    for name in BACKENDS:
        vector = make(name, "Breakout", 1, noop_max=1)
        firsts.append(play(vector, 8, actions=np.zeros((8, 1), np.int64)).observation.astype(int))
    assert np.abs(firsts[0] - firsts[1]).mean() < 1

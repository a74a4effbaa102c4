"""Actors record what a team saw and won, and evaluations report it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from cli.film import Film
from cli.skirmish import SIZES, Recruit, Skirmish

from tianji_cli.errors import UsageError
from tianji_cli.roles.episodes import EpisodePlayer
from tianji_cli.roles.policies import BASELINES, RandomPolicy, baseline
from tianji_cli.wire.reports import EvaluatorReport
from tianji_envs.errors import BrokenEnvironmentError

OpenStage = Callable[..., Any]
SEED = 11


class Twin:
    """A skirmish that is given the actions of another one, and what it says of each step."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.world = Skirmish(num_envs)
        self.seen = np.zeros(num_envs, self.world.observation_space.dtype)
        self.reward = np.zeros(num_envs, np.float32)
        self.flags = np.zeros((2, num_envs), np.bool_)
        self.world.reset(seed, self.seen)

    def step(self, actions: npt.NDArray[Any]) -> None:
        self.world.step(actions, self.seen, self.reward, *self.flags)

    @property
    def ended(self) -> npt.NDArray[np.bool_]:
        over: npt.NDArray[np.bool_] = self.flags.any(axis=0)
        return over


def test_an_actor_records_what_a_team_saw_and_which_episodes_it_won(acting: OpenStage) -> None:
    one = acting(steps=6, film=Skirmish(4))
    twin, wins, ends, running = Twin(4, SEED), 0, 0, np.zeros(4)
    for fragment in one.play(20):
        fields = fragment.fields
        for t in range(6):
            np.testing.assert_array_equal(fields["observation"][t], twin.seen)
            twin.step(fields["action"][t])
            np.testing.assert_array_equal(fields["reward"][t], twin.reward)
            np.testing.assert_array_equal(fields["won"][t], twin.world.won)
            running += twin.reward
            expected = np.where(twin.ended, running, np.nan)
            np.testing.assert_array_equal(fields["episode_return"][t], expected)
            running[twin.ended] = 0
            wins += np.count_nonzero(fields["won"][t])
            ends += np.count_nonzero(twin.ended)
        np.testing.assert_array_equal(fields["observation"][6], twin.seen)
    assert 0 < wins < ends


def test_where_nothing_is_won_nothing_is_recorded_of_it(acting: OpenStage) -> None:
    one = acting(steps=6, film=Skirmish(4, winnable=False))
    assert "won" not in one.play(3)[0].fields


def test_a_reward_of_one_agent_that_is_no_number_ends_the_actor(acting: OpenStage) -> None:
    class Broken(Skirmish):
        def step(self, *arrays: npt.NDArray[Any]) -> None:
            super().step(*arrays)
            arrays[2][...] = np.nan

    one = acting(steps=6, film=Broken(4))
    with pytest.raises(BrokenEnvironmentError, match="the return of an episode in environment"):
        one.play(20)


@pytest.mark.parametrize("episodes", [1, 7, 30])
def test_an_evaluation_says_how_many_were_won_and_what_each_agent_got(episodes: int) -> None:
    policy = Witnessed(4)
    player = EpisodePlayer(policy, Skirmish(4), episodes, seed=5)
    assert (player.win_rate, player.agents) == (None, None)
    while player.finished is None:
        player.turn()
    twin, left = Twin(4, 5), [len(range(n, episodes, 4)) for n in range(4)]
    each, all_of_agents, wins = np.zeros((4, 3)), np.zeros(3), 0
    for actions in policy.chosen:
        twin.step(actions)
        each += twin.seen["reward"]
        for n in np.flatnonzero(twin.ended):
            assert twin.world.won is not None
            if left[n]:
                left[n] -= 1
                all_of_agents += each[n]
                wins += twin.world.won[n]
            each[n] = 0
    assert player.agents == pytest.approx(dict(zip(twin.world.agents, all_of_agents / episodes, strict=True)))
    assert sum(player.agents.values()) == pytest.approx(np.mean(player.returns))
    assert player.win_rate == wins / episodes
    assert player.progress.episodes == episodes
    assert replace(player.report(), progress=None, length=None) == EvaluatorReport(
        returns=tuple(player.returns),
        win_rate=player.win_rate,
        agents=player.agents,
    )


class Witnessed(Recruit):
    """Remembers what it chose."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.chosen: list[npt.NDArray[Any]] = []

    def act_greedily(self, observation: npt.NDArray[Any]) -> npt.NDArray[Any]:
        self.chosen.append(super().act_greedily(observation))
        return self.chosen[-1]


def test_a_random_team_draws_uniformly_from_what_is_available() -> None:
    world = Skirmish(3000)
    seen = np.zeros(3000, world.observation_space.dtype)
    world.reset(1, seen)
    policy = RandomPolicy(world, seed=1)
    actions = policy.act_greedily(seen)
    assert actions.shape == (3000, 3)
    assert np.take_along_axis(seen["available"], actions[..., None], axis=-1).all()
    seen["available"][...] = np.arange(4) < np.array(SIZES)[:, None]
    counts = [np.bincount(column, minlength=4) for column in policy.act_greedily(seen).T]
    for size, count in zip(SIZES, counts, strict=True):
        np.testing.assert_allclose(count[:size] / 3000, 1 / size, atol=0.05)
        assert not count[size:].any()


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3),
        gym.spaces.Box(np.array([[-1, -2], [-1, 0]], np.float32), np.array([[1, 2], [1, 0]], np.float32)),
    ],
)
def test_a_random_policy_draws_from_the_space_of_actions(space: gym.Space[Any]) -> None:
    world = Film(5)
    world.action_space = space
    frames = np.zeros((5, 2, 3), np.uint8)
    policy, again, other = RandomPolicy(world, 1), RandomPolicy(world, 1), RandomPolicy(world, 2)
    drawn = [policy.act_greedily(frames) for _ in range(20)]
    assert all(space.contains(action) for actions in drawn for action in actions)
    np.testing.assert_array_equal(drawn, [again.act_greedily(frames) for _ in range(20)])
    assert not np.array_equal(drawn, [other.act_greedily(frames) for _ in range(20)])
    assert len({actions.tobytes() for actions in drawn}) > 10, "it goes on drawing"


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_plays_as_many_episodes_as_an_agent(name: Any) -> None:
    world = Skirmish(4)
    world.heuristic = lambda seen: seen["available"].argmax(axis=-1)
    player = EpisodePlayer(baseline(name, world, 5), world, 10, seed=5)
    while player.finished is None:
        player.turn()
    assert len(player.returns) == 10


def test_a_heuristic_is_refused_where_there_is_none() -> None:
    with pytest.raises(UsageError, match="has no heuristic"):
        baseline("heuristic", Skirmish(1), 1)

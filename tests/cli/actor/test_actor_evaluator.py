import itertools
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cli.film import Film, Witness

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Spaces, build_model
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings
from tianji_cli.roles.episodes import EpisodePlayer, EvaluationLimits, Moment
from tianji_cli.roles.policies import RandomPolicy
from tianji_cli.wire.reports import Evaluating, Evaluation, EvaluatorReport
from tianji_envs.core import BaseEnv, VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.gym import GymFactory
from tianji_envs.serial import GymnasiumEnv, SerialVectorEnvironment

SPACES = Spaces(gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2))


class Walk(BaseEnv):
    """Episodes of so many steps, each of which is worth 1."""

    def __init__(self, steps: int) -> None:
        self.observation_space, self.action_space = SPACES.observation, SPACES.action
        self.steps, self.left = steps, 0

    def reset(self, seed: int | None = None) -> Any:  # noqa: ARG002 - it always begins alike
        self.left = self.steps
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool]:  # noqa: ARG002 - it walks on
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0 and self.steps % 2 == 0, self.left == 0


def build_agent(spaces: Spaces, num_envs: int) -> Agent:
    model_type = algorithms.load("model", "mlp_actor_critic")
    model = build_model(model_type, spaces, MLPActorCriticSettings(hidden=(8,)), 1)
    agent: Agent = algorithms.load("agent", "ppo")(spaces, model, PPOAgentSettings(), num_envs, 1)
    return agent


def walks(*lengths: int) -> SerialVectorEnvironment:
    following = itertools.cycle(lengths)
    return SerialVectorEnvironment("walks", lambda: Walk(next(following)), len(lengths))


@pytest.mark.parametrize("episodes", [1, 2, 3, 7, 9, 10])
def test_exactly_as_many_episodes_are_played_as_asked(episodes: int) -> None:
    player = EpisodePlayer(build_agent(SPACES, 3), walks(2, 3, 11), episodes, seed=1)
    turns = 0
    while player.finished is None:
        assert player.turn()
        turns += 1
    assert len(player.returns) == episodes
    assert player.finished == f"{episodes} episodes"
    assert not player.turn()
    report = player.report()
    assert report == EvaluatorReport(
        returns=tuple(player.returns),
        progress=report.progress,
        length=sum(player.returns) / episodes,  # A walk gives 1 for each step.
    ), "no limit was reached, nothing is won, and it is no team"
    player.environment.close()


def test_long_episodes_count_as_often_as_short_ones() -> None:
    player = EpisodePlayer(build_agent(SPACES, 4), walks(1, 2, 5, 60), 12, seed=1)
    while player.finished is None:
        player.turn()
    assert sorted(player.returns) == [1.0] * 3 + [2.0] * 3 + [5.0] * 3 + [60.0] * 3


class Priced(gym.Env[Any, Any]):
    """A walk that costs as much as it is long, and is a success if that is odd."""

    observation_space, action_space = SPACES.observation, SPACES.action

    def __init__(self, steps: int) -> None:
        self.walk = Walk(steps)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed, options=options)
        return self.walk.reset(), {}

    def step(self, action: Any) -> Any:
        steps = self.walk.steps
        return *self.walk.step(action), {"success": steps % 2 == 1, "cost": steps}


def test_metrics_are_means_over_the_episodes_that_count() -> None:
    following = iter((2, 3, 7))
    asked = ("success", "cost")
    environment = SerialVectorEnvironment(
        "priced", lambda: GymnasiumEnv(Priced(next(following))), 3, metrics=asked
    )
    player = EpisodePlayer(build_agent(SPACES, 3), environment, 6, seed=1, metrics=asked)
    assert player.metrics is None
    while player.finished is None:
        player.turn()
    # Two of each: what short ones play beyond their share counts nowhere.
    assert player.report().metrics == {"success": pytest.approx(2 / 3), "cost": 4.0}


def test_what_was_begun_is_played_to_its_end_and_nothing_is_begun_any_more() -> None:
    limits = EvaluationLimits(begins_s=0.0)
    plays = EpisodePlayer(build_agent(SPACES, 3), walks(2, 3, 11), 100, 1, limits)
    while plays.finished is None:
        plays.turn()
    assert sorted(plays.returns) == [2.0, 3.0, 11.0]
    assert plays.cut_off is None
    report = plays.report()
    assert report.progress is not None
    evaluation = Evaluation.of(report, report.progress.wanted)
    assert (evaluation.episodes, evaluation.left_out, evaluation.cut_off) == (3, 0, None)


def play_within(limits: EvaluationLimits, *lengths: int) -> EpisodePlayer:
    player = EpisodePlayer(build_agent(SPACES, len(lengths)), walks(*lengths), 6, seed=1, limits=limits)
    while player.finished is None:
        player.turn()
    assert not player.turn()
    return player


def test_a_limit_of_steps_leaves_out_what_has_not_ended_by_then() -> None:
    player = play_within(EvaluationLimits(max_steps=100), 2, 5, 10**9)
    assert player.returns == [2.0, 2.0, 5.0, 5.0]
    assert (player.finished, player.cut_off) == ("4 episodes", "100 env steps")
    progress = player.progress
    # Twice 2 and 5 steps are those of episodes that ended; a step that only begins one counts nowhere.
    assert replace(progress, seconds=0.0) == Evaluating(4, 6, 100, 0.0)


def test_a_limit_of_time_ends_episodes_that_never_would() -> None:
    player = play_within(EvaluationLimits(max_s=0.2), 10**9, 10**9)
    assert (player.returns, player.cut_off) == ([], "0.2 s")
    assert player.progress.seconds >= 0.2
    assert player.report().cut_off == "0.2 s"


def test_a_limit_that_the_last_episode_just_reaches_leaves_nothing_out() -> None:
    assert play_within(EvaluationLimits(max_steps=6 * 7), 7, 7, 7).cut_off is None


def test_greedy_episodes_repeat_themselves_with_the_seed() -> None:
    def play(seed: int) -> list[float]:
        environment = GymFactory().make("CartPole-v1", 4)
        spaces = Spaces(environment.observation_space, environment.action_space)
        player = EpisodePlayer(build_agent(spaces, 4), environment, 10, seed)
        while player.finished is None:
            player.turn()
        environment.close()
        return player.returns

    assert play(1) == play(1) != play(2)


def test_it_is_known_where_the_first_environment_is() -> None:
    player = EpisodePlayer(build_agent(SPACES, 2), walks(3, 7), 4, seed=1)
    seen = []
    while player.finished is None:
        seen.append(replace(player.moment))
        player.turn()
    first = [Moment(1, step, float(step > 0), float(step), step == 3) for step in range(4)]
    assert seen[:4] == first, "before the first step nothing has been won"
    assert seen[4:8] == [replace(moment, episode=2) for moment in first]


def test_a_game_is_one_episode_however_many_lives_it_has() -> None:
    film = Film(1, end_rate=0.3, games=True)
    player = EpisodePlayer(Witness(1), film, 5, seed=5)
    ends, steps = [], 0
    while player.finished is None:
        steps += not film._ended[0]
        player.turn()
        assert player.moment.step == steps, "a step that only begins a life counts nowhere"
        if player.moment.over:
            ends.append((player.moment.episode, player.moment.score))
            steps = 0
    assert ends == list(enumerate(player.returns, start=1))


@pytest.mark.parametrize("stack", [1, 4])
def test_whole_games_are_played_where_an_episode_is_less(stack: int) -> None:
    film, witness = Film(3, stack, 0.3, games=True), Witness(3)
    player = EpisodePlayer(witness, film, 7, seed=5)
    twin = Film(3, stack, 0.3, games=True)
    assert twin.games is not None
    shown, numbers, flags = np.zeros((3, 2, 3), np.uint8), np.zeros(3, np.float32), np.zeros((2, 3), np.bool_)
    twin.reset(5, shown)
    left, expected = [3, 2, 2], []
    while player.finished is None:
        player.turn()
        twin.step(np.zeros(3), shown, numbers, flags[0], flags[1])
        for n in np.flatnonzero(twin.games.over):
            if left[n]:
                left[n] -= 1
                expected.append(float(twin.games.score[n]))
    assert player.returns == expected
    assert any(abs(score) > 9 for score in expected), "rewards are clipped, and scores are not"


@pytest.mark.parametrize("stack", [1, 4])
def test_an_agent_that_plays_greedily_sees_the_last_frames_of_its_episode_only(stack: int) -> None:
    film, witness = Film(2, stack, 0.3), Witness(2)
    for seed in (1, 2):  # The second time it remembers nothing of the first.
        player = EpisodePlayer(witness, film, 20, seed)
        twin = Film(2, stack, 0.3)
        shown, numbers, flags = (
            np.zeros((2, 2, 3), np.uint8),
            np.zeros(2, np.float32),
            np.zeros((2, 2), np.bool_),
        )
        twin.reset(seed, shown)
        episodes = [[shown[n].copy()] for n in range(2)]
        while player.finished is None:
            np.testing.assert_array_equal(witness.since, [len(frames) - 1 for frames in episodes])
            player.turn()
            for n, frames in enumerate(episodes):
                seen = witness.said.seen[-1][n].reshape(stack, 2, 3)
                np.testing.assert_array_equal(seen, [*[np.zeros((2, 3))] * stack, *frames][-stack:])
            ended = flags.any(axis=0)
            twin.step(np.zeros(2), shown, numbers, flags[0], flags[1])
            episodes = [[shown[n].copy()] if ended[n] else [*episodes[n], shown[n].copy()] for n in range(2)]
        assert len(player.returns) == 20


class Lies(VectorEnvironment):
    """Two walks of three steps, of which the second gives something wrong in its second episode."""

    num_envs = 2
    observation_space, action_space = gym.spaces.Discrete(5), gym.spaces.Discrete(2)

    def __init__(self, what: str) -> None:
        self.what, self.made = what, 0

    def reset(self, seed: int, observation: Any) -> None:  # noqa: ARG002
        observation[...] = 0

    def step(self, actions: Any, observation: Any, reward: Any, terminated: Any, truncated: Any) -> None:  # noqa: ARG002
        self.made += 1
        observation[...] = self.made % 4
        reward[...] = self.made % 4 != 0
        terminated[...] = self.made % 4 == 3
        truncated[...] = False
        if self.what == "number" and self.made == 6:
            observation[1] = 5
        if self.what == "reset" and self.made == 8:
            terminated[1] = True

    def render(self) -> Any: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (
            "number",
            "environment 1 of an evaluation gave 5 as observation in step 2 of its episode: observation_sp",
        ),
        ("reset", "environment 1 of an evaluation says terminated in the step after an episode's end"),
    ],
)
def test_an_evaluation_refuses_what_a_training_does(what: str, words: str) -> None:
    environment = Lies(what)
    policy = RandomPolicy(environment, 1)
    player = EpisodePlayer(policy, environment, 20, seed=1)
    with pytest.raises(BrokenEnvironmentError, match=words):
        all(player.turn() for _ in range(50))
    assert len(player.returns) == (2 if what == "number" else 4)

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Spaces, build_model
from tianji_algos.models.settings import MLPActorCriticSettings
from tianji_algos.ppo.settings import PPOAgentSettings
from tianji_cli.roles.evaluator import Evaluator
from tianji_envs.core import BaseEnv
from tianji_envs.gym import GymFactory
from tianji_envs.serial import SerialVectorEnvironment

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
    evaluator = Evaluator(build_agent(SPACES, 3), walks(2, 3, 11), episodes, seed=1)
    turns = 0
    while evaluator.finished is None:
        assert evaluator.turn()
        turns += 1
    assert len(evaluator.returns) == episodes
    assert evaluator.finished == f"{episodes} episodes"
    assert not evaluator.turn()
    assert evaluator.report() == {"returns": evaluator.returns}
    evaluator.close()


def test_long_episodes_count_as_often_as_short_ones() -> None:
    evaluator = Evaluator(build_agent(SPACES, 4), walks(1, 2, 5, 60), 12, seed=1)
    while evaluator.finished is None:
        evaluator.turn()
    assert sorted(evaluator.returns) == [1.0] * 3 + [2.0] * 3 + [5.0] * 3 + [60.0] * 3


def test_greedy_episodes_repeat_themselves_with_the_seed() -> None:
    def play(seed: int) -> list[float]:
        environment = GymFactory().make("CartPole-v1", 4)
        spaces = Spaces(environment.observation_space, environment.action_space)
        evaluator = Evaluator(build_agent(spaces, 4), environment, 10, seed)
        while evaluator.finished is None:
            evaluator.turn()
        evaluator.close()
        return evaluator.returns

    assert play(1) == play(1) != play(2)


def test_every_step_can_be_watched() -> None:
    watched: list[int] = []
    watch: Callable[[Any], None] = lambda environment: watched.append(environment.num_envs)  # noqa: E731
    evaluator = Evaluator(build_agent(SPACES, 1), walks(5), 2, seed=1, on_step=watch)
    while evaluator.finished is None:
        evaluator.turn()
    assert watched == [1] * (5 + 1 + 5)

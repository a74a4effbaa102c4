"""MADDPG on games whose best play is known."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import pytest
from algos.maddpg_team import Play

from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.team import TeamSpace
from tianji_envs.teams.matrix_game import MatrixGameFactory

Array = npt.NDArray[Any]

ENVS = 32
MODEL = {"hidden": (32,), "critic_hidden": (32,)}
DISCRETE = {"epsilon_start": 1.0, "epsilon_end": 0.1, "exploration_steps": 12_000}
TRAINING = {
    "batch_size": 128,
    "warmup_steps": 640,
    "learning_rate": 1e-2,
    "target_tau": 0.02,
    "max_grad_norm": 0.5,
    "reward_scale": 0.1,
}


def learn(environment: VectorEnvironment, steps: int, seed: int, **settings: dict[str, Any]) -> Play:
    play = Play(
        environment,
        MODEL | settings.get("model", {}),
        settings.get("agent", DISCRETE),
        TRAINING | settings.get("training", {}),
        seed,
    )
    play.train(steps)
    return play


def best_return(play: Play, game: str) -> tuple[float, list[list[int]]]:
    """Play one episode as is thought best: what the team gets, and what it does."""
    environment = MatrixGameFactory().make(game, 1)
    seen = np.zeros(1, environment.observation_space.dtype)
    environment.reset(0, seen)
    reward, flags, total, actions = np.zeros(1, np.float32), np.zeros((2, 1), np.bool_), 0.0, []
    agent = play.evaluator(1)
    while not flags.any():
        chosen = agent.act_greedily(seen)
        actions.append(chosen[0].tolist())
        environment.step(chosen, seen, reward, *flags)
        total += float(reward[0])
    return total, actions


@pytest.mark.parametrize("seed", [0, 1])
def test_the_two_step_games_optimum_is_found(seed: int) -> None:
    play = learn(MatrixGameFactory().make("two_step", ENVS), 700, seed, model={"rewards": "team"})
    total, actions = best_return(play, "two_step")
    assert total == 8.0
    assert actions[1] == [1, 1]


@pytest.mark.parametrize(("rewards", "action"), [("individual", 1), ("team", 0)])
def test_prisoners_betray_each_other_unless_they_share_the_reward(rewards: str, action: int) -> None:
    play = learn(MatrixGameFactory().make("prisoners_dilemma", ENVS), 500, 0, model={"rewards": rewards})
    assert best_return(play, "prisoners_dilemma")[1] == [[action, action]]


class Sum(VectorEnvironment):
    """Two agents, one of which sees a number, should do numbers whose sum is that.

    One can go from 0 to 2, the other has two numbers from -1 to 1, of which the second is for nothing.
    """

    def __init__(self) -> None:
        self.num_envs, self.agents = ENVS, ("a", "b")
        self.observation_space = TeamSpace(2, 1, None)
        low, high = np.array([[0, 0], [-1, -1]], np.float32), np.array([[2, 0], [1, 1]], np.float32)
        self.action_space = gym.spaces.Box(low, high)
        self._rng = np.random.default_rng(0)
        self._ended = False

    def reset(self, seed: int, observation: Array) -> None:
        self._rng = np.random.default_rng(seed)
        self._begin(observation)

    def step(
        self, actions: Array, observation: Array, reward: Array, terminated: Array, truncated: Array
    ) -> None:
        assert ((actions >= self.action_space.low) & (actions <= self.action_space.high)).all()
        missed = self._wanted - actions[..., 0].sum(axis=1)
        reward[:] = 0.0 if self._ended else -(missed**2)
        terminated[:], truncated[:] = not self._ended, False
        self._begin(observation)
        observation["reward"] = reward[:, None] / 2
        self._ended = not self._ended

    def _begin(self, observation: Array) -> None:
        if not self._ended:
            self._wanted = self._rng.uniform(-0.5, 2.5, ENVS)
        observation["observation"][..., 0] = np.outer(self._wanted, (1.0, 0.0))
        observation["alive"], observation["reward"] = True, 0.0

    def render(self) -> npt.NDArray[np.uint8]:
        raise BrokenEnvironmentError("there is nothing to draw")

    def close(self) -> None:
        pass


@pytest.mark.parametrize("model", [{}, {"rewards": "team", "share_parameters": True}])
def test_agents_with_unlike_bounds_learn_a_sum(model: dict[str, Any]) -> None:
    noise = {"noise_start": 0.5, "noise_end": 0.2, "exploration_steps": 16_000}
    training = {"learning_rate": 3e-3, "reward_scale": 1.0}
    play = learn(Sum(), 1000, 1, model=model, agent=noise, training=training)
    seen = np.zeros(ENVS, play.spaces.observation.dtype)
    seen["alive"] = True
    wanted = np.linspace(0.0, 2.0, ENVS)
    seen["observation"][:, 0, 0] = wanted
    missed = play.evaluator(ENVS).act_greedily(seen)[..., 0].sum(axis=1) - wanted
    assert np.abs(missed).mean() < 0.15

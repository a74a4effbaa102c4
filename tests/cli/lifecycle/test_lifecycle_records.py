"""Trainings on Dict and Tuple observations, from a user's environment to the policy that is played."""

import copy
from typing import Any

import pytest

HINTS = '''
import gymnasium
import numpy as np
from gymnasium import spaces


class Hints(gymnasium.Env):
    """An episode of 20 steps, each worth 1 if the action is the one that a part of the observation says."""

    def __init__(self, camera=False):
        hint = spaces.Tuple((spaces.Discrete(3), spaces.Text(4)))
        parts = {"hint": hint, "noise": spaces.Box(-1.0, 1.0, (2,))}
        if camera:
            parts["camera"] = spaces.Box(0, 255, (20, 20), np.uint8)
        self.observation_space = spaces.Dict(parts)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = 20
        return self._show(), {}

    def step(self, action):
        reward = float(action == self._shown["hint"][0])
        self._left -= 1
        return self._show(), reward, self._left == 0, False, {}

    def _show(self):
        self._shown = self.observation_space.sample()
        return self._shown
'''
ENVIRONMENT = {"type": "my_env:Hints", "id": "", "num_envs": 8}
QUICK = {"training": {"learning_rate": 3e-3}, "experiment": {"eval_episodes": 5, "stop": {"env_steps": 8192}}}
CAMERA = {"options": {"camera": True}}
CONVOLUTIONS = {"channels": [4], "kernels": [8], "strides": [4], "hidden": 32}


@pytest.fixture
def hints(workplace: Any) -> Any:
    workplace.module(HINTS)
    workplace.base = copy.deepcopy(workplace.base) | {"environment": ENVIRONMENT}
    return workplace


def test_a_policy_learns_from_a_part_of_a_part(hints: Any) -> None:
    summary = hints.train(QUICK).finish()
    assert summary["evaluation"]["mean"] > 15.0  # Chance is 6.7.


def test_the_user_hears_of_text_that_is_left_out(hints: Any) -> None:
    run = hints.train(QUICK, options=())
    run.finish()
    assert run.command.stderr.count("of the observations hint.1 is left out: no network takes text") == 1


def test_convolutions_and_layers_are_joined(hints: Any) -> None:
    model = {"type": "cnn_actor_critic", **CONVOLUTIONS}
    hints.base["model"] = model
    longer = {"experiment": {"stop": {"env_steps": 24_576}}}
    summary = hints.train(QUICK, {"environment": CAMERA}, longer).finish()
    assert summary["evaluation"]["mean"] > 12.0


def test_a_replay_holds_records(hints: Any) -> None:
    hints.base["agent"], hints.base["model"] = {"type": "dqn", "epsilon_steps": 2000}, {"type": "mlp_q"}
    hints.base["training"] = {"warmup_steps": 512, "batch_size": 64, "learning_rate": 1e-3, "gamma": 0.5}
    hints.base["distribution"]["actor"]["send_size"] = 4
    summary = hints.train({"experiment": QUICK["experiment"]}).finish()
    assert summary["evaluation"]["mean"] > 12.0


def test_a_network_without_convolutions_is_refused_images(hints: Any) -> None:
    command = hints.train({"environment": CAMERA}).command
    command.wait(2)
    assert "learns next to nothing from images" in command.stderr

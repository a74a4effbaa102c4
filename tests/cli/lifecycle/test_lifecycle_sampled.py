"""The result of an evaluation says where greedy episodes and those drawn as in training are apart."""

from __future__ import annotations

import copy
import json
from typing import Any

from cli.lifecycle.test_lifecycle_far import AIMING

WORLDS = """
import gymnasium
import numpy as np

class Lively(gymnasium.Env):
    least = 0.3

    def __init__(self):
        self.observation_space = self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.step_number += 1
        reward = float(abs(action[0]) > self.least)
        return np.zeros(1, np.float32), reward, False, self.step_number == 20, {}

class Calm(Lively):
    least = -1
"""
SHORT = {"experiment": {"stop": {"env_steps": 1024}, "eval_episodes": 100}}


def test_greedy_and_sampled_returns_are_both_shown_where_they_are_apart(workplace: Any) -> None:
    workplace.module(WORLDS)
    workplace.base = copy.deepcopy(AIMING)
    run = workplace.train(SHORT, {"environment": {"type": "my_env:Lively"}})
    found = run.finish()["evaluation"]
    assert found["mean"] < 2, "what a policy that has learnt nothing does is about 0"
    assert found["sampled"]["episodes"] == 10
    assert 12 < found["sampled"]["mean"] < 18
    assert "in 10 whose actions were drawn as in training" in run.command.stdout
    command = workplace.command("eval", str(run.path), "--json", "-")
    command.wait(0)
    again = json.loads(command.stdout)
    assert (again["mean"], again["sampled"]) == (found["mean"], found["sampled"])


def test_nothing_is_said_of_sampled_returns_that_are_the_same(workplace: Any) -> None:
    workplace.module(WORLDS)
    workplace.base = copy.deepcopy(AIMING)
    run = workplace.train(SHORT, {"environment": {"type": "my_env:Calm"}})
    found = run.finish()["evaluation"]
    assert found["mean"] == 20
    assert found.get("sampled") is None
    assert "drawn as in training" not in run.command.stdout

"""Actions and observations that are far from zero are learnt as those that are near it."""

from __future__ import annotations

import copy
import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from cli.lifecycle.test_lifecycle_export import Exported, noise_of

import tianji


@pytest.fixture(autouse=True)
def modules_of_a_test_are_not_the_next_one_s(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("my_env", None)


AIM = """
import gymnasium
import numpy as np

class Aim(gymnasium.Env):
    low, high, dtype, target, width = 10, 30, np.float32, 23, 20

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Box(self.low, self.high, (1,), self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert action.dtype == self.dtype and self.action_space.contains(action), action
        self.step_number += 1
        missed = abs(float(action[0]) - self.target) / self.width
        return np.zeros(1, np.float32), 1 - missed, False, self.step_number == 20, {}

class Wide(Aim):
    low, high, dtype, target, width = 0, 1000, np.float64, 700, 1000

class Open(Aim):
    low, high, target, width = 100, np.inf, 101.5, 2
"""
AIMING: dict[str, Any] = {
    "experiment": {
        "name": "run",
        "seed": 1,
        "stop": {"env_steps": 20_000},
        "eval_episodes": 0,
        "plots": False,
    },
    "environment": {"type": "my_env:Aim", "num_envs": 8},
    "agent": {"type": "ppo"},
    "model": {"type": "mlp_actor_critic", "hidden": [16]},
    "training": {"rollout_steps": 512, "minibatch_size": 128, "epochs": 10, "learning_rate": 3e-3},
    "distribution": {"transport": "inproc", "mode": "sync", "pin_cores": False, "actor": {"send_size": 16}},
}


def greedy_return(workplace: Any, run: Path) -> float:
    command = workplace.command("eval", str(run), "--episodes", "2", "--checkpoint", "last", "--json", "-")
    command.wait(0)
    return float(json.loads(command.stdout)["mean"])


@pytest.mark.parametrize(
    ("environment", "target", "width"), [("Aim", 23, 20), ("Wide", 700, 1000), ("Open", 101.5, 2)]
)
def test_actions_between_bounds_far_from_one_are_learnt_and_leave_in_the_spaces_own_type(
    workplace: Any, environment: str, target: float, width: float
) -> None:
    workplace.module(AIM)
    workplace.base = copy.deepcopy(AIMING)
    run = workplace.train({"environment": {"type": f"my_env:{environment}"}})
    run.finish()
    assert greedy_return(workplace, run.path) > 19, "of 20; 7 where the policy plays a bound for ever"
    policy, seen = tianji.load(run.path, "last"), np.zeros((50, 1), np.float32)
    file = Exported(workplace, run.path, "onnx", "--checkpoint", "last")
    found = file(observation=seen, noise=noise_of("normal", (50, 1)))
    for name, acts_greedily in (("action", True), ("sampled_action", False)):
        wanted = policy.act(seen, deterministic=acts_greedily)
        assert found[name].dtype == wanted.dtype == policy.action_space.dtype
        np.testing.assert_allclose(found[name], wanted, atol=1e-5 * width)
    assert abs(found["action"] - target).max() < 0.05 * width


def test_a_run_older_than_scaled_actions_acts_as_it_did(workplace: Any) -> None:
    workplace.module(AIM)
    workplace.base = copy.deepcopy(AIMING)
    run = workplace.train({"experiment": {"stop": {"env_steps": 1024}}, "agent": {"scale_actions": False}})
    run.finish()
    config = tomllib.loads((run.path / "config.toml").read_text())
    del config["agent"]["scale_actions"]
    (run.path / "config.toml").write_text(tomli_w.dumps(config))
    assert (tianji.load(run.path, "last").act(np.zeros((9, 1), np.float32)) == 10.0).all()

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
    file = Exported(workplace, run.path, "--checkpoint", "last", "--sampled")
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


GUESS = """
import gymnasium
import numpy as np

class Guess(gymnasium.Env):
    offset, width = 1.7e9 + 50, 1.0  # 1.7e9 itself is a number of float32, and so is no test

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        return self.show(), {}

    def show(self):
        self.drawn = self.np_random.random()
        return np.array([self.offset + self.width * self.drawn, 0.1])

    def step(self, action):
        reward = float(action == (self.drawn > 0.5))
        self.step_number += 1
        return self.show(), reward, False, self.step_number == 20, {}

class Close(Guess):
    offset, width = 0.0, 1e-6

class Single(Guess):
    def __init__(self):
        super().__init__()
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def show(self):
        return super().show().astype(np.float32)

class Parts(Guess):
    def __init__(self):
        super().__init__()
        still = gymnasium.spaces.Box(0, 9, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(still=still, time=self.observation_space)

    def show(self):
        return {"still": np.array([3], np.float32), "time": super().show()}
"""
GUESSING = AIMING | {"training": AIMING["training"] | {"minibatch_size": 64}}
OF_A_REPLAY: dict[str, Any] = {
    **(GUESSING | {"distribution": AIMING["distribution"] | {"mode": "async"}}),
    "agent": {"type": "dqn", "epsilon_steps": 4000},
    "model": {"type": "mlp_q", "hidden": [32]},
    "training": {
        "warmup_steps": 512,
        "batch_size": 64,
        "learning_rate": 3e-3,
        "normalize_observations": True,
    },
}


@pytest.mark.parametrize(
    ("config", "environment"),
    [
        (GUESSING, "Guess"),
        (GUESSING, "Close"),
        (GUESSING, "Parts"),
        (OF_A_REPLAY, "Guess"),
        (OF_A_REPLAY, "Close"),
    ],
    ids=["ppo", "ppo-close", "ppo-parts", "dqn", "dqn-close"],
)
def test_observations_far_from_zero_and_close_together_are_learnt(
    workplace: Any, config: dict[str, Any], environment: str
) -> None:
    workplace.module(GUESS)
    workplace.base = copy.deepcopy(config)
    run = workplace.train({"environment": {"type": f"my_env:{environment}"}})
    returns = run.finish()["returns"]
    assert config is OF_A_REPLAY or returns["mean_100"] > 18.5, "17 with an epsilon that is not relative"
    assert greedy_return(workplace, run.path) > 18, "of 20; chance is 10"
    policy = tianji.load(run.path, "last")
    offset, width = (0.0, 1e-6) if environment == "Close" else (1.7e9 + 50, 1.0)
    time = np.stack([offset + width * np.linspace(0, 1, 50), np.full(50, 0.1)], axis=1)
    parts = {"still": np.full((50, 1), 3, np.float32), "time": time}
    chosen = policy.act(parts if environment == "Parts" else time)
    assert (chosen == (np.linspace(0, 1, 50) > 0.5)).mean() > 0.9
    file = Exported(workplace, run.path, "--checkpoint", "last")
    inputs = {f"observation.{name}": part for name, part in parts.items()}
    inputs = inputs if environment == "Parts" else {"observation": time}
    np.testing.assert_array_equal(file(**inputs)["action"], chosen)


@pytest.mark.parametrize(
    ("environment", "normalizes", "way_out"),
    [
        ("Single", True, "float64 in observation_space"),
        ("Guess", False, "training.normalize_observations = true"),
        ("Guess", True, None),
        ("Close", False, None),
    ],
)
def test_a_run_says_once_that_float32_loses_the_changes_of_a_number(
    workplace: Any, environment: str, normalizes: bool, way_out: str | None
) -> None:
    workplace.module(GUESS)
    workplace.base = copy.deepcopy(GUESSING)
    changes = {
        "experiment": {"stop": {"env_steps": 1024}},
        "environment": {"type": f"my_env:{environment}"},
        "training": {"normalize_observations": normalizes},
    }
    run = workplace.train(changes)
    run.finish()
    said = "and float32 says such numbers in steps of 128: "
    assert run.log.count(said) == (way_out is not None)
    assert way_out is None or f"{said}{way_out} would be right" in run.log

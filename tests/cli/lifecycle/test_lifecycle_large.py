"""Rewards near the largest number of float32, and parameters that are no numbers any more."""

import json
import math
from typing import Any

import numpy as np
import pytest

import tianji

MODULE = """
import gymnasium, torch
from tianji_algos.ppo.ppo import PPOEmbryo

class Large(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, reward=1e38, alternates=False):
        self.reward, self.alternates, self.left = reward, alternates, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 20
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        reward = -self.reward if self.alternates and self.left % 2 else self.reward
        return self.observation_space.sample(), reward, self.left == 0, False, {}

class Poisoned(PPOEmbryo):
    updates = 0

    def update(self, batch):
        result = super().update(batch)
        self.updates += 1
        if self.updates == 8:  # The last of a rollout: what comes of it is published next.
            with torch.no_grad():
                next(self.model.parameters())[0] = float("nan")
        return result

gymnasium.register("Large-v0", Large)
"""
CONFIG: dict[str, Any] = {
    "environment": {"id": "my_env:Large-v0", "num_envs": 4},
    "training": {"normalize_rewards": False, "reward_scale": 1e-38},
    "experiment": {"stop": {"env_steps": 3000}, "thresholds": [1e38]},
}


@pytest.fixture(autouse=True)
def module(workplace: Any) -> None:
    workplace.module(MODULE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "expected"), [({}, 20 * 1e38), ({"reward": 3e38, "alternates": True}, 0.0)]
)
def test_returns_beyond_float32_are_numbers_and_the_run_is_resumed_and_loaded(
    workplace: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: float
) -> None:
    run = workplace.train(CONFIG, {"environment": {"options": options}})
    summary = run.finish()
    for key in ("mean_100", "best_mean_100"):
        assert summary["returns"][key] == pytest.approx(expected)
    state = json.loads((run.path / "checkpoints/last/state.json").read_text())
    assert state["episodes"]["best_mean"] == pytest.approx(expected)
    assert [seconds is not None for _, seconds in state["episodes"]["time_to"]] == [expected > 0]
    again = workplace.resume(run, "--set", "experiment.stop.env_steps=4000").finish()
    assert again["returns"]["best_mean_100"] == pytest.approx(expected)
    monkeypatch.syspath_prepend(str(workplace.place))
    assert tianji.load(run.path).act(np.zeros(2, np.float32)) in {0, 1}
    evaluated = workplace.command("eval", str(run.path), "--episodes", "2", "--json", "-")
    evaluated.wait(0)
    assert json.loads(evaluated.stdout)["mean"] == pytest.approx(expected)


@pytest.mark.timeout(300)
def test_a_reward_that_float32_does_not_hold_is_named(workplace: Any) -> None:
    run = workplace.train(CONFIG, {"environment": {"options": {"reward": 1e39}}})
    run.command.wait(1)
    assert "environment 0 of actor 0" in run.command.last_words
    assert "3.4e+38" in run.command.last_words


@pytest.mark.timeout(300)
def test_parameters_that_are_no_numbers_end_the_run_and_its_last_checkpoint_is_good(workplace: Any) -> None:
    run = workplace.train({"training": {"type": "my_env:Poisoned"}})
    run.command.wait(1)
    assert "has numbers that are not finite: training has diverged" in run.command.last_words
    assert run.summary["status"] == "failed"
    state = json.loads((run.path / "checkpoints/last/state.json").read_text())
    assert state["progress"]["updates"] == 0
    assert all(math.isfinite(row["returns.mean_100"] or 0.0) for row in run.rows if "returns.mean_100" in row)
    workplace.command("eval", str(run.path), "--episodes", "1", "--checkpoint", "last").wait(0)
    workplace.module(MODULE.replace('float("nan")', "0.0"))  # Mended, it goes on from there.
    workplace.resume(run).finish()

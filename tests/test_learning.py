"""Trainings in step from a fixed seed, as a user starts them: the same every time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli.warm import Tianji

ROOT = Path(__file__).parents[1]

HIDDEN = """
[experiment]
name = "hidden"
seed = 1
eval_episodes = 20
stop = { env_steps = 60_000 }

[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 32
max_episode_steps = 200
wrappers = ["hidden_cartpole:HideVelocities"]

[agent]
type = "ppo"

[model]
hidden = [32]

[training]
rollout_steps = 2048
minibatch_size = 512
epochs = 4
learning_rate = 3e-3
gae_lambda = 0.9
normalize_advantage = "rollout"
normalize_observations = false
normalize_rewards = false
reward_scale = 0.1

[distribution]
transport = "inproc"
mode = "sync"
pin_cores = false

[distribution.actor]
send_size = 32
"""


def train(tianji: Tianji, config: Path, out: Path, *overrides: str) -> dict[str, Any]:
    """The summary of a run."""
    summary = out / "summary.json"
    options = [word for override in overrides for word in ("--set", override)]
    tianji("train", str(config), "--quiet", "--out", str(out), "--json", str(summary), *options)
    result: dict[str, Any] = json.loads(summary.read_text())
    assert result["status"] == "finished"
    return result


def test_a2c_learns_cartpole(tianji: Tianji, tmp_path: Path) -> None:
    result = train(tianji, ROOT / "configs/a2c_cartpole.toml", tmp_path, "distribution.pin_cores=false")
    assert result["evaluation"]["mean"] >= 475.0
    assert result["env_steps"] < 400_000


@pytest.mark.parametrize(
    ("model", "least", "most"),
    [
        (('model.type="recurrent_actor_critic"', 'model.core="gru"', "model.width=32"), 150.0, 200.0),
        pytest.param(('model.type="mlp_actor_critic"',), 20.0, 80.0, marks=pytest.mark.soak),
    ],
    ids=["remembers", "forgets"],
)
def test_balancing_without_seeing_velocities_takes_a_network_that_remembers(
    tianji: Tianji, tmp_path: Path, model: tuple[str, ...], least: float, most: float
) -> None:
    config = tmp_path / "hidden.toml"
    config.write_text(HIDDEN)
    (tmp_path / "hidden_cartpole.py").symlink_to(ROOT / "docs/examples/hidden_cartpole.py")
    assert least <= train(tianji, config, tmp_path, *model)["evaluation"]["mean"] <= most


def test_r2d2_balances_without_seeing_velocities(tianji: Tianji, tmp_path: Path) -> None:
    result = train(
        tianji, ROOT / "docs/examples/hidden_cartpole.toml", tmp_path, "experiment.eval_episodes=20"
    )
    assert result["evaluation"]["mean"] >= 150.0

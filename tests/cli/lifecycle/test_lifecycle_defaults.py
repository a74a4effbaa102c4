"""A training without a config file, from its first step to going on with it."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from cli.lifecycle.conftest import Run
from safetensors.numpy import load_file


def test_defaults_train_save_their_whole_config_and_are_resumed(workplace: Any) -> None:
    small = (
        *("--set", "training.rollout_steps=512", "--set", "distribution.actor.send_size=16"),
        *("--set", "training.epochs=2", "--set", "environment.num_envs=8"),
        *("--set", "experiment.plots=false", "--set", "experiment.eval_episodes=2", "--quiet"),
    )
    ends = ("--set", "experiment.stop.env_steps=1_200")
    command = workplace.command("train", "--env", "CartPole-v1", "--out", "out", *small, *ends)
    run = Run(workplace.place / "out/ppo_CartPole-v1/1", command)

    summary = run.finish()

    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 1200
    assert summary["updates"] > 0
    config = tomllib.loads((run.path / "config.toml").read_text())
    assert config["environment"]["id"] == "CartPole-v1"
    assert config["training"]["rollout_steps"] == 512
    assert config["training"]["normalize_observations"] == "auto"
    saved = load_file(run.path / "checkpoints/last/training.safetensors")
    assert saved["model.normalizer.observations.count"] > 500
    assert saved["model.normalizer.returns.count"] > 500

    resumed = workplace.resume(run, "--set", "experiment.stop.env_steps=1_900").finish()
    assert resumed["env_steps"] >= 1900


@pytest.mark.parametrize(
    ("env", "agent", "small"),
    [
        ("Blackjack-v1", "dqn", ("training.warmup_steps=64", "training.batch_size=32")),
        ("CarRacing-v3", "ppo", ("training.rollout_steps=64", "training.minibatch_size=32")),
    ],
)
def test_defaults_train_on_several_numbers_and_on_pictures(
    env: str, agent: str, small: tuple[str, ...], workplace: Any
) -> None:
    settings = (
        *small,
        *("environment.num_envs=2", "distribution.actor.num=1", "distribution.actor.send_size=16"),
        *("experiment.plots=false", "experiment.eval_episodes=0", "experiment.stop.env_steps=150"),
    )
    words = [word for setting in settings for word in ("--set", setting)]
    command = workplace.command("train", "--env", env, "--agent", agent, "--out", "out", "--quiet", *words)
    summary = Run(workplace.place / f"out/{agent}_{env}/1", command).finish()
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 150
    assert summary["updates"] > 0

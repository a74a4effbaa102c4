"""Runs of the real command with a GPU: learners on it, and actors too, which share it."""

from __future__ import annotations

from typing import Any

import pytest

STEPS = 4096
ROLLOUTS: dict[str, Any] = {"training": {"rollout_steps": 1024}, "environment": {"num_envs": 16}}
IN_STEP: dict[str, Any] = ROLLOUTS | {"distribution": {"mode": "sync", "actor": {"send_size": 32}}}


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("actors_on", ["cpu", "cuda", "apart"])
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        ("ppo_cartpole", ROLLOUTS),
        ("ppo_cartpole", IN_STEP),
        ("impala_cartpole", ROLLOUTS),
        ("dqn_cartpole", {}),
    ],
    ids=["ppo", "ppo in step", "impala", "dqn"],
)
def test_a_job_trains_on_a_gpu_and_its_policy_is_judged_anywhere(
    workplace: Any, config: str, settings: dict[str, Any], actors_on: str
) -> None:
    workplace.base = {"extends": f"{config}.toml"}
    acting: dict[str, Any] = {"actor": {"num": 2, "device": actors_on}}
    if actors_on == "apart":
        if settings is IN_STEP:
            pytest.skip("inference apart is never in step")
        acting = {"actor": {"num": 2}, "inference": {"device": "cuda"}}
    change = {
        "experiment": {"name": "run", "stop": {"env_steps": STEPS}, "eval_episodes": 2, "thresholds": []},
        "distribution": {"pin_cores": False, **acting},
    }
    run = workplace.train(change, settings, options=("--quiet", "--device", "cuda"))
    run.finish()
    summary = run.summary
    assert summary["status"] == "finished"
    assert summary["received"] >= STEPS
    assert summary["updates"] > 0
    workplace.command("eval", "run", "--out", "out", "--episodes", "2").wait(0)

"""Rewards of any size are learnt where values are normalised, and statistics go on with the run."""

from __future__ import annotations

from typing import Any

import pytest
from cli.lifecycle.conftest import Run
from safetensors.numpy import load_file

STEPS = 20_000
LARGE: dict[str, Any] = {
    "experiment": {"stop": {"env_steps": STEPS}},
    "model": {"hidden": [48, 48], "shared": True},
    "training": {
        "rollout_steps": 1024,
        "minibatch_size": 64,
        "epochs": 10,
        "learning_rate": 1e-3,
        "reward_scale": 100.0,
        "normalize_values": True,
    },
    "distribution": {"mode": "sync"},
}


def statistics(run: Run) -> dict[str, float]:
    """Number, mean and variance of the value targets so far."""
    saved = load_file(run.path / "checkpoints/last/training.safetensors")
    return {name: saved[f"model.normalizer.values.{name}"].item() for name in ("count", "mean", "variance")}


@pytest.mark.parametrize("learners", [1, 2])
def test_large_rewards_are_learnt_in_units_that_are_saved_and_gone_on_with(
    workplace: Any, learners: int
) -> None:
    several = {"distribution": {"learner": {"num": learners}, "actor": {"num": learners}}}
    run = workplace.train(LARGE, several)

    first = run.finish()

    assert first["returns"]["mean_100"] > 40, "without it is 25"
    found = statistics(run)
    assert 0.8 * first["env_steps"] < found["count"] <= first["env_steps"]
    assert found["mean"] > 500
    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={STEPS + 4096}").finish()
    assert 2048 <= statistics(run)["count"] - found["count"] <= again["received"]

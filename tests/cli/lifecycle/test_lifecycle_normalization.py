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
        "normalize_rewards": False,
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


FAR = """
import gymnasium
import numpy as np

class Far(gymnasium.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation):
        return (observation * 1000 + 5000).astype(np.float32)
"""
OF_A_REPLAY: dict[str, Any] = {
    "experiment": {"extensions": ["."], "stop": {"env_steps": 3000}},
    "environment": {"wrappers": ["my_env:Far"]},
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"type": "dqn", "batch_size": 64, "warmup_steps": 256, "normalize_observations": True},
    "distribution": {"mode": "async", "actor": {"send_size": 8}, "buffer": {"capacity": 4096}},
}


def test_observations_of_a_replay_are_counted_as_they_are_drawn(workplace: Any) -> None:
    workplace.module(FAR)
    workplace.base = {
        section: workplace.base[section] for section in ("experiment", "environment", "distribution")
    }
    run = workplace.train(OF_A_REPLAY)

    first = run.finish()

    def drawn() -> tuple[float, Any]:
        saved = load_file(run.path / "checkpoints/last/training.safetensors")
        found = (saved[f"model.normalizer.observations.{name}"] for name in ("count", "mean"))
        count, mean = found
        return count.item(), mean

    count, mean = drawn()
    assert count == first["consumed"] == 64 * first["updates"]
    assert (abs(mean - 5000) < 2000).all()
    again = workplace.resume(run, "--set", "experiment.stop.env_steps=5000").finish()
    assert drawn()[0] == count + again["session"]["consumed"]


def test_a_run_that_is_older_than_the_keys_goes_on_without_normalisation(workplace: Any) -> None:
    off = {"normalize_observations": False, "normalize_rewards": False}
    run = workplace.train({"experiment": {"stop": {"env_steps": 1000}}, "training": off})
    run.finish()
    written = (run.path / "config.toml").read_text()
    older = "".join(line for line in written.splitlines(True) if not line.startswith(tuple(off)))
    assert older != written
    (run.path / "config.toml").write_text(older)

    workplace.command("eval", str(run.path), "--episodes", "1").wait(0)
    workplace.resume(run, "--set", "experiment.stop.env_steps=2000").finish()

    saved = load_file(run.path / "checkpoints/last/training.safetensors")
    assert not [name for name in saved if "normalizer" in name]


INSIDE = """
import gymnasium
from gymnasium.wrappers import NormalizeObservation, NormalizeReward

class Bigger(NormalizeReward):
    pass

def make(frozen=False):
    env = Bigger(NormalizeObservation(gymnasium.make("CartPole-v1")))
    if frozen:
        env.update_running_mean = env.env.update_running_mean = False
    return env
"""
BOTH_INSIDE: dict[str, Any] = {
    "experiment": {"extensions": ["."]},
    "environment": {"type": "my_env:make", "id": ""},
}
ONE = {"environment": {"wrappers": ["NormalizeObservation"]}}
TRUSTED = {"experiment": {"stop": {"env_steps": 1000}}, "environment": {"trust_wrappers": True}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (ONE, "CartPole-v1: each copy's NormalizeObservation would keep statistics that are not saved"),
        (BOTH_INSIDE, "my_env:make: each copy's Bigger and NormalizeObservation would keep statistics that"),
    ],
    ids=["of the config", "within the environment"],
)
def test_wrappers_with_statistics_of_their_own_are_refused_with_the_way_out(
    change: dict[str, Any], words: str, workplace: Any
) -> None:
    workplace.module(INSIDE)
    config = str(workplace.config(change))
    command = workplace.command("train", config)
    command.wait(2)
    assert words in command.last_words
    for way_out in ("normalize_observations = true", "normalize_rewards = true", "trust_wrappers = true"):
        assert way_out in command.last_words
    assert "Traceback" not in command.stderr
    assert not (workplace.place / "experiments").exists()
    checked = workplace.command("check", config)
    checked.wait(1)
    assert "would keep statistics that are not saved" in " ".join(checked.stdout.split())


def test_wrappers_that_are_trusted_train_and_so_do_runs_of_before(workplace: Any) -> None:
    run = workplace.train(ONE, TRUSTED)
    run.finish()
    written = (run.path / "config.toml").read_text()
    older = written.replace("trust_wrappers = true\n", "")
    assert older != written, "the run records it"
    (run.path / "config.toml").write_text(older)
    workplace.command("eval", str(run.path), "--episodes", "1").wait(0)
    workplace.resume(run, "--set", "experiment.stop.env_steps=2000").finish()


def test_statistics_that_are_frozen_are_the_same_everywhere(workplace: Any) -> None:
    workplace.module(INSIDE)
    frozen = {"environment": {"options": {"frozen": True}, "trust_wrappers": False}}
    workplace.train(BOTH_INSIDE, TRUSTED, frozen).finish()

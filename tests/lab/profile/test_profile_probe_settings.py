"""Settings for measuring are accepted with every config that can be trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab.profile.probing import DQN, PPO, write_config

from tianji_cli.config.loader import load_config
from tianji_cli.errors import ConfigError
from tianji_cli.worker.builder import Builder
from tianji_lab.profile.building import measuring_settings
from tianji_lab.profile.probe.server import ACTOR, REPLAY_BYTES, job_of, replay_settings

OF_SEQUENCES = """
from pydantic import BaseModel
from tianji_algos.core import SequenceEmbryo

class Settings(BaseModel):
    batch_size: int = 32
    sequence_steps: int
    replay_ratio: float = 4.0
    warmup_steps: int = 100
    publish_every: int = 1

class Rule(SequenceEmbryo):
    settings_type = Settings
"""

CONFIGS = sorted(path.stem for path in (Path(__file__).parents[3] / "configs").glob("*.toml"))
SHIPPED = [name for name in CONFIGS if load_config(name).population is None]


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_configs_are_measured_without_an_end(name: str) -> None:
    job = load_config(name)
    for share in (1, 2, 4):
        settings = measuring_settings(job, job.environment.num_envs, share)
        measured = load_config(name, settings)
        assert measured.experiment.stop.env_steps is None
        assert measured.distribution.transport.local == "inproc"
        assert measured.environment == job.environment
        assert measured.agent == job.agent
        assert measured.model == job.model


def test_an_actor_has_as_many_threads_for_its_environments_as_cores(tmp_path: Path) -> None:
    config = write_config(tmp_path / "ppo.toml", PPO)
    overrides = ["distribution.actor.cores=3"]
    job = load_config(config, overrides)
    measured = load_config(config, [*overrides, *measuring_settings(job, 8, 1)])
    job = job_of(measured, tmp_path)
    assert Builder(job, measured, job.plan.processes[ACTOR], 0)._env_threads == 3


def test_a_share_is_of_the_batch_the_rollout_stays_whole_and_a_replay_is_filled_first(tmp_path: Path) -> None:
    config = write_config(tmp_path / "ppo.toml", PPO)
    measured = load_config(config, measuring_settings(load_config(config), 16, 4))
    assert measured.environment.num_envs == 16
    training = measured.training.model_dump()
    assert (training["minibatch_size"], training["rollout_steps"]) == (16, 256)
    config = write_config(tmp_path / "dqn.toml", DQN)
    replay = load_config(config, measuring_settings(load_config(config), 8, 2)).replay_settings
    assert (replay.warmup_steps, replay.batch_size) == (5000, 16)
    with pytest.raises(ConfigError, match=r"training\.batch_size: 32 samples cannot be shared evenly by 3"):
        measuring_settings(load_config(config), 8, 3)


@pytest.mark.parametrize(
    ("fragment_bytes", "capacity"),
    [
        (1, 5000),
        (REPLAY_BYTES // 30, 30 * 128),
        (REPLAY_BYTES, 4 * 128),
        (100 * REPLAY_BYTES, 4 * 128),
    ],
    ids=["all of it", "what is filled", "what may be in flight", "a huge fragment"],
)
def test_a_replay_has_room_for_what_is_filled_of_it(
    tmp_path: Path, fragment_bytes: int, capacity: int
) -> None:
    config = write_config(tmp_path / "dqn.toml", DQN)
    overrides = ["distribution.actor.window=4", *measuring_settings(load_config(config), 8, 1)]
    settings = replay_settings(load_config(config, overrides), fragment_bytes)
    measured = load_config(config, [*overrides, *settings])
    assert measured.distribution.buffer.capacity == measured.replay_settings.warmup_steps == capacity


def test_a_replay_has_room_for_a_batch(tmp_path: Path) -> None:
    config = write_config(tmp_path / "dqn.toml", DQN, training={"batch_size": 3000, "warmup_steps": 3000})
    overrides = measuring_settings(load_config(config), 8, 1)
    settings = replay_settings(load_config(config, overrides), REPLAY_BYTES)
    assert load_config(config, [*overrides, *settings]).distribution.buffer.capacity == 3000


@pytest.mark.parametrize(("steps", "capacity"), [(50, 1600), (500, 16000), (5000, 160_000)])
def test_a_replay_of_sequences_has_room_for_those_of_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, capacity: int
) -> None:
    (tmp_path / "probed_rule.py").write_text(OF_SEQUENCES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "probed_rule", raising=False)
    training = {"type": "probed_rule:Rule", "sequence_steps": steps}
    job = {**DQN, "training": training, "distribution": {"actor": {"send_size": 16}}}
    config = write_config(tmp_path / "rule.toml", job)
    overrides = ["distribution.buffer.capacity=200_000", "training.warmup_steps=160_000"]
    overrides += ["experiment.stop.env_steps=1_000_000"]
    overrides += measuring_settings(load_config(config, overrides), 8, 1)
    settings = replay_settings(load_config(config, overrides), REPLAY_BYTES)
    assert load_config(config, [*overrides, *settings]).distribution.buffer.capacity == capacity

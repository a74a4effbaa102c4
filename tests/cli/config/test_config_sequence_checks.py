"""Settings for an update rule that learns from episodes, and those that are refused."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.schema import JobConfig, least_tolerance
from tianji_cli.errors import ConfigError, Problem
from tianji_cli.roles.buffer.rate_limiter import RateLimiter

RULE = """
from pydantic import BaseModel
from tianji_algos.core import SequenceEmbryo

class Settings(BaseModel):
    batch_size: int = 32
    sequence_steps: int = 25
    replay_ratio: float = 4.0
    warmup_steps: int = 1000
    publish_every: int = 1

class Rule(SequenceEmbryo):
    settings_type = Settings
"""

CONFIG = """
[experiment]
stop = { env_steps = 100_000 }
extensions = ["."]
[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 8
[agent]
type = "dqn"
[training]
type = "episode_rule:Rule"
[distribution]
[distribution.actor]
send_size = 16
[distribution.buffer]
capacity = 10_240
"""
"""A fragment has 128 env steps; a batch has up to 800, which are worth 200."""

BUFFER, TOLERANCE = "distribution.buffer", "distribution.balance_tolerance"


@pytest.fixture(autouse=True)
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "episode_rule.py").write_text(RULE)
    (tmp_path / "config.toml").write_text(CONFIG)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "episode_rule", raising=False)


def load(tmp_path: Path, *settings: str) -> JobConfig:
    return load_config(str(tmp_path / "config.toml"), settings)


def only_problem(tmp_path: Path, *settings: str) -> Problem:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, *settings)
    (problem,) = refused.value.problems
    return problem


def test_a_rule_with_sequence_steps_learns_from_episodes(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.learns_from_replay
    assert (config.sequence_steps, config.batch_steps, config.transition_settings) == (25, 800, None)
    assert config.tolerance == 128 + 800 / 4
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load(tmp_path) == config


def test_a_rule_without_learns_from_transitions(tmp_path: Path) -> None:
    of_transitions = CONFIG.replace('type = "episode_rule:Rule"', "warmup_steps = 1000")
    (tmp_path / "config.toml").write_text(of_transitions)
    config = load(tmp_path)
    assert config.sequence_steps is None
    assert config.transition_settings is config.training.settings
    assert config.batch_steps == config.replay_settings.batch_size


@pytest.mark.parametrize(
    "settings",
    [
        [f"{BUFFER}.colocate=false"],
        ["distribution.learner.num=4"],
        [f"{BUFFER}.save_with_checkpoint=true", f'{BUFFER}.memory="mmap"'],
        ['distribution.transport="inproc"'],
        ['distribution.balance="free"'],
        ["training.warmup_steps=800"],
        [f"{BUFFER}.capacity=1000"],
        [f"{TOLERANCE}=164"],
        ["training.sequence_steps=1", "training.warmup_steps=32"],
    ],
    ids=str,
)
def test_settings_that_fit_are_accepted(tmp_path: Path, settings: list[str]) -> None:
    load(tmp_path, *settings)


@pytest.mark.parametrize(
    ("settings", "key", "what", "right"),
    [
        ([f'{BUFFER}.sampler="fresh"'], f"{BUFFER}.sampler", "drawn uniformly", 'sampler = "uniform"'),
        ([f'{BUFFER}.sampler="prioritised"'], f"{BUFFER}.sampler", "drawn uniformly", 'sampler = "uniform"'),
        (["agent.priorities=true"], "agent.priorities", "no role uses", "leave it out"),
        (
            ["training.warmup_steps=799"],
            "training.warmup_steps",
            "do not fill a batch of 32 sequences of up to 25",
            "warmup_steps = 800",
        ),
        (["training.sequence_steps=32"], "training.sequence_steps", "do not fill", "warmup_steps = 1024"),
        (["training.sequence_steps=0"], "training.sequence_steps", "out of range", "1 to 65535"),
        (
            ["training.sequence_steps=65536", "training.warmup_steps=3_000_000"],
            "training.sequence_steps",
            "out of range",
            "1 to 65535",
        ),
        (["training.sequence_steps=70000"], "training.sequence_steps", "out of range", "1 to 65535"),
        (
            ["training.sequence_steps=400", "training.warmup_steps=12800", f"{BUFFER}.capacity=12799"],
            f"{BUFFER}.capacity",
            "less than",
            "capacity = 12800",
        ),
        (
            ["training.batch_size=1", "training.sequence_steps=1000", "distribution.actor.num=2"],
            "training.sequence_steps",
            "the 16640 that samples under way may lie in",
            "capacity = 16640",
        ),
        ([f"{TOLERANCE}=163"], TOLERANCE, "neither a fragment", "balance_tolerance = 164"),
        (["distribution.learner.num=3"], "distribution.learner.num", "cannot share 32 samples", "30 or 33"),
    ],
    ids=str,
)
def test_settings_that_episodes_cannot_work_with_are_refused(
    tmp_path: Path, settings: list[str], key: str, what: str, right: str
) -> None:
    problem = only_problem(tmp_path, *settings)
    assert problem.key == key
    assert what in problem.what
    assert right in problem.remedy


@pytest.mark.parametrize("length", [1, 7, 25])
def test_within_the_least_tolerance_one_side_may_always_go_on(length: int) -> None:
    """Sequences of one step, of all steps that there may be, and between."""
    fragment, batch, rho = 128, 32 * 25, 4.0
    balance = RateLimiter(rho, 0, math.ceil(least_tolerance(fragment, batch, rho)))
    for _ in range(1000):
        if balance.may_consume(batch):
            balance.consumed += 32 * length
        else:
            assert balance.may_receive(fragment)
            balance.received += fragment

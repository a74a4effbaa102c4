"""Settings for R2D2, which learns from unrolls, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.schema import JobConfig, Unroll
from tianji_cli.errors import ConfigError

CONFIG = """
[experiment]
stop = { env_steps = 100_000 }
[environment]
type = "gym"
id = "CartPole-v1"
num_envs = 8
[agent]
type = "r2d2"
[training]
batch_size = 32
burn_in = 16
unroll_steps = 32
warmup_steps = 2000
[distribution]
[distribution.actor]
send_size = 16
[distribution.buffer]
capacity = 10_240
"""

BUFFER = "distribution.buffer"


def load(tmp_path: Path, *settings: str) -> JobConfig:
    (tmp_path / "config.toml").write_text(CONFIG)
    return load_config(str(tmp_path / "config.toml"), settings)


def test_the_config_says_what_an_unroll_is(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.learns_from_replay
    assert (config.unroll, config.batch_steps) == (Unroll(16, 32), 32 * 32)
    assert (config.sequence_steps, config.transition_settings) == (None, None)
    assert (config.model.type, config.training.type) == ("recurrent_q", "r2d2")
    (tmp_path / "again.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "again.toml")) == config


def test_the_defaults_fit_one_another(tmp_path: Path) -> None:
    (tmp_path / "plain.toml").write_text(
        "[experiment]\nstop = { env_steps = 100_000 }\n"
        '[environment]\ntype = "gym"\nid = "CartPole-v1"\n[agent]\ntype = "r2d2"\n'
    )
    config = load_config(str(tmp_path / "plain.toml"))
    assert config.unroll == Unroll(config.distribution.actor.send_size, 32)


@pytest.mark.parametrize(
    "settings",
    [
        ["training.burn_in=0"],
        [f'{BUFFER}.sampler="prioritised"'],
        [f"{BUFFER}.colocate=false", f'{BUFFER}.sampler="prioritised"', f'{BUFFER}.priority_updates="sync"'],
        ["distribution.learner.num=2"],
        [f"{BUFFER}.save_with_checkpoint=true", f'{BUFFER}.memory="mmap"'],
        ["training.warmup_steps=1024"],
    ],
    ids=str,
)
def test_settings_that_fit_are_accepted(tmp_path: Path, settings: list[str]) -> None:
    load(tmp_path, *settings)


@pytest.mark.parametrize(
    ("settings", "key", "what", "remedy"),
    [
        (
            ["training.burn_in=20"],
            "training.burn_in",
            "20 steps are no whole fragments of 16",
            "burn_in = 16 or 32, or send_size = 4",
        ),
        (
            ["training.unroll_steps=8"],
            "training.unroll_steps",
            "8 steps are no whole fragments of 16",
            "unroll_steps = 16 or 32, or send_size = 8",
        ),
        (
            ["training.unroll_steps=70000"],
            "training.unroll_steps",
            "out of range for 'r2d2'",
            "1 to 65535 is right",
        ),
        (
            ["training.warmup_steps=1000"],
            "training.warmup_steps",
            "1000 env steps do not fill a batch of 32 unrolls of 32 steps",
            "warmup_steps = 1024",
        ),
        (
            [f'{BUFFER}.sampler="fresh"'],
            f"{BUFFER}.sampler",
            "an unroll is complete long after its first step came",
            'sampler = "uniform" or "prioritised"',
        ),
        (
            ["distribution.actor.num=16", "distribution.actor.window=4"],
            "distribution.actor.num",
            "that samples under way may lie in",
            "capacity = 13824",
        ),
        (
            ["training.burn_in=-16"],
            "training.burn_in",
            "greater than or equal to 0",
            "",
        ),
        (
            ["agent.priorities=true"],
            "agent.priorities",
            "",
            "",
        ),
        (
            ['training.backend="numpy"'],
            "training.backend",
            "these losses have no derivatives by hand",
            "",
        ),
        (['model.type="mlp_q"'], "model.type", "", "recurrent_q"),
        (['model.type="recurrent_actor_critic"'], "model.type", "", "recurrent_q"),
        (['agent.type="dqn"', 'training.type="r2d2"'], "training.type", "does not go with agent 'dqn'", ""),
        (['distribution.mode="sync"'], "distribution.mode", "has no rounds", 'mode = "async"'),
    ],
    ids=str,
)
def test_settings_that_unrolls_cannot_work_with_are_refused(
    tmp_path: Path, settings: list[str], key: str, what: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, *settings)
    text = "\n".join(f"{one.key}: {one.what}; {one.remedy}" for one in refused.value.problems)
    assert key in text
    assert what in text
    assert remedy in text
    assert len(refused.value.problems) == 1, text

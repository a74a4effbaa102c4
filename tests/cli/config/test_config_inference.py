"""``[distribution.inference]``: what it asks of the rest of a config, and what is refused with it."""

from __future__ import annotations

import pytest

from tianji_cli.config.loader import dump_config, load_config, parse_config
from tianji_cli.errors import ConfigError

PPO = "configs/ppo_cartpole.toml"
APART = ("distribution.inference={}", "distribution.actor.num=2")


def test_it_is_off_unless_a_table_asks_for_it() -> None:
    assert load_config(PPO).distribution.inference is None
    assert load_config(PPO, [*APART, "distribution.inference=false"]).distribution.inference is None


def test_it_is_written_and_read_again() -> None:
    config = load_config(PPO, [*APART, "distribution.inference.max_wait_ms=2.5"])
    assert config.distribution.inference is not None
    assert config.distribution.inference.max_wait_ms == 2.5
    assert parse_config(dump_config(config)).distribution == config.distribution


def test_two_actors_share_a_process_and_its_cores() -> None:
    config = load_config(PPO, [*APART, "distribution.actor.num=6", "distribution.actor.cores=2"])
    assert config.distribution.actor_processes == 3
    assert config.cores == 1 + 1 + 3 * 2
    assert load_config(PPO, ["distribution.actor.num=6"]).distribution.actor_processes == 6


@pytest.mark.parametrize(
    ("overrides", "why", "right"),
    [
        (["distribution.inference.num=2"], "some would serve none", "num = 1 at most"),
        (["distribution.inference.max_batch=8"], "environments come together", "max_batch = 64 or more"),
        (["distribution.buffer={colocate=false, num=2}"], "2 buffers share what 1 of actor send", "num = 1"),
        (["distribution.mode=sync"], "no run would repeat itself", 'mode = "async"'),
        (["training.normalize_values=true"], "among the parameters", "normalize_values = false"),
        (["distribution.transport=inproc"], "inference apart has its own", 'transport = "shm"'),
    ],
)
def test_what_cannot_work_with_it_is_refused_with_the_way_out(
    overrides: list[str], why: str, right: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(PPO, [*APART, *overrides])
    assert why in str(refused.value)
    assert right in str(refused.value)

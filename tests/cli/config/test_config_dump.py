"""The config that a run leaves behind is the config that it ran with."""

from __future__ import annotations

import math
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.source import shipped_configs

NAMES = st.text(string.ascii_letters + string.digits + "_-éü", min_size=1, max_size=12)
POSITIVE = st.floats(1e-12, 1e12)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
POINTS = st.dictionaries(st.integers(0, 10**12), st.floats(0, 9), min_size=1, max_size=4).map(
    lambda factors: [list(point) for point in sorted(factors.items())]
)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    """Any config whose settings fit, with any of its keys left out."""

    def some(**keys: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {key: draw(values) for key, values in keys.items() if draw(st.booleans())}

    actors, send_size, num_envs = (draw(st.integers(1, most)) for most in (5, 40, 40))
    rollout = send_size * num_envs * actors * draw(st.integers(2, 4))
    return {
        "experiment": {
            "stop": {
                "env_steps": rollout + draw(st.integers(1, 10**9)),
                **some(mean_return=POSITIVE, wall_s=POSITIVE),
            },
            **some(
                name=NAMES,
                seed=st.integers(0, 2**32 - 1),
                thresholds=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=3),
                checkpoint_every_s=POSITIVE,
                keep_checkpoints=st.integers(0, 9),
                eval_episodes=st.integers(0, 9),
            ),
        },
        "environment": {
            "type": "gym",
            "id": "CartPole-v1",
            "num_envs": num_envs,
            **some(max_episode_steps=st.integers(1, 999), options=st.dictionaries(TEXT, VALUES, max_size=3)),
        },
        "agent": {"type": "ppo"},
        "model": some(
            hidden=st.lists(st.integers(1, 99), min_size=1, max_size=3),
            activation=st.sampled_from(["tanh", "relu"]),
            shared=st.booleans(),
            initial_log_std=st.floats(-5, 5),
        ),
        "training": {
            "rollout_steps": rollout,
            "minibatch_size": draw(st.integers(2, rollout)),
            **some(
                epochs=st.integers(1, 9),
                learning_rate=POSITIVE,
                gamma=st.floats(0, 1),
                clip_value=st.booleans(),
                schedule_steps=st.integers(1, 10**9),
                learning_rate_schedule=st.just("constant") | POINTS,
                clip_range_schedule=POINTS,
                target_kl=POSITIVE,
                normalize_advantage=st.sampled_from(["minibatch", "rollout", "none"]),
            ),
        },
        "distribution": {
            "actor": {
                "num": actors,
                "send_size": send_size,
                **some(window=st.integers(1, 9), cores=st.integers(1, 9)),
            },
            "mode": (mode := draw(st.sampled_from(["sync", "async"]))),
            "buffer": some(rollouts=st.integers(1, 9) if mode == "async" else st.just(1)),
            **some(
                transport=st.sampled_from(
                    ["inproc", "zmq", {"local": "inproc", "remote": "zmq"}, {"local": "zmq", "remote": "zmq"}]
                ),
                pin_cores=st.booleans(),
                learner=st.fixed_dictionaries({"cores": st.integers(1, 9)}),
                max_restarts_per_minute=st.integers(0, 99),
            ),
        },
    }


@st.composite
def replay_tables(draw: st.DrawFn) -> dict[str, Any]:
    """Any config of a learner that draws from a replay, whose settings fit."""

    def some(**keys: st.SearchStrategy[Any]) -> dict[str, Any]:
        return {key: draw(values) for key, values in keys.items() if draw(st.booleans())}

    actors, send_size, num_envs, window = (draw(st.integers(1, most)) for most in (5, 40, 40, 4))
    batch = draw(st.integers(1, 2000))
    warmup = batch + draw(st.integers(0, 2000))
    fragment = send_size * num_envs
    sampler = draw(st.sampled_from(["uniform", "prioritised", "fresh"]))
    prioritised, colocate = sampler == "prioritised", draw(st.booleans())
    balance = draw(st.sampled_from(["held", "free"]))
    of_priorities = {
        "priority_exponent": st.floats(0, 1),
        "importance_exponent": st.floats(0, 1),
        "importance_steps": st.integers(1, 10**9),
        "priority_updates": st.sampled_from(["async", "sync"]),
    }
    tolerance = st.integers(fragment + 100 * batch, 10**9)
    return {
        "experiment": {"stop": {"env_steps": warmup + draw(st.integers(1, 10**9))}},
        "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": num_envs},
        "agent": {"type": "dqn", **some(priorities=st.booleans() if prioritised else st.just(False))},
        "training": {
            "batch_size": batch,
            "warmup_steps": warmup,
            "replay_ratio": draw(st.floats(0.01, 100)),
            **some(n_step=st.integers(1, 127), publish_every=st.integers(1, 99), double=st.booleans()),
        },
        "distribution": {
            "actor": {"num": actors, "send_size": send_size, "window": window},
            "buffer": {
                "capacity": max(warmup, actors * window * fragment) + draw(st.integers(0, 10**6)),
                "sampler": sampler,
                "colocate": colocate,
                **some(
                    cores=st.just(1) if colocate else st.integers(1, 9),
                    **(of_priorities if prioritised else {}),
                    memory=st.sampled_from(["auto", "ram", "mmap"]),
                    save_with_checkpoint=st.booleans(),
                ),
            },
            "balance": balance,
            **some(**({"balance_tolerance": tolerance} if balance == "held" else {})),
        },
    }


@given(table=tables() | replay_tables())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_dumped_config_loads_to_an_equal_one(
    table: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("config")
    first = directory / "first.toml"
    first.write_bytes(tomli_w.dumps(table).encode())
    config = load_config(str(first))
    resolved = directory / "config.toml"
    resolved.write_bytes(dump_config(config).encode())
    assert load_config(str(resolved)) == config
    assert dump_config(load_config(str(resolved))) == dump_config(config)


@pytest.mark.parametrize("name", sorted(shipped_configs()))
def test_every_shipped_config_is_valid_and_survives_its_dump(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    resolved = tmp_path / "config.toml"
    resolved.write_text(dump_config(config))
    assert load_config(str(resolved)) == config


@pytest.mark.parametrize("transport", ['"zmq"', '{ local = "inproc", remote = "zmq" }'])
def test_both_engines_survive_a_dump(transport: str, tmp_path: Path) -> None:
    config = load_config("configs/ppo_cartpole.toml", [f"distribution.transport={transport}"])
    resolved = tmp_path / "config.toml"
    resolved.write_text(dump_config(config))
    assert load_config(str(resolved)).distribution.transport == config.distribution.transport


def test_a_dump_has_its_sections_in_the_order_of_a_config() -> None:
    text = dump_config(load_config("configs/ppo_cartpole_sync.toml"))
    order = ["experiment", "environment", "agent", "model", "training", "distribution"]
    assert list(tomllib.loads(text)) == order


def test_infinite_options_survive_a_dump(tmp_path: Path) -> None:
    options = "environment.options={ gravity = inf, masses = [1.0, -inf] }"
    config = load_config("configs/ppo_cartpole.toml", [options])
    (tmp_path / "again.toml").write_text(dump_config(config))
    again = load_config(str(tmp_path / "again.toml"))
    assert again.environment.options == {"gravity": math.inf, "masses": [1.0, -math.inf]}

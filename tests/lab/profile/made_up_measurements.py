"""Made-up times of two configs' parts, of the size that small networks show on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tianji_cli.config.loader import load_config
from tianji_lab.profile.parts import Measurements, Part
from tianji_lab.profile.split import fingerprint, num_envs_options

PPO = "configs/ppo_cartpole.toml"
DQN = "configs/dqn_cartpole.toml"
APEX = "configs/dqn_cartpole_apex.toml"
SYNC = "configs/ppo_cartpole_sync.toml"


def part(
    num_envs: int,
    *,
    learners: int = 1,
    learner_cores: int = 1,
    update_s: float = 3e-4,
    step_s: float = 2e-6,
    act_s: float = 2e-3,
) -> Part:
    """An actor that takes 3 ms and 64 steps of each environment for a fragment, and a learner beside it.

    Half of an update's work more cores do not shorten.
    """
    samples = 64 * num_envs
    return Part(
        learners=learners,
        learner_cores=learner_cores,
        actors=1,
        num_envs=num_envs,
        samples=samples,
        act_s=act_s,
        step_s=samples * step_s,
        rest_s=1e-3,
        push_s=5e-5,
        receive_s=2e-4,
        update_s=update_s * (0.5 + 0.5 / learner_cores / learners),
        draw_s=3e-5,
        other_s=2e-5,
        uses_per_update=512.0,
        uses_per_step=4.0,
        updates_per_version=32.0,
    )


def made_up(
    config: str = PPO,
    cores: int = 2,
    *,
    overrides: Sequence[str] = (),
    update_s: float = 3e-4,
    step_s: float = 2e-6,
    act_s: float = 2e-3,
    busy: float = 0.02,
) -> Measurements:
    """Measurements of a config on a machine of so many cores."""
    job = load_config(config, overrides)
    sizes, own = num_envs_options(config, overrides), job.environment.num_envs
    times = {"update_s": update_s, "step_s": step_s, "act_s": act_s}
    parts = [part(size, **times) for size in dict.fromkeys((own, max(sizes), min(sizes)))]
    parts += [part(own, learner_cores=2, **times)]
    parts += [part(own, learners=2, **times)] * (cores > 2)
    return Measurements(
        config=config,
        fingerprint=fingerprint(job),
        cores=cores,
        rho=4.0,
        fragment_bytes=160_000,
        busy=busy,
        seconds=17.0,
        parts=tuple(parts),
    )


def leaves(table: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Values of a config by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = f"{path}.{key}" if path else key
        found |= leaves(value, name) if isinstance(value, Mapping) else {name: value}
    return found

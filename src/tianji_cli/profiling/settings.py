"""Settings that a split stands for, and what of a config no split changes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from tianji_cli.config.checks import crosses_hosts
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.data.balance import usual_tolerance
from tianji_cli.errors import ConfigError
from tianji_cli.throughput.split import Split
from tianji_cli.throughput.workload import Workload

GROUPS: Final = "distribution.groups"
HOSTS: Final = "distribution.hosts"
LEARNERS: Final = "distribution.learner.num"
LEARNER_CORES: Final = "distribution.learner.cores"
ACTORS: Final = "distribution.actor.num"
NUM_ENVS: Final = "environment.num_envs"
TRANSPORT: Final = "distribution.transport"

ENVS_TRIED: Final = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""Environments of an actor that are compared, in parts of the configured number."""


def split_of(job: JobConfig) -> Split:
    """Read the split that a config has."""
    distribution = job.distribution
    learner, actor, buffer = distribution.learner, distribution.actor, distribution.buffer
    return Split(
        learners=learner.num,
        learner_cores=learner.cores,
        actors=actor.num,
        num_envs=job.environment.num_envs,
        groups=distribution.groups,
        actor_cores=actor.cores,
        buffer_cores=0 if buffer.colocate else buffer.num * buffer.cores,
    )


def split_values(split: Split) -> dict[str, str]:
    """What a split sets.

    Cores of an actor and of a buffer are not among it: they are the config's in every split of it.
    """
    return {
        GROUPS: str(split.groups),
        LEARNERS: str(split.learners),
        LEARNER_CORES: str(split.learner_cores),
        ACTORS: str(split.actors),
        NUM_ENVS: str(split.num_envs),
    }


def as_settings(values: Mapping[str, str]) -> list[str]:
    """Write values by their keys as ``SECTION.KEY=VALUE`` settings."""
    return [f"{key}={value}" for key, value in values.items()]


def host_values(job: JobConfig, hosts: int) -> dict[str, str]:
    """What a number of hosts sets: zmq, which is always there, goes between them where nothing else does."""
    transport = job.distribution.transport
    settings = {HOSTS: str(hosts)}
    if hosts > 1 and not crosses_hosts(transport.remote):
        settings[TRANSPORT] = f'{{ local = "{transport.local}", remote = "zmq" }}'
    return settings


def workload_of(
    job: JobConfig,
    rho: float,
    uses_per_update: float,
    updates_per_version: float,
    split: Split | None = None,
) -> Workload:
    """What a job asks of the machine; the figures are measured, since only the embryo knows them.

    Args:
        job: the config.
        rho: uses of each sample.
        uses_per_update: sample uses of an update, over all learners of a group.
        updates_per_version: updates between two published policies.
        split: with which the job is run; the config's own by default. How far production may be ahead
            depends on it.
    """
    split = split or split_of(job)
    distribution = job.distribution
    fragment_steps = distribution.actor.send_size * split.num_envs
    window, tolerance, rollout_steps = distribution.actor.window, None, None
    if job.learns_from_replay:
        tolerance = _tolerance(job, fragment_steps)
    else:
        rollout_steps = job.fragments_per_rollout * job.fragment_steps
        window = min(window, math.ceil(rollout_steps // fragment_steps / split.actors))
    return Workload(
        rho=rho,
        uses_per_update=uses_per_update,
        updates_per_version=updates_per_version,
        send_size=distribution.actor.send_size,
        rollout_steps=rollout_steps,
        in_step=distribution.mode == "sync",
        colocated=distribution.buffer.colocate,
        one_process=distribution.transport.local == "inproc",
        window=window,
        tolerance=tolerance,
    )


def fingerprint(job: JobConfig) -> str:
    """Hash what the cost of a job's parts depends on, which is all but what a split or an experiment sets."""
    config = job.model_dump(mode="json", exclude={"experiment"})
    for path in (*split_values(split_of(job)), HOSTS):
        *sections, key = path.split(".")
        table = config
        for section in sections:
            table = table[section]
        del table[key]
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def num_envs_options(config: str, overrides: Sequence[str] = ()) -> tuple[int, ...]:
    """Numbers of environments with which a config can be run, the configured one among them, ascending.

    Args:
        config: path or name of the config, which is valid.
        overrides: ``SECTION.KEY=VALUE`` settings over it.
    """
    configured = load_config(config, overrides).environment.num_envs
    tried = [configured * times for times in ENVS_TRIED]
    whole = [int(number) for number in tried if number.denominator == 1]
    return tuple(number for number in whole if number == configured or _is_valid(config, overrides, number))


def _is_valid(config: str, overrides: Sequence[str], num_envs: int) -> bool:
    """Say whether at least one actor may have so many environments."""
    try:
        load_config(config, [*overrides, f"{NUM_ENVS}={num_envs}", f"{ACTORS}=1"])
    except ConfigError:
        return False
    return True


def _tolerance(job: JobConfig, fragment_steps: int) -> float | None:
    """Env steps that production and consumption may be apart, as the balance of a replay has it."""
    distribution, settings = job.distribution, job.replay_settings
    if distribution.balance == "free":
        return None
    if distribution.balance_tolerance is not None:
        return distribution.balance_tolerance
    return usual_tolerance(fragment_steps, settings.batch_size, settings.replay_ratio)

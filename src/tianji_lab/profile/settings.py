"""Settings that a split stands for, and what of a config no split changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Final

from tianji_cli.config.checks import crosses_hosts
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError
from tianji_lab.model.costs import Split, Workload
from tianji_lab.profile.scaling import GroupAveraging

GROUPS: Final = "distribution.groups"
HOSTS: Final = "distribution.hosts"
LEARNERS: Final = "distribution.learner.num"
LEARNER_CORES: Final = "distribution.learner.cores"
ACTORS: Final = "distribution.actor.num"
NUM_ENVS: Final = "environment.num_envs"
PINNED: Final = "distribution.pin_cores"
TRANSPORT: Final = "distribution.transport"

_OF_AVERAGING: Final = tuple(f"distribution.sync_{key}" for key in ("interval", "wait_s", "optimizer"))

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
        pinned=distribution.pin_cores,
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
        PINNED: str(split.pinned).lower(),
    }


def with_split(job: JobConfig, split: Split) -> JobConfig:
    """Give a config another split, whether it can be run or not."""
    distribution = job.distribution
    learner, actor = distribution.learner, distribution.actor
    values = {
        "groups": split.groups,
        "pin_cores": split.pinned,
        "learner": learner.model_copy(update={"num": split.learners, "cores": split.learner_cores}),
        "actor": actor.model_copy(update={"num": split.actors}),
    }
    environment = job.environment.model_copy(update={"num_envs": split.num_envs})
    return job.model_copy(
        update={"environment": environment, "distribution": distribution.model_copy(update=values)}
    )


def as_settings(values: Mapping[str, str]) -> list[str]:
    """Write values by their keys as ``SECTION.KEY=VALUE`` settings."""
    return [f"{key}={value}" for key, value in values.items()]


def host_values(job: JobConfig, hosts: int) -> dict[str, str]:
    """What a number of hosts sets."""
    transport, remote = job.distribution.transport, remote_engine(job)
    settings = {HOSTS: str(hosts)}
    if hosts > 1 and remote != transport.remote:
        settings[TRANSPORT] = f'{{ local = "{transport.local}", remote = "{remote}" }}'
    return settings


def remote_engine(job: JobConfig) -> str:
    """Name the engine between hosts: zmq, which is always there, where the config's does not reach them."""
    remote = job.distribution.transport.remote
    return remote if crosses_hosts(remote) else "zmq"


def averaging_of(job: JobConfig) -> GroupAveraging:
    """How a job's groups average their parameters, if it has several."""
    distribution = job.distribution
    moments = 1 if getattr(job.training.settings, "optimizer", "adam") == "rmsprop" else 2
    return GroupAveraging(
        interval=distribution.sync_interval,
        waits=distribution.mode == "sync",
        values=1 + moments if distribution.sync_optimizer else 1,
    )


def workload_of(
    job: JobConfig,
    rho: float,
    uses_per_update: float,
    updates_per_version: float,
    split: Split | None = None,
) -> Workload:
    """What a job asks of the machine; the figures are measured, since only the embryo knows them.

    Args:
        uses_per_update: sample uses of an update, over all learners of a group.
        updates_per_version: updates between two published policies.
        split: with which the job is run; the config's own by default. How far production may be ahead
            depends on it.
    """
    job = job if split is None else with_split(job, split)
    distribution, from_replay = job.distribution, job.learns_from_replay
    return Workload(
        rho=rho,
        uses_per_update=uses_per_update,
        updates_per_version=updates_per_version,
        send_size=distribution.actor.send_size,
        rollout_steps=None if from_replay else job.fragments_per_rollout * job.fragment_steps,
        in_step=distribution.mode == "sync",
        colocated=distribution.buffer.colocate,
        one_process=distribution.one_process,
        window=job.window,
        tolerance=job.tolerance if from_replay else None,
    )


def fingerprint(job: JobConfig) -> str:
    """Hash what measurements of a job's parts depend on: all but what a split or an experiment sets.

    Nor do they depend on user roles, nor on how groups average, which is reckoned.

    Hosts are a part of it in so far as the engine between them is measured only where there are several.
    """
    config = job.model_dump(mode="json", exclude={"experiment", "roles"})
    transport = job.distribution.transport
    config["distribution"]["transport"] = [transport.local]
    if job.distribution.hosts > 1:
        config["distribution"]["transport"] += [transport.remote]
    for path in (*split_values(split_of(job)), HOSTS, *_OF_AVERAGING):
        *sections, key = path.split(".")
        table = config
        for section in sections:
            table = table[section]
        del table[key]
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def num_envs_options(config: str, overrides: Sequence[str] = ()) -> tuple[int, ...]:
    """Numbers of environments with which a config can be run, the configured one among them, ascending."""
    configured = load_config(config, overrides).environment.num_envs
    tried = [configured * times for times in ENVS_TRIED]
    whole = [int(number) for number in tried if number.denominator == 1]
    return tuple(number for number in whole if number == configured or _is_valid(config, overrides, number))


def _is_valid(config: str, overrides: Sequence[str], num_envs: int) -> bool:
    """Whether at least one actor may have so many environments."""
    try:
        load_config(config, [*overrides, f"{NUM_ENVS}={num_envs}", f"{ACTORS}=1"])
    except ConfigError:
        return False
    return True

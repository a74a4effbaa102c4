"""Splits of the cores between learners and actors, and the settings that give a config a split."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tianji_cli.config.checks import crosses_hosts
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import HALVES, JobConfig
from tianji_cli.errors import ConfigError

GROUPS: Final = "distribution.groups"
HOSTS: Final = "distribution.hosts"
LEARNERS: Final = "distribution.learner.num"
LEARNER_CORES: Final = "distribution.learner.cores"
ACTORS: Final = "distribution.actor.num"
NUM_ENVS: Final = "environment.num_envs"
PINNED: Final = "distribution.pin_cores"
INFERENCE: Final = "distribution.inference.num"
INFERENCE_DEVICE: Final = "distribution.inference.device"
TRANSPORT: Final = "distribution.transport"

_OF_AVERAGING: Final = tuple(f"distribution.sync_{key}" for key in ("interval", "wait_s", "optimizer"))

ENVS_TRIED: Final = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""Numbers of environments of an actor to compare, as multiples of the configured one."""


@dataclass(frozen=True)
class Split:
    """Numbers of learners, actors and cores (M_L + M_A = M in Equation 4).

    Attributes:
        learners: L of a group.
        actors: A of a group.
        num_envs: N environments of each actor.
        groups: G learner sets with their own buffers and actors.
        buffer_cores: cores of each group's buffer; 0 where it takes turns with a learner.
        pinned: whether each process is tied to cores of its own, as far as there are enough; otherwise all
            processes share all cores.
        inference: processes of each group that run the network for its actors, with a core each; 0 where
            the config's do, or the actors themselves.
    """

    learners: int
    learner_cores: int
    actors: int
    num_envs: int
    groups: int = 1
    actor_cores: int = 1
    buffer_cores: int = 0
    pinned: bool = True
    inference: int = 0

    @property
    def actor_processes(self) -> int:
        """Processes of each group's actors: where inference is apart, two actors share one."""
        return math.ceil(self.actors / HALVES) if self.inference else self.actors

    @property
    def cores_of_learners(self) -> int:
        """M_L, cores of all learners and of buffers in processes of their own.

        >>> Split(learners=2, learner_cores=4, actors=8, num_envs=1).cores_of_learners
        8
        """
        return self.groups * (self.learners * self.learner_cores + self.buffer_cores)

    @property
    def cores_of_actors(self) -> int:
        """M_A, cores of all actors, and of their inference where it is apart.

        >>> Split(learners=1, learner_cores=1, actors=6, num_envs=32, inference=2).cores_of_actors
        5
        """
        return self.groups * (self.actor_processes * self.actor_cores + self.inference)

    @property
    def cores(self) -> int:
        """M_L + M_A, the cores of a split whose roles share none."""
        return self.cores_of_learners + self.cores_of_actors

    @property
    def numbers(self) -> dict[str, int]:
        """Numbers that a reader of JSON knows a split by."""
        names = ("learners", "learner_cores", "actors", "num_envs", "groups", "inference")
        return {name: getattr(self, name) for name in names}

    @property
    def values(self) -> dict[str, str]:
        """Values of the keys that a split sets: every split keeps the config's cores of actors and buffer."""
        return {
            GROUPS: str(self.groups),
            LEARNERS: str(self.learners),
            LEARNER_CORES: str(self.learner_cores),
            ACTORS: str(self.actors),
            NUM_ENVS: str(self.num_envs),
            PINNED: str(self.pinned).lower(),
            **({INFERENCE: str(self.inference)} if self.inference else {}),
        }

    @property
    def settings(self) -> list[str]:
        """Its values as ``SECTION.KEY=VALUE`` settings."""
        return as_settings(self.values)

    @property
    def name(self) -> str:
        """Name in the paper's notation, after the number of groups if there are several.

        >>> Split(2, 4, 8, 64).name, Split(1, 1, 3, 64, groups=4).name
        ('L2A8', '4 x L1A3')
        """
        of_group = f"L{self.learners}A{self.actors}"
        return of_group if self.groups == 1 else f"{self.groups} x {of_group}"

    @property
    def manner(self) -> str:
        """Words behind its numbers on how its processes run.

        >>> Split(1, 1, 2, 32, inference=1, pinned=False).manner
        ', inference apart, unpinned'
        """
        return ", inference apart" * bool(self.inference) + ", unpinned" * (not self.pinned)


def powers_of_two(most: int) -> list[int]:
    """List the powers of two up to a number.

    >>> powers_of_two(6), powers_of_two(1), powers_of_two(0)
    ([1, 2, 4], [1], [])
    """
    return [1 << exponent for exponent in range(most.bit_length())]


def split_of(job: JobConfig) -> Split:
    """Read the split that a config has."""
    distribution = job.distribution
    learner, actor, buffer = distribution.learner, distribution.actor, distribution.buffer
    return Split(
        learners=learner.num,
        learner_cores=learner.cores,
        actors=actor.num.max,
        num_envs=job.environment.num_envs,
        groups=distribution.groups,
        actor_cores=actor.cores,
        buffer_cores=0 if buffer.colocate else buffer.num * buffer.cores,
        pinned=distribution.pin_cores,
    )


def as_settings(values: Mapping[str, str]) -> list[str]:
    """Write values by their keys as ``SECTION.KEY=VALUE`` settings."""
    return [f"{key}={value}" for key, value in values.items()]


def host_values(job: JobConfig, hosts: int) -> dict[str, str]:
    """Values of the keys that a number of hosts sets."""
    transport, remote = job.distribution.transport, remote_engine(job)
    settings = {HOSTS: str(hosts)}
    if hosts > 1 and remote != transport.remote:
        settings[TRANSPORT] = f'{{ local = "{transport.local}", remote = "{remote}" }}'
    return settings


def remote_engine(job: JobConfig) -> str:
    """Name the engine between hosts: the config's, or zmq (always installed) if that stays inside a host."""
    remote = job.distribution.transport.remote
    return remote if crosses_hosts(remote) else "zmq"


def fingerprint(job: JobConfig) -> str:
    """Hash the settings that measurements of a job's parts depend on.

    These are all settings except those of a split, of the experiment and of user roles, and those of the
    groups' averaging, which is not measured. The engine between hosts counts only with several hosts.
    """
    config = job.model_dump(mode="json", exclude={"experiment", "roles"})
    transport = job.distribution.transport
    config["distribution"]["transport"] = [transport.local]
    if job.distribution.hosts.max > 1:
        config["distribution"]["transport"] += [transport.remote]
    for path in (*split_of(job).values, HOSTS, *_OF_AVERAGING):
        *sections, key = path.split(".")
        table = config
        for section in sections:
            table = table[section]
        del table[key]
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def num_envs_options(config: str, overrides: Sequence[str] = ()) -> tuple[int, ...]:
    """List numbers of environments with which a config is valid, also the configured one, ascending."""
    configured = load_config(config, overrides).environment.num_envs
    tried = [configured * times for times in ENVS_TRIED]
    whole = {  # With one actor: some sizes are valid with few actors only.
        int(number): [*overrides, f"{NUM_ENVS}={number}", f"{ACTORS}=1"]
        for number in tried
        if number.denominator == 1
    }
    return tuple(number for number, one in whole.items() if number == configured or is_valid(config, one))


def is_valid(config: str, overrides: Sequence[str]) -> bool:
    """Whether a config is valid with overrides."""
    try:
        load_config(config, overrides)
    except ConfigError:
        return False
    return True

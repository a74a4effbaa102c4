"""Settings under which a probe measures the parts of a job."""

from __future__ import annotations

from typing import Final

from tianji_cli.config.checks import steps_under_way
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError, Problem

REPLAY_BYTES: Final = 128 << 20
"""More fragments than these make draws no slower: they are beyond all caches."""

_BATCHES: Final = ("minibatch_size", "batch_size", "rollout_steps")
"""What the samples of one update are called; of those that an update rule has, the first."""


def measuring_settings(job: JobConfig, num_envs: int, share: int) -> list[str]:
    """Settings (``SECTION.KEY=VALUE``): all roles in one process, no end, nothing evaluated.

    A replay's warm-up is its whole capacity: the probe lowers it to what it has filled in the time it takes
    for that. With several learners each updates on its share of a minibatch of its share of the rollout. Here
    only the minibatch is divided, since a rollout has to be whole fragments: an update costs the same, and so
    does its part of the rollout's preparation, but there are L times as many updates in a round.

    Args:
        job: the config.
        share: L, the batch is divided among so many learners.

    Raises:
        ConfigError: the batch cannot be divided evenly.
    """
    settings = [
        "experiment.stop={wall_s=1e9}",
        "experiment.eval_episodes=0",
        "experiment.checkpoint_every_s=1e9",
        f"environment.num_envs={num_envs}",
        'distribution.transport="inproc"',
        'distribution.mode="async"',
        'distribution.balance="held"',
        "distribution.hosts=1",
        "distribution.groups=1",
        "distribution.learner.num=1",
        "distribution.learner.cores=1",
        "distribution.actor.num=1",
        "distribution.buffer.colocate=true",
        "distribution.buffer.cores=1",
    ]
    if job.learns_from_replay:
        settings.append(f"training.warmup_steps={job.distribution.buffer.capacity}")
    if share > 1:
        settings.append(_share_of_batch(job, share))
    return settings


def replay_settings(job: JobConfig, fragment_bytes: int) -> list[str]:
    """Further settings with which a replay is no larger than what is filled of it.

    Args:
        job: the config, with ``measuring_settings``.
    """
    distribution = job.distribution
    of_memory = REPLAY_BYTES // fragment_bytes * job.fragment_steps
    in_flight = distribution.actor.window * job.fragment_steps
    under_way = steps_under_way(job.replay_settings, distribution, job.environment)
    least = max(in_flight, under_way, job.batch_steps)
    capacity = min(distribution.buffer.capacity, max(of_memory, least))
    return [f"distribution.buffer.capacity={capacity}", f"training.warmup_steps={capacity}"]


def _share_of_batch(job: JobConfig, share: int) -> str:
    key = next(key for key in _BATCHES if hasattr(job.training.settings, key))
    samples = getattr(job.training.settings, key)
    if samples % share:
        what = f"{samples} samples cannot be shared evenly by {share} learners"
        raise ConfigError([Problem("", f"training.{key}", what)])
    return f"training.{key}={samples // share}"

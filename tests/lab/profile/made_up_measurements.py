"""Measurements nobody has made, of two configs on machines of 2 and of 16 cores.

The figures are of the size that such machines show: cores at work side by side slow one another by 15 %, more
environments an actor spread the cost of inference, and a network this small gains little from more cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tianji_cli.config.loader import load_config
from tianji_lab.profile.measurements import (
    ActorFigures,
    AveragingFigures,
    LearnerFigures,
    Measurements,
    Repeated,
    TransportFigures,
    WeightsFigures,
)
from tianji_lab.profile.settings import fingerprint

SLOWER = 1.15
"""What a piece of work takes beside cores at work, as a multiple of what it takes alone."""
SERIAL = 0.6
"""Share of an update that more cores do not shorten."""


@dataclass(frozen=True)
class Job:
    """What a config does, in seconds of one core that is alone: for each step, update, version or fragment.

    Those that end with ``_env_s`` are for each environment more.
    """

    config: str
    send_size: int
    num_envs: int
    options: tuple[int, ...]
    rho: float
    uses_per_update: float
    updates_per_version: float
    act_s: float
    act_env_s: float
    step_s: float
    step_env_s: float
    update_s: float
    draw_s: float
    publish_s: float
    store_s: float
    parameters: int
    step_bytes: int
    batch_bytes: int


PPO = Job(
    config="configs/ppo_cartpole.toml",
    send_size=64,
    num_envs=64,
    options=(16, 32, 64),
    rho=4.0,
    uses_per_update=512.0,
    updates_per_version=32.0,
    act_s=90e-6,
    act_env_s=0.5e-6,
    step_s=45e-6,
    step_env_s=0.8e-6,
    update_s=820e-6,
    draw_s=12e-6,
    publish_s=450e-6,
    store_s=160e-6,
    parameters=2739,
    step_bytes=38,
    batch_bytes=0,
)
DQN = Job(
    config="configs/dqn_cartpole.toml",
    send_size=32,
    num_envs=32,
    options=(8, 16, 32, 64, 128),
    rho=8.0,
    uses_per_update=512.0,
    updates_per_version=20.0,
    act_s=70e-6,
    act_env_s=0.4e-6,
    step_s=45e-6,
    step_env_s=0.8e-6,
    update_s=1150e-6,
    draw_s=140e-6,
    publish_s=160e-6,
    store_s=210e-6,
    parameters=17_410,
    step_bytes=30,
    batch_bytes=24_576,
)


def made_up(job: Job = PPO, cores: int = 2, noise: float = 0.04) -> Measurements:
    """Make up what was measured.

    Args:
        job: what was measured.
        cores: of the machine.
        noise: how far repeats lie apart, as a share of their median.
    """
    smallest, largest = (_fragment_bytes(job, of) for of in (min(job.options), max(job.options)))
    return Measurements(
        config=job.config,
        fingerprint=fingerprint(load_config(job.config)),
        cores=cores,
        at_work=cores,
        rho=job.rho,
        parameters=job.parameters,
        fragment_bytes={num_envs: _fragment_bytes(job, num_envs) for num_envs in job.options},
        batch_bytes=job.batch_bytes,
        policy_bytes=4 * job.parameters + 64,
        startup_s=1.6,
        busy=0.01,
        actors=tuple(_actors(job, cores, noise)),
        learners=tuple(_learners(job, cores, noise)),
        transport=(
            TransportFigures(engine="shm", nbytes=smallest, send_s=31e-6, receive_s=38e-6),
            TransportFigures(engine="shm", nbytes=largest, send_s=52e-6, receive_s=55e-6),
        ),
        weights=tuple(
            WeightsFigures(actors=count, seconds=90e-6 + 15e-6 * count) for count in {1, cores - 1}
        ),
        averaging=tuple(
            AveragingFigures(learners=count, seconds=repeated(160e-6 + 45e-6 * count, noise))
            for count in (2, 4, 8)
            if count <= cores
        ),
        seconds=38.5,
    )


def repeated(value: float, noise: float) -> Repeated:
    """Make up six repeats with this median, this far apart."""
    return Repeated(values=tuple(value * (1 + noise * place) for place in (-0.5, -0.2, 0.0, 0.0, 0.3, 0.5)))


def _actors(job: Job, cores: int, noise: float) -> Iterator[ActorFigures]:
    yield from (_actor(job, num_envs, 1, cores == 1, noise) for num_envs in job.options)
    if cores > 1:
        yield from (_actor(job, num_envs, cores - 1, True, noise) for num_envs in job.options)
    count = 2
    while count <= cores:
        yield _actor(job, job.num_envs, count, count == cores, noise)
        count *= 2


def _actor(job: Job, num_envs: int, side_by_side: int, crowded: bool, noise: float) -> ActorFigures:
    slower = SLOWER if crowded else 1.0
    act = slower * job.send_size * (job.act_s + job.act_env_s * num_envs)
    step = slower * job.send_size * (job.step_s + job.step_env_s * num_envs)
    return ActorFigures(
        num_envs=num_envs,
        side_by_side=side_by_side,
        crowded=crowded,
        samples=0.995 * job.send_size * num_envs,
        fragment_s=repeated(1.2 * (act + step), noise),
        act_s=repeated(act, noise),
        step_s=repeated(step, noise),
    )


def _learners(job: Job, cores: int, noise: float) -> Iterator[LearnerFigures]:
    for num_envs in job.options:
        yield _learner(job, 1, 1, num_envs, False, noise)
        if cores > 1:
            yield _learner(job, 1, 1, num_envs, True, noise)
    of_learner = 2
    while of_learner <= cores:
        yield _learner(job, of_learner, 1, job.num_envs, False, noise)
        if of_learner < cores:
            yield _learner(job, of_learner, 1, job.num_envs, True, noise)
        of_learner *= 2
    for share in (2, 4):
        yield _learner(job, 1, share, job.num_envs, False, noise)
        if cores > 1:
            yield _learner(job, 1, share, job.num_envs, True, noise)


def _learner(job: Job, cores: int, share: int, num_envs: int, crowded: bool, noise: float) -> LearnerFigures:
    slower = SLOWER if crowded else 1.0
    update = slower * job.update_s * (SERIAL + (1 - SERIAL) / cores) * (0.3 + 0.7 / share)
    return LearnerFigures(
        cores=cores,
        share=share,
        num_envs=num_envs,
        crowded=crowded,
        uses_per_update=job.uses_per_update / share,
        updates_per_version=job.updates_per_version,
        update_s=repeated(update, noise),
        draw_s=repeated(slower * job.draw_s, noise),
        publish_s=repeated(slower * job.publish_s, noise),
        store_s=repeated(slower * job.store_s * num_envs / job.num_envs, noise),
    )


def _fragment_bytes(job: Job, num_envs: int) -> int:
    return 4096 + job.step_bytes * job.send_size * num_envs

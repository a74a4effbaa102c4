"""Measures the times of a job's parts: of actor and buffer for a fragment, of a learner for an update.

The times come from traces of short trainings, with all roles at work as in a long training: T_sp, T_sd and
T_rv of Equation 1, and the time of an update, whose inverse is T_RL of Equation 4.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed
from tianji_cli.files.traces import WHAT
from tianji_cli.limits import usable_cores
from tianji_cli.runs.timeline.timeline import Lane
from tianji_cli.telemetry.progress import Progress
from tianji_cli.wire.messages import Message
from tianji_lab.environment import describe
from tianji_lab.profile.split import Split, fingerprint, is_valid, powers_of_two, split_of
from tianji_lab.profile.trainer import SLOW, Trained, Trainer, is_held

SCHEMA: Final = 2
TRACED_S: Final = 2.0
"""Seconds of a trace."""


class Part(Message):
    """Times of one short training: seconds of work for each fragment and for each update.

    Attributes:
        learners, learner_cores, actors, num_envs: of the training's split.
        samples: mean env steps of experience in a fragment (auto-reset steps do not count).
        act_s: inference of an actor for a fragment; ``step_s`` its environments, ``rest_s`` all else; T_sp is
            the sum of the three.
        push_s: T_sd, time to push the fragment.
        receive_s: T_rv, time to receive, check and store the fragment; the whole work of a buffer in a
            process of its own.
        update_s: a learner's update; ``draw_s`` to get its batch, ``other_s`` all else, with publishing.
        uses_per_update: sample uses of an update over all learners of a group.
        uses_per_step: sample uses of an env step; rho where the uses are held at it.
        updates_per_version: updates between two published policies.
    """

    learners: int
    learner_cores: int
    actors: int
    num_envs: int
    samples: float
    act_s: float
    step_s: float
    rest_s: float
    push_s: float
    receive_s: float
    update_s: float
    draw_s: float
    other_s: float
    uses_per_update: float
    uses_per_step: float
    updates_per_version: float

    @property
    def sample_s(self) -> float:
        """T_sp, seconds of an actor to make a fragment."""
        return self.act_s + self.step_s + self.rest_s

    @property
    def learn_s(self) -> float:
        """Seconds of a learner for an update, without reception."""
        return self.update_s + self.draw_s + self.other_s


class Measurements(Message):
    """Parts of a job on one machine.

    Attributes:
        fingerprint: of the settings that the measurements depend on.
        cores: usable ones of the machine.
        rho: uses of each sample.
        fragment_bytes: of a fragment with the configured number of environments.
        busy: share of the cores that were at work with something else beforehand.
        seconds: duration of the measurements.
        parts: the configured number of environments first.
    """

    schema_number: int = SCHEMA
    config: str
    fingerprint: str
    cores: int
    rho: float
    fragment_bytes: int
    busy: float
    seconds: float
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Measured:
    """Measurements, and descriptions of the machine and the libraries by subject."""

    measurements: Measurements
    environment: dict[str, str]


def measure_parts(trainer: Trainer, *, sizes: Sequence[int], busy: float, progress: Progress) -> Measured:
    """Measure the parts of a trainer's job on this machine, and describe it.

    Args:
        sizes: numbers of environments of an actor with which the config is valid.
        busy: see ``Measurements``.

    Raises:
        RunFailed: a training failed, or that of the first split was too slow to be measured.
    """
    began_s, cores, job = time.monotonic(), len(usable_cores()), trainer.job
    splits = [
        split
        for split in _splits(job, cores, sizes)
        if is_valid(trainer.config, [*trainer.overrides, *split.settings])
    ]
    progress.total += len(splits)
    parts, rho = list[Part](), 1.0
    for split in splits:
        progress.begin(f"measuring {split.name} with {split.num_envs} environments an actor")
        trained = trainer.train(split.settings, TRACED_S, traced=True)
        rho = trained.learner.rho
        part = _part(job, split, trained)
        if part is None and not parts:
            raise RunFailed(f"a short training was too slow for the times of its parts: {SLOW}")
        parts += [] if part is None else [part]  # What was not measured is not predicted from.
        progress.done()
    measurements = Measurements(
        config=trainer.config,
        fingerprint=fingerprint(job),
        cores=cores,
        rho=rho,
        fragment_bytes=trainer.fragment_bytes,
        busy=busy,
        seconds=time.monotonic() - began_s,
        parts=tuple(parts),
    )
    engine = job.distribution.transport.local
    # Only MPI knows its version, and would have to be initialised here for that.
    return Measured(measurements, describe([] if engine == "mpi" else [engine], busy))


def _splits(job: JobConfig, cores: int, sizes: Sequence[int]) -> Iterator[Split]:
    """Yield the splits to measure: the configured size, other sizes, more learner cores, more learners.

    In each split all cores are at work as far as the job allows, as in a training.
    """
    own = replace(split_of(job), groups=1)
    if job.distribution.one_process or job.distribution.mode == "sync":
        base = own
    else:
        actors = max(1, (cores - own.learners - own.buffer_cores) // own.actor_cores)
        base = replace(own, learner_cores=1, actors=actors)
        base = replace(base, pinned=base.cores <= cores)
    yield base
    for size in (max(sizes), min(sizes)):
        if size != base.num_envs:
            yield replace(base, num_envs=size)
    if job.distribution.one_process:
        return
    for number in powers_of_two(cores):
        if number > 1:
            yield _with_learners(base, cores, learners=base.learners, learner_cores=number)
    if cores > 2 and base.learners == 1:
        yield _with_learners(base, cores, learners=2, learner_cores=1)


def _with_learners(base: Split, cores: int, *, learners: int, learner_cores: int) -> Split:
    rest = cores - learners * learner_cores - base.buffer_cores
    return replace(
        base,
        learners=learners,
        learner_cores=learner_cores,
        actors=max(1, min(base.actors, rest // base.actor_cores)),
        pinned=rest >= base.actor_cores,
    )


def _part(job: JobConfig, split: Split, trained: Trained) -> Part | None:
    """Read the times of a split's roles from a traced training; None without a fragment or an update."""
    assert trained.timeline is not None
    lanes, learner = trained.timeline.lanes, trained.learner
    actors = [lane for lane in lanes if lane.role.startswith("actor") and _count(lane, "push")]
    (leader,) = (lane for lane in lanes if lane.role.startswith("learner"))
    buffers = [lane for lane in lanes if lane.role.startswith("buffer")]
    if not (actors and _count(leader, "update") and all(_count(lane, "claim") for lane in buffers)):
        return None
    updates = _count(leader, "update")
    update_s, draw_s = (leader.seconds_of(what) / updates for what in ("update", "draw"))
    return Part(
        learners=split.learners,
        learner_cores=split.learner_cores,
        actors=split.actors,
        num_envs=split.num_envs,
        samples=_experience(job, split, trained),
        act_s=_mean(lane.seconds_of("act") / _count(lane, "push") for lane in actors),
        step_s=_mean(lane.seconds_of("step") / _count(lane, "push") for lane in actors),
        rest_s=_mean(_rest_s(lane) / _count(lane, "push") for lane in actors),
        push_s=_mean(lane.seconds_of("push") / _count(lane, "push") for lane in actors),
        receive_s=_mean(_reception_s(lane, job) / _count(lane, "claim") for lane in buffers),
        update_s=update_s,
        draw_s=draw_s,
        other_s=max(0.0, leader.busy * leader.seconds / updates - update_s - draw_s),
        uses_per_update=learner.consumed / learner.updates,
        uses_per_step=learner.rho if is_held(job) else learner.consumed / learner.env_steps,
        updates_per_version=learner.updates / max(1, learner.version),
    )


def _count(lane: Lane, what: str) -> int:
    return int((lane.spans["what"] == WHAT.index(what)).sum())


def _mean(values: Iterable[float]) -> float:
    return fmean(list(values) or [0.0])


def _rest_s(lane: Lane) -> float:
    named = sum(lane.seconds_of(what) for what in ("act", "step", "push"))
    return max(0.0, lane.busy * lane.seconds - named)


def _reception_s(lane: Lane, job: JobConfig) -> float:
    """Seconds of a buffer for its fragments; only the claims if it takes turns with a learner."""
    own_process = not (job.distribution.buffer.colocate or job.distribution.one_process)
    return lane.busy * lane.seconds if own_process else lane.seconds_of("claim")


def _experience(job: JobConfig, split: Split, trained: Trained) -> float:
    """Env steps of experience in a fragment: each episode has one step that only resets the environment."""
    learner = trained.learner
    share = learner.env_steps / max(1, learner.env_steps + learner.episodes)
    return share * job.distribution.actor.send_size * split.num_envs

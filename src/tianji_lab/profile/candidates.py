"""Lists splits of a cluster's cores, the best predictions first (M_L + M_A = M in Equation 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import HALVES, JobConfig, OnPolicySettings
from tianji_cli.config.source import read
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.telemetry.bottleneck import BALANCED
from tianji_lab.profile.model import LEAST_VERSIONS, Cluster, Model, Prediction
from tianji_lab.profile.split import (
    ACTORS,
    HOSTS,
    INFERENCE_DEVICE,
    PINNED,
    Split,
    as_settings,
    host_values,
    powers_of_two,
    split_of,
)

EVERY_CORE: Final = 8
"""Maximum cores of a learner of which every number is a candidate; beyond, powers of two are."""
RACED: Final = 6
"""Maximum candidates of a race."""
COMPARED: Final = 64
"""Number of best candidates from which those of the race are chosen."""
NETWORK_IS_MOST: Final = 0.5
"""Share of its network in an actor's time from which a candidate has inference apart."""
TIE: Final = 0.01
"""Share within which two throughputs are the same: then fewer changes come first."""


@dataclass(frozen=True)
class Candidate:
    """A split, and the settings that give the config this split.

    Attributes:
        settings: as ``SECTION.KEY=VALUE``.
        changes: keys of the settings that differ from the config.
        why_not: reason not to recommend the split: it cannot be run, or the job ends before it has learnt;
            None if there is no reason.
    """

    prediction: Prediction
    settings: tuple[str, ...]
    changes: tuple[str, ...]
    why_not: str | None

    @property
    def split(self) -> Split:
        """Split of the prediction."""
        return self.prediction.split


class Candidates:
    """All splits of a cluster, with the model's predictions.

    On the config's own hosts the number of groups is the config's: another number learns differently. On
    other machines groups share the nodes, or the cores of a node, evenly.

    Args:
        sizes: numbers of environments of an actor to choose from.
        elsewhere: the cluster is not the config's own hosts.

    Raises:
        UsageError: nodes are too small for a learner.
    """

    def __init__(
        self,
        config: str,
        overrides: Sequence[str],
        model: Model,
        sizes: Sequence[int],
        *,
        elsewhere: bool,
    ) -> None:
        self._config, self._overrides = config, tuple(overrides)
        self._model, job = model, model.job
        self._is_raced = not elsewhere and model.cluster.nodes == 1
        learns_on, acts_on = job.distribution.device, job.distribution.actor.device
        self._device = learns_on if learns_on.startswith("cuda") else acts_on
        self._own = split_of(job)
        self._configured = self._own.values | {HOSTS: str(job.distribution.hosts.max)}
        self._of_hosts = host_values(job, model.cluster.nodes)
        origins = read(config, overrides).origins
        self._unset = [key for key in (ACTORS, PINNED) if tuple(key.split(".")) not in origins]
        # If the config's own split has fewer versions, the others need only as many.
        self._least_versions = min(LEAST_VERSIONS, model.predict(self._own).versions)
        splits = [*_splits(job, model.cluster, sizes, model.learners, elsewhere=elsewhere)]
        if not elsewhere:
            splits.append(self._own)
        if not splits:
            raise UsageError("a learner and its buffer find no room on one node: --cores should be more")
        predictions = {split: model.predict(split) for split in splits}
        for split in [self._without_idle_actors(found) for found in predictions.values()]:
            predictions[split] = model.predict(split)
        self._ranked = sorted(predictions.values(), key=self._rank)

    def best(self, most: int) -> list[Candidate]:
        """List the candidates with the best predictions, those that may be recommended first."""
        found, refused = list[Candidate](), list[Candidate]()
        for prediction in self._ranked:
            candidate = self._candidate(prediction)
            (refused if candidate.why_not else found).append(candidate)
            if len(found) == most:
                break
        return [*found, *refused][:most]

    @property
    def apart(self) -> list[Candidate]:
        """The best split with inference apart, to be trained with: no prediction knows what asking costs.

        It is empty where actors do not hold the job back, or their network is the smaller part of their work,
        where trainings do not decide, and where the config has inference apart already or cannot have it.
        """
        best, has_it = self.best(1)[0].prediction, self._model.job.distribution.inference is not None
        like, waits = best.split, best.bottleneck.kind == "training-bound"
        is_small = self._model.share_of_network(like.num_envs) < NETWORK_IS_MOST
        if not self._is_raced or has_it or waits or is_small:
            return []
        cores = max(2, like.actors)
        inference = 1 if self._device != "cpu" else cores // 2  # Each serves a process of actors at least.
        split = replace(like, inference=inference, actors=HALVES * (cores - inference))
        split = replace(split, pinned=like.pinned and split.cores <= self._model.cluster.cores)
        found = self._candidate(self._model.predict(split))
        return [found] if found.why_not is None else []

    def to_race(self) -> list[Candidate]:
        """List the candidates of a race: the best, the config's own, the best of the other kind of pinning.

        One with inference apart may follow. The others are the next best; those come first that differ from
        the ones before in environments, cores of a learner or pinning.
        """
        may = self.best(COMPARED)
        own = self._candidate(self._model.predict(self._own))
        wanted = [may[0], own]
        wanted += [one for one in may if one.split.pinned != may[0].split.pinned][:1] + self.apart
        seen: set[tuple[int, int, bool]] = set()
        for one in may:
            kind = one.split.num_envs, one.split.learner_cores, one.split.pinned
            if kind not in seen:
                wanted.append(one)
                seen.add(kind)
        found = {one.split: one for one in (*wanted, *may) if one.why_not is None or one is own}
        return list(found.values())[:RACED]

    def _candidate(self, prediction: Prediction) -> Candidate:
        split = prediction.split
        values = split.values | self._of_hosts
        if split.inference and self._device != "cpu":
            values[INFERENCE_DEVICE] = f'"{self._device}"'
        changed = [key for key, value in values.items() if value != self._configured.get(key)]
        # If anything changes, keys that the config left to the machine have to be set, too.
        changes = tuple(dict.fromkeys([*changed, *self._unset])) if changed else ()
        settings = tuple(as_settings(values))
        return Candidate(prediction, settings, changes, self._why_not(prediction, settings))

    def _why_not(self, prediction: Prediction, settings: Sequence[str]) -> str | None:
        if prediction.versions < self._least_versions:
            return f"the job ends when a policy has had {prediction.versions:.0f} versions"
        try:
            load_config(self._config, [*self._overrides, *settings])
        except ConfigError as error:
            return str(replace(error.problems[0], where=""))
        return None

    def _rank(self, prediction: Prediction) -> tuple[float, int, int]:
        """Sort key: higher throughput first, then fewer changes, then fewer environments."""
        split = prediction.split
        values = split.values.items()
        changes = sum(value != self._configured.get(key) for key, value in values)
        throughput = round(math.log(prediction.throughput) / TIE)
        return -throughput, changes, split.groups * split.actors * split.num_envs

    def _without_idle_actors(self, found: Prediction) -> Split:
        """Remove actors that would only wait and make samples older."""
        if found.bottleneck.kind != "training-bound":
            return found.split
        of_each = found.limits["production"] / found.split.actors
        enough = math.ceil((1 + BALANCED) * found.limits["consumption"] / of_each)
        fewer = replace(found.split, actors=min(enough, found.split.actors))
        return replace(fewer, pinned=fewer.pinned or fewer.cores <= self._model.cluster.cores)


def _splits(
    job: JobConfig, cluster: Cluster, sizes: Sequence[int], learners: Sequence[int], *, elsewhere: bool
) -> Iterator[Split]:
    """Yield the splits that use all cores of a cluster."""
    own = split_of(job)
    for size in sizes:
        for groups in _numbers_of_groups(cluster) if elsewhere else (own.groups,):
            like = replace(own, num_envs=size, groups=groups)
            for split in _of_group(job, like, cluster.cores // groups, learners):
                if _can_share(job, split) and _has_room(job, cluster, split):
                    yield split


def _numbers_of_groups(cluster: Cluster) -> Iterator[int]:
    nodes, cores = cluster.nodes, cluster.cores_per_node
    yield from (groups for groups in range(1, nodes) if nodes % groups == 0)
    yield from (nodes * times for times in range(1, cores + 1) if cores % times == 0)


def _of_group(job: JobConfig, like: Split, cores: int, numbers: Sequence[int]) -> Iterator[Split]:
    """Yield the splits of a group's cores: with cores of its own for each role, and with shared cores."""
    if job.distribution.one_process:  # More actors, or more cores of a learner, would only take turns.
        yield like
        return
    rest = cores - like.buffer_cores
    for learners in numbers:
        for each in sorted({*range(1, EVERY_CORE + 1), *powers_of_two(rest)}):
            left = rest - learners * each
            for actors in {left // like.actor_cores, max(1, cores // like.actor_cores)}:
                if actors < 1 or learners * each > max(1, rest) or not _in_step(job, like, actors):
                    continue
                split = replace(like, learners=learners, learner_cores=each, actors=actors)
                yield replace(split, pinned=split.cores <= like.groups * cores)


def _in_step(job: JobConfig, like: Split, actors: int) -> bool:
    """Whether actors in step share a rollout evenly; True for any number of actors that do not wait."""
    return job.distribution.mode == "async" or _fragments_per_rollout(job, like) % actors == 0


def _can_share(job: JobConfig, split: Split) -> bool:
    """Whether learners can share a batch, or the fragments of a rollout, evenly."""
    if split.learners == 1:
        return True
    if job.learns_from_replay:  # One learner scatters the batch, with the replay beside it.
        return job.distribution.buffer.colocate and job.replay_settings.batch_size % split.learners == 0
    return _fragments_per_rollout(job, split) % split.learners == 0


def _fragments_per_rollout(job: JobConfig, split: Split) -> int:
    settings = job.training.settings
    assert isinstance(settings, OnPolicySettings), "no other is valid"
    return settings.rollout_steps // (job.distribution.actor.send_size * split.num_envs)


def _has_room(job: JobConfig, cluster: Cluster, split: Split) -> bool:
    """Whether a group's buffer and learners have room on one node, and GPUs if they use any."""
    groups_of_node = max(1, split.groups // cluster.nodes)
    if groups_of_node * (split.learners * split.learner_cores + split.buffer_cores) > cluster.cores_per_node:
        return not split.pinned and cluster.nodes == 1
    gpus = max(1, cluster.gpus_per_node)  # The config's own GPU is there in any case.
    return not job.distribution.device.startswith("cuda") or groups_of_node * split.learners <= gpus

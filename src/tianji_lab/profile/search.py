"""Looks for the split of a cluster's cores with the highest throughput (M_L + M_A = M in Equation 4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import lcm
from typing import Final

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig, OnPolicySettings
from tianji_cli.config.source import read
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.telemetry.bottleneck import BALANCED
from tianji_lab.model.costs import CostTable, Split, Workload, powers_of_two
from tianji_lab.model.prediction import Prediction, predict
from tianji_lab.profile.scaling import Cluster
from tianji_lab.profile.settings import (
    ACTORS,
    GROUPS,
    HOSTS,
    LEARNERS,
    PINNED,
    as_settings,
    host_values,
    split_of,
    split_values,
    with_split,
)

EVERY_CORE: Final = 8
"""Up to so many cores of a learner, or those of an actor, every number is tried; beyond, powers of two."""


class Splits:
    """Enumerates the splits that use all cores of a cluster.

    Numbers of learners are powers of two, their cores as well beyond ``EVERY_CORE``, and groups are as many
    as share nodes, or the cores of a node, evenly. Learners have to share a batch, or the fragments of a
    rollout, evenly. Actors have all other cores. Where actors are in step, they have to share a rollout
    evenly, and the learners have all other cores.

    Each of these has its like in which the roles share all cores, unpinned, with an actor for each core: what
    learners leave idle, actors have. In step only those share that are more than there are cores. Where cores
    are too few for the roles of a group, there is no other, and then only as many groups as configured are
    looked at.

    Args:
        job: the config, whose cores of an actor and of a buffer stay.
    """

    def __init__(self, job: JobConfig, cluster: Cluster, num_envs: Sequence[int]) -> None:
        self._job = job
        self._configured = split_of(job)
        self._cluster = cluster
        self._num_envs = sorted(num_envs)
        self._share_a_thread = job.distribution.one_process

    def __iter__(self) -> Iterator[Split]:
        wanted = 1 + self._configured.buffer_cores + self._configured.actor_cores
        for number in self._num_envs:
            for groups in self._numbers_of_groups():
                like = replace(self._configured, num_envs=number, groups=groups)
                if self._share_a_thread or self._cluster.cores // groups >= wanted:
                    of_group = self._of_group(like)
                    yield from filter(self._has_place, filter(self._can_share, of_group))
                elif groups in (1, self._configured.groups):
                    yield from self._on_too_few(replace(like, learners=1, learner_cores=1))

    def next_to(self, split: Split) -> Iterator[Split]:
        """Yield a split with the other pins, with one core moved, with other environments, with other actors.

        More than one core is moved where learners or actors have several each. Numbers of environments are
        the next smaller and larger ones, and so on. Both also come with the other pins.
        """
        if not self._share_a_thread:
            yield replace(split, pinned=not split.pinned)
        if split.pinned and not self._share_a_thread:
            yield from _core_moved(split)
        smaller = [number for number in reversed(self._num_envs) if number < split.num_envs]
        larger = [number for number in self._num_envs if number > split.num_envs]
        for i in range(len(self._num_envs)):
            for side in (smaller, larger):
                if i < len(side):
                    yield replace(split, num_envs=side[i])
        if not self._share_a_thread:
            for actors in (split.actors + 1, max(1, split.actors - 1), split.actors + 2):
                for pinned in (split.pinned, not split.pinned):
                    yield replace(split, actors=actors, pinned=pinned)
            for number in (*smaller, *larger):
                yield replace(split, num_envs=number, pinned=not split.pinned)

    def _numbers_of_groups(self) -> Iterator[int]:
        nodes, cores = self._cluster.nodes, self._cluster.cores_per_node
        yield from (groups for groups in range(1, nodes) if nodes % groups == 0)
        yield from (nodes * times for times in range(1, cores + 1) if cores % times == 0)

    def _on_too_few(self, like: Split) -> Iterator[Split]:
        """Yield splits whose roles share cores with up to an actor for each; pins say where they do."""
        cores = self._cluster.cores // like.groups
        most = max(1, cores // like.actor_cores) if self._job.distribution.mode == "async" else 1
        for actors in range(1, most + 1):
            yield replace(like, actors=actors, pinned=False)
        if cores > 1:
            yield replace(like, actors=1, pinned=True)

    def _of_group(self, like: Split) -> Iterator[Split]:
        """Yield the splits of a group's cores."""
        whole = self._cluster.cores // like.groups
        cores = whole - like.buffer_cores
        if self._share_a_thread:  # More actors than configured would only take more turns.
            yield from (replace(like, learners=1, learner_cores=each) for each in powers_of_two(cores))
        elif self._job.distribution.mode == "sync":
            yield from self._in_step(like, cores)
        else:
            for split in _with_actors_on_the_rest(replace(like, pinned=True), cores):
                yield split
                if (actors := whole // like.actor_cores) > split.actors:
                    yield replace(split, actors=actors, pinned=False)

    def _in_step(self, like: Split, cores: int) -> Iterator[Split]:
        """Yield splits in step: neither actors nor learners are in the way of those that wait for them.

        But the threads of a learner are: those that have done their part of an update keep their cores busy
        for a millisecond or two, in case there is more. So a learner that shares cores has one.
        """
        fragments = with_split(self._job, like).fragments_per_rollout
        for actors in range(1, min(fragments, cores // like.actor_cores) + 1):
            for learners in powers_of_two(cores) if fragments % actors == 0 else ():
                each, left = divmod(cores - actors * like.actor_cores, learners)
                if each and not left:
                    yield replace(like, learners=learners, learner_cores=each, actors=actors, pinned=True)
                elif not each:
                    yield replace(like, learners=learners, learner_cores=1, actors=actors, pinned=False)

    def _can_share(self, split: Split) -> bool:
        """Whether learners can divide among themselves what they learn from."""
        if split.learners == 1:
            return True
        if self._job.learns_from_replay:  # One of them deals it out, with the replay beside it.
            colocated = self._job.distribution.buffer.colocate
            return colocated and self._job.replay_settings.batch_size % split.learners == 0
        settings = self._job.training.settings
        assert isinstance(settings, OnPolicySettings), "no other is valid"
        fragment_steps = self._job.distribution.actor.send_size * split.num_envs
        return settings.rollout_steps // fragment_steps % split.learners == 0

    def _has_place(self, split: Split) -> bool:
        """Whether a group's buffer and learners find room on one node, and GPUs if they use any."""
        groups_of_node = max(1, split.groups // self._cluster.nodes)
        cores = groups_of_node * (split.learners * split.learner_cores + split.buffer_cores)
        if cores > self._cluster.cores_per_node:
            return False
        gpus = max(1, self._cluster.gpus_per_node)  # The config's own is there, whatever is said of others.
        return not self._job.distribution.device.startswith("cuda") or groups_of_node * split.learners <= gpus


def _with_actors_on_the_rest(like: Split, cores: int) -> Iterator[Split]:
    for learners in powers_of_two(cores):
        most = cores // learners
        every = max(EVERY_CORE, like.actor_cores)  # One of them leaves a whole number of actors.
        beyond = (power for power in powers_of_two(most) if power > every)
        for each in (*range(1, min(every, most) + 1), *beyond):
            actors, left = divmod(cores - learners * each, like.actor_cores)
            if actors and not left:
                yield replace(like, learners=learners, learner_cores=each, actors=actors)


def _core_moved(split: Split) -> Iterator[Split]:
    cores = lcm(split.learners, split.actor_cores)
    of_each, actors = cores // split.learners, cores // split.actor_cores
    for sign in (1, -1):
        learner_cores = split.learner_cores + sign * of_each
        if learner_cores > 0 and split.actors > sign * actors:
            yield replace(split, learner_cores=learner_cores, actors=split.actors - sign * actors)


SHOWN: Final = 5
"""Candidates that a user is shown."""

TRIED: Final = 5
"""Splits that are trained with to prove a choice, itself among them."""

TIE: Final = 0.01
"""Throughputs that lie no further apart than this share are the same."""

REFUSED_ALONE: Final = (GROUPS, HOSTS)
"""Settings whose value, once refused, is refused with every other split."""


@dataclass(frozen=True)
class Candidate:
    """A split, and what is to be expected of it.

    Attributes:
        settings: ``SECTION.KEY=VALUE`` settings that give the config this split.
        changes: keys of those that say something else than the config.
        why_not: why it cannot be run; None if it can.
    """

    prediction: Prediction
    settings: tuple[str, ...]
    changes: tuple[str, ...]
    why_not: str | None

    @property
    def split(self) -> Split:
        """The split."""
        return self.prediction.split

    @property
    def runnable(self) -> bool:
        """Whether the config with this split is valid."""
        return self.why_not is None


class Search:
    """Compares the splits of a cluster.

    Args:
        cluster: whose cores are to be split: all of them, or as many as have something to do.
        num_envs: numbers of environments of an actor for which costs are known.

    Raises:
        UsageError: there are GPUs for learners that use none.
    """

    def __init__(
        self,
        config: str,
        overrides: Sequence[str],
        *,
        cluster: Cluster,
        num_envs: Sequence[int],
        workload: Callable[[Split], Workload],
        costs: CostTable,
    ) -> None:
        self._config = config
        self._overrides = tuple(overrides)
        self._cluster = cluster
        self._workload = workload
        self._costs = costs
        self._job = load_config(config, overrides)
        self._of_hosts = host_values(self._job, cluster.nodes)
        self._configured = split_values(split_of(self._job)) | {HOSTS: str(self._job.distribution.hosts)}
        said = read(config, overrides).origins
        self._unsaid = [key for key in (ACTORS, PINNED) if tuple(key.split(".")) not in said]
        self._refused: dict[tuple[str, str], str] = {}
        check_gpus(cluster, self._job.distribution.device)
        self._splits = Splits(self._job, cluster, num_envs)
        splits = list(self._splits)
        own = split_of(self._job)
        if own not in splits and cluster.nodes == self._job.distribution.hosts:
            splits.append(own)  # Roles that take turns on too few cores can be the best there is.
        predictions = [self.predict(split) for split in splits]
        trimmed = self._without_idle_actors(predictions)
        self._all = list({found.split: found for found in (*predictions, *trimmed)}.values())
        self._predictions = list(_worth_sharing(self._all, own))

    def predict(self, split: Split) -> Prediction:
        """Reckon what a split gives on this cluster."""
        return predict(split, self._workload(split), self._costs.at(split), self._cluster.cores)

    def _without_idle_actors(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Reckon with no more actors than a learner can follow, where all cores would be more.

        Equation 4 wants production and consumption in balance, and all cores used. Where only one of these
        can be, actors that wait for the learner most of the time would but make samples older.
        """
        for found in predictions:
            if found.bottleneck.kind == "training-bound":
                of_each = found.rho * found.production / found.split.actors
                enough = math.ceil((1 + BALANCED) * found.consumption / of_each)
                fewer = replace(found.split, actors=min(enough, found.split.actors))
                # With cores enough for all roles, there is the like of it that is pinned.
                if fewer != found.split and (fewer.pinned or fewer.cores > self._cluster.cores):
                    yield self.predict(fewer)

    def best(self, most: int = SHOWN) -> list[Candidate]:
        """Find the best splits, best first, whether they can be run or not.

        Where none of them can be, the best one that can comes after them, if there is any.

        Raises:
            UsageError: nodes are too small.
        """
        ranked = Ranking(self._predictions, self._rank)
        found = [self._candidate(prediction) for prediction in ranked.take(most)]
        if not found:
            raise UsageError("a learner and its buffer find no room on one node: --cores should be more")
        return found if any(one.runnable for one in found) else [*found, *self.runnable(1)]

    def runnable(self, most: int = SHOWN) -> list[Candidate]:
        """Find the best splits that can be run, best first; there may be none."""
        return self._runnable_of(self._predictions, most)

    def like_the_config(self) -> Candidate | None:
        """Find the best split that can be run with the config's own numbers of groups and learners.

        Other numbers of them learn differently, which throughput says nothing of.
        """
        own = [found for found in self._predictions if self._is_like_the_config(found.split)]
        return next(iter(self._runnable_of(own, 1)), None)

    def _is_like_the_config(self, split: Split) -> bool:
        values = split_values(split)
        return all(values[key] == self._configured[key] for key in (GROUPS, LEARNERS))

    def _runnable_of(self, predictions: Iterable[Prediction], most: int) -> list[Candidate]:
        ranked, found = Ranking(predictions, self._rank), list[Candidate]()
        for prediction in ranked:
            if self._refusal(prediction.split) is None:
                found.append(self._candidate(prediction))
                if len(found) == most:
                    break
            else:
                ranked.leave_out(lambda other: self._known_refusal(other.split) is not None)
        return found

    def to_try(self, choice: Split) -> list[Candidate]:
        """Find splits that can be run to prove that one of them is the best of all: it comes first.

        The others are the config's own; the best whose roles share cores, or have cores of their own, other
        than the choice's; the choice with pins, or without; and then those next to it.
        """
        wanted = dict.fromkeys(
            (
                choice,
                split_of(self._job),
                *self._best_of_other_kind(choice),
                *self._splits.next_to(choice),
            )
        )
        runnable = (split for split in wanted if self._refusal(split) is None)
        return [self._candidate(self.predict(split)) for split in islice(runnable, TRIED)]

    def _best_of_other_kind(self, choice: Split) -> list[Split]:
        """Find the best split that shares cores if the choice does not, or the other way round."""
        others = [
            found
            for found in self._all
            if found.split.pinned != choice.pinned and _learns_alike(found.split) == _learns_alike(choice)
        ]
        return [candidate.split for candidate in self._runnable_of(others, 1)]

    def _candidate(self, prediction: Prediction) -> Candidate:
        split = prediction.split
        settings = as_settings(self._values(split))
        return Candidate(prediction, tuple(settings), self._changes(split), self._refusal(split))

    def _rank(self, prediction: Prediction) -> tuple[int, int, float]:
        """Order what has the same throughput."""
        split = prediction.split
        environments = split.groups * split.actors * split.num_envs
        return len(self._changes(split)), environments, -prediction.throughput

    def _changes(self, split: Split) -> tuple[str, ...]:
        """List keys that change; where any does, what the config left to the machine has to be said, too."""
        changed = [key for key, value in self._values(split).items() if value != self._configured.get(key)]
        return tuple(dict.fromkeys([*changed, *self._unsaid])) if changed else ()

    def _values(self, split: Split) -> dict[str, str]:
        return split_values(split) | self._of_hosts

    def _known_refusal(self, split: Split) -> str | None:
        of_values = (self._refused.get(pair) for pair in self._values(split).items())
        return next((why for why in of_values if why is not None), None)

    def _refusal(self, split: Split) -> str | None:
        """Return why a split cannot be run. Milliseconds each: not to be asked of all there are."""
        if (known := self._known_refusal(split)) is not None:
            return known
        values = self._values(split)
        try:
            load_config(self._config, [*self._overrides, *as_settings(values)])
        except ConfigError as error:
            reasons = {problem.key: str(replace(problem, where="")) for problem in error.problems}
            for key in REFUSED_ALONE:
                if key in reasons:
                    self._refused[key, values[key]] = reasons[key]
            return next(iter(reasons.values()))
        return None


def _learns_alike(split: Split) -> tuple[int, int, int]:
    return split.groups, split.learners, split.num_envs


def _worth_sharing(predictions: Sequence[Prediction], own: Split) -> Iterator[Prediction]:
    """Yield all but those whose roles share cores for nothing: with cores of their own they do as much."""
    pinned: dict[tuple[int, int, int], float] = {}
    for found in predictions:
        if found.split.pinned:
            key = _learns_alike(found.split)
            pinned[key] = max(found.throughput, pinned.get(key, 0.0))
    for found in predictions:
        least = (1 + TIE) * pinned.get(_learns_alike(found.split), 0.0)
        if found.split.pinned or found.split == own or found.throughput > least:
            yield found


class Ranking:
    """Predictions, best first: throughputs that are the same are ordered by what else counts.

    Args:
        rank: of predictions whose throughputs are the same; the least comes first.
    """

    def __init__(
        self, predictions: Iterable[Prediction], rank: Callable[[Prediction], tuple[float, ...]]
    ) -> None:
        self._left = sorted(predictions, key=lambda found: -found.throughput)
        self._rank = rank

    def __iter__(self) -> Iterator[Prediction]:
        while self._left:
            least = (1 - TIE) * self._left[0].throughput
            end = next((i for i, found in enumerate(self._left) if found.throughput < least), len(self._left))
            yield self._left.pop(min(range(end), key=lambda i: self._rank(self._left[i])))

    def take(self, most: int) -> list[Prediction]:
        """Take the first, or fewer if there are no more."""
        return list(islice(self, most))

    def leave_out(self, unwanted: Callable[[Prediction], bool]) -> None:
        """Forget those that are unwanted."""
        self._left = [found for found in self._left if not unwanted(found)]


def check_gpus(cluster: Cluster, device: str) -> None:
    """Refuse GPUs that no role would use.

    Raises:
        UsageError: there are GPUs, and learners do not compute on one.
    """
    if cluster.gpus_per_node and not device.startswith("cuda"):
        raise UsageError(
            f"--gpus {cluster.gpus_per_node}: the config's learners compute on {device!r}; "
            "--set distribution.device=cuda gives each a GPU"
        )

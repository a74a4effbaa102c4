"""What follows from what was measured: predictions, candidates, and where their assumptions end.

A split for more cores than were measured takes for granted that what all actors, learners or groups share
keeps up: the root, a buffer, a link, the averaging of gradients; and that samples are still young.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, Self

from tianji_cli.quantities import several
from tianji_lab.model.costs import Costs, Split, Workload
from tianji_lab.model.prediction import Prediction, predict
from tianji_lab.model.simulation import Simulation, simulate
from tianji_lab.profile.building import Subject
from tianji_lab.profile.measurements import Measured, Measurements, warnings
from tianji_lab.profile.scaling import Cluster, MeasuredCosts
from tianji_lab.profile.search import Candidate, Search
from tianji_lab.profile.settings import averaging_of, remote_engine, split_of, workload_of

Name = Literal["root", "reception", "link", "gradients", "staleness", "rollout"]

_SHARED: Final[tuple[Name, ...]] = ("root", "reception", "link")
"""Those that are limits of a throughput; ``Prediction.limits`` has them by the same names."""


@dataclass(frozen=True)
class Limit:
    """An assumption that ends with growth.

    Attributes:
        words: what happens, from which size on, and what would help.
        at: that size, in groups ("root"), learners of a group ("gradients") or actors of a group.
        headroom: how many times as large as now that is; below 1 the assumption does not hold now.
    """

    name: Name
    words: str
    at: int
    headroom: float


def breaks_first(prediction: Prediction, workload: Workload, costs: Costs) -> Limit | None:
    """Name the assumption that breaks first as a job grows.

    The limit of the throughput comes before all others; then the closest.

    Returns:
        None if nothing is shared that takes any time.
    """
    found = growth_limits(prediction, workload, costs)
    return found[0] if found else None


def growth_limits(prediction: Prediction, workload: Workload, costs: Costs) -> list[Limit]:
    """List all assumptions that end with growth, those that break first at the head."""
    found = [
        _of_what_is_shared(name, prediction)
        for name in _SHARED
        if math.isfinite(prediction.limits.get(name, math.inf))
    ]
    if costs.exchange.gradients_s > 0:
        found.append(_of_gradients(prediction, workload, costs))
    if costs.exchange.root_s > 0 and not costs.exchange.waits:
        found.append(_of_averaging(prediction, workload, costs))
    if workload.in_step:
        found.append(_of_turns(prediction, workload))
    elif workload.rollout_steps is not None and (aged := _of_ages(prediction, workload)).headroom < 1:
        found.append(aged)  # Old samples end no growth, and are worth a word where there are some.
    limiting = min(prediction.limits, key=lambda name: prediction.limits[name])
    return sorted(found, key=lambda limit: (limit.name != limiting, limit.headroom))


def _of_what_is_shared(name: Name, prediction: Prediction) -> Limit:
    """A part that serves all groups, or all actors of a group, and is busy all the time at some size."""
    otherwise = min(limit for other, limit in prediction.limits.items() if other != name)
    headroom = prediction.limits[name] / otherwise
    now = prediction.split.groups if name == "root" else prediction.split.actors
    at = max(1, round(now * headroom))
    what, busy, remedy = {
        "root": (
            f"one root averages the parameters of all groups: from about {at} groups (here {now})",
            "it is busy all the time, and more groups add nothing",
            "averaging less often, or fewer and larger groups, would help",
        ),
        "reception": (
            f"one buffer receives all fragments of a group: from about {at} actors in it (here {now})",
            "it is busy all the time, and more actors add nothing",
            "larger fragments, or more groups, would help",
        ),
        "link": (
            f"fragments share the link of the learner's host: from about {at} actors in a group (here {now})",
            "it is full, and more actors elsewhere add nothing",
            "actors on that host, or a group on each host, would help",
        ),
    }[name]
    words = f"{what} {busy}; {remedy}"
    return Limit(name, words, at, headroom)


def _of_gradients(prediction: Prediction, workload: Workload, costs: Costs) -> Limit:
    """More learners shorten an update, but not the averaging after it."""
    split, gradients_s = prediction.split, costs.exchange.gradients_s
    update_s = split.groups * workload.uses_per_update / prediction.consumption
    headroom = (update_s - gradients_s) / gradients_s
    at = max(1, round(split.learners * headroom))
    words = (
        f"learners average their gradients after every update: from about {at} learners in a group (here "
        f"{split.learners}) that takes longer than the rest of an update, and more learners add little; "
        "more groups would help"
    )
    return Limit("gradients", words, at, headroom)


def _of_averaging(prediction: Prediction, workload: Workload, costs: Costs) -> Limit:
    """A root that is not waited for delays no group; it averages less often than it was to."""
    exchange, now = costs.exchange, prediction.split.groups
    most = workload.uses_per_update * exchange.sync_interval / exchange.root_s
    headroom = most / prediction.throughput
    at = max(1, round(now * headroom))
    words = (
        f"one root averages the parameters of all groups: from about {at} groups (here {now}) it is busy all "
        f"the time, and a group's parameters are averaged less often than every {exchange.sync_interval} "
        "updates; a larger distribution.sync_interval, or fewer and larger groups, would help"
    )
    return Limit("root", words, at, headroom)


def _of_turns(prediction: Prediction, workload: Workload) -> Limit:
    """In step, with more actors than fragments in a rollout, some have no part in it."""
    split = prediction.split
    at, now = workload.fragments_per_rollout(split.num_envs), split.actors
    words = (
        f"a rollout has {several(at, 'fragment')}: more actors than that in a group (here {now}) "
        "find nothing to do"
    )
    return Limit("rollout", words, at, at / now)


def _of_ages(prediction: Prediction, workload: Workload) -> Limit:
    """With more actors than fragments in a rollout, some of them have to wait for a later one."""
    split = prediction.split
    at, now = workload.fragments_per_rollout(split.num_envs), split.actors
    words = (
        f"a rollout has {several(at, 'fragment')}, and a group {several(now, 'actor')}: "
        f"samples are up to {math.ceil(now / at)} versions old when used, which can cost learning "
        "what it gains in speed; more groups would help"
    )
    return Limit("staleness", words, at, at / now)


@dataclass(frozen=True, kw_only=True)
class MeasuredJob(Subject):
    """A job, and what was measured of it on the machine that ``environment`` describes."""

    measurements: Measurements
    environment: Mapping[str, str]

    @classmethod
    def of(cls, subject: Subject, measured: Measured) -> Self:
        """Join a job and what was measured of it."""
        return cls(
            config=subject.config,
            overrides=subject.overrides,
            job=subject.job,
            measurements=measured.measurements,
            environment=measured.environment,
        )

    @cached_property
    def warnings(self) -> list[str]:
        """What speaks against the figures."""
        return warnings(self.measurements)

    @property
    def hosts(self) -> Cluster:
        """As many machines as the config's hosts, each like the one that was measured."""
        return Cluster(self.measurements.cores, self.job.distribution.hosts)

    def costs(self, cluster: Cluster) -> MeasuredCosts:
        """What splits of a cluster cost."""
        return MeasuredCosts(
            self.measurements,
            cluster,
            local=self.job.distribution.transport.local,
            remote=remote_engine(self.job),
            colocated=self.job.distribution.buffer.colocate,
            averaging=averaging_of(self.job),
        )

    @cached_property
    def costs_here(self) -> MeasuredCosts:
        """What splits of the config's own hosts cost."""
        return self.costs(self.hosts)

    def workload(self, split: Split) -> Workload:
        """What the job asks of the machine."""
        here = self.costs_here
        uses, updates = here.uses_per_update(split.num_envs), here.updates_per_version(split.num_envs)
        return workload_of(self.job, self.measurements.rho, uses, updates, split)


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """What was measured, and what follows from it.

    Attributes:
        as_it_is: what the config gives with its own split, on its own hosts.
        costs: of that split there.
        simulated: what the simulation says of the best one, if something of it was not measured.
        breaks_first: the assumption of the best one that breaks first, if something of it was not measured.
    """

    subject: MeasuredJob
    cluster: Cluster
    as_it_is: Prediction
    costs: Costs
    candidates: Sequence[Candidate]
    table: MeasuredCosts = field(repr=False)
    search: Search = field(repr=False)
    simulated: Simulation | None = None
    breaks_first: Limit | None = None

    @property
    def recommended(self) -> Candidate:
        """The best."""
        return self.candidates[0]

    @property
    def runnable(self) -> Candidate | None:
        """The best of those that can be run."""
        return next((candidate for candidate in self.candidates if candidate.runnable), None)

    @property
    def like_the_config(self) -> Candidate | None:
        """The best with the config's own numbers of groups and learners, if it is none of the candidates."""
        own = self.search.like_the_config()
        return None if own in self.candidates else own

    @property
    def extrapolated(self) -> tuple[str, ...]:
        """What of the best was reckoned and not measured."""
        return self.table.at(self.recommended.split).extrapolated

    def with_actors(self, actors: int) -> Prediction:
        """Reckon what the best gives with other actors, as if there were cores for all that are pinned."""
        split = replace(self.recommended.split, actors=actors)
        cores = None if split.pinned else self.cluster.cores
        return predict(split, self.subject.workload(split), self.table.at(split), cores)


def find(subject: MeasuredJob, cluster: Cluster, *, anywhere: bool) -> ProfileResult:
    """Look for the best split of a cluster's cores.

    Args:
        anywhere: show the best even if it cannot be run, such as several groups over ``inproc``.

    Raises:
        UsageError: no split uses all of the cores, or GPUs are to be used and the config says otherwise.
    """
    hosts = replace(subject.hosts, link_bytes_per_s=cluster.link_bytes_per_s)
    table, here = subject.costs(cluster), subject.costs(hosts)
    search = Search(
        subject.config,
        subject.overrides,
        cluster=cluster,
        num_envs=subject.measurements.sizes,
        workload=subject.workload,
        costs=table,
    )
    own = split_of(subject.job)
    found = ProfileResult(
        subject=subject,
        cluster=cluster,
        as_it_is=predict(own, subject.workload(own), here.at(own), hosts.cores),
        costs=here.at(own),
        candidates=(search.best() if anywhere else search.runnable()) or search.best(),
        table=table,
        search=search,
    )
    return _with_limits(found) if anywhere or found.extrapolated else found


def _with_limits(found: ProfileResult) -> ProfileResult:
    best = found.recommended.prediction
    workload, costs = found.subject.workload(best.split), found.table.at(best.split)
    simulated = None
    if not workload.one_process:
        # How much roles slow one another down is the model's to say: the simulation knows no caches.
        simulated = simulate(
            best.split, workload, costs, cores=found.cluster.cores, contention=best.contention
        )
    return replace(found, simulated=simulated, breaks_first=breaks_first(best, workload, costs))

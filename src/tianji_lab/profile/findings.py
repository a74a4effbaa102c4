"""What follows from what was measured: predictions, candidates, and what a simulation says of the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tianji_cli.config.schema import JobConfig
from tianji_lab.model.costs import Costs
from tianji_lab.model.prediction import Prediction, predict
from tianji_lab.model.split import Split
from tianji_lab.model.workload import Workload
from tianji_lab.profile.limits import Limit, breaks_first
from tianji_lab.profile.measurements import Measurements
from tianji_lab.profile.scaling import Cluster, MeasuredCosts
from tianji_lab.profile.search import Candidate, Search
from tianji_lab.profile.settings import averaging_of, remote_engine, split_of, workload_of
from tianji_lab.model.simulation import Simulation, simulate


@dataclass(frozen=True, kw_only=True)
class MeasuredJob:
    """A job, and what was measured of it.

    Attributes:
        config: as the user named it.
        overrides: ``SECTION.KEY=VALUE`` settings over it.
        job: the resolved config.
        measurements: of this machine.
        environment: of it, by subject.
        warnings: what speaks against the figures.
    """

    config: str
    overrides: tuple[str, ...]
    job: JobConfig
    measurements: Measurements
    environment: Mapping[str, str]
    warnings: Sequence[str]

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
class Findings:
    """What was measured, and what follows from it.

    Attributes:
        subject: what was profiled.
        cluster: whose cores are to be split.
        as_it_is: what the config gives with its own split, on its own hosts.
        costs: of that split there.
        candidates: best first.
        table: costs of any split of the cluster.
        search: that has found them.
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
        """Reckon what the best gives with other actors, as if there were cores for all that are pinned.

        Args:
            actors: of each group.
        """
        split = replace(self.recommended.split, actors=actors)
        cores = None if split.pinned else self.cluster.cores
        return predict(split, self.subject.workload(split), self.table.at(split), cores)


def find(subject: MeasuredJob, cluster: Cluster, *, anywhere: bool) -> Findings:
    """Look for the best split of a cluster's cores.

    Args:
        subject: what is profiled.
        cluster: whose cores are to be split.
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
    found = Findings(
        subject=subject,
        cluster=cluster,
        as_it_is=predict(own, subject.workload(own), here.at(own), hosts.cores),
        costs=here.at(own),
        candidates=(search.best() if anywhere else search.runnable()) or search.best(),
        table=table,
        search=search,
    )
    return _with_limits(found) if anywhere or found.extrapolated else found


def _with_limits(found: Findings) -> Findings:
    best = found.recommended.prediction
    workload, costs = found.subject.workload(best.split), found.table.at(best.split)
    simulated = None
    if not workload.one_process:
        # How much roles slow one another down is the model's to say: the simulation knows no caches.
        simulated = simulate(best.split, workload, costs, cores=found.cluster.cores, crowd=best.crowd)
    return replace(found, simulated=simulated, breaks_first=breaks_first(best, workload, costs))

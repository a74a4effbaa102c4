"""Predicts the rates of a split: Equations 1, 3 and 4 of the paper over the times of a job's parts.

Equation 1 is corrected: the paper's first case, ``T_c = (T_sp + T_sd) N_s``, lacks the division by ``N_A``
that its own condition has. With it both cases are ``T_c = N_s max((T_sp + T_sd) / N_A, T_rv)``.

The model of contention is simple: parts are measured with all cores at work, and roles that share cores take
turns on them without a loss. Times that are measured with roles on shared cores include the wait for a core,
so such splits come out a little slow. A race of trainings decides between splits; the model only lists them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from tianji_cli.config.schema import JobConfig
from tianji_cli.telemetry.bottleneck import (
    BOUND_BY_LINK,
    MORE_CORES,
    OWN_CORES,
    Bottleneck,
    bottleneck,
    in_step,
    on_shared_cores,
)
from tianji_lab.profile.parts import Measurements, Part
from tianji_lab.profile.split import Split

LEAST_VERSIONS: Final = 50
"""Minimum policies that a group publishes with a split; a split with fewer is not recommended."""


@dataclass(frozen=True)
class Cluster:
    """Machines whose cores are split.

    Attributes:
        link_bytes_per_s: of each node's link; None without a limit.
    """

    cores_per_node: int
    nodes: int = 1
    gpus_per_node: int = 0
    link_bytes_per_s: float | None = None

    @property
    def cores(self) -> int:
        """Cores of all nodes."""
        return self.cores_per_node * self.nodes


@dataclass(frozen=True)
class Prediction:
    """Rates of a split, over all groups.

    Attributes:
        rho: uses of each sample.
        limits: of the throughput in uses a second, by name: "production" (rho T_RA, of actors that never
            wait), "reception" (of the buffers), "consumption" (T_RL, of learners that never wait) and, where
            they exist, "turns" (actors and learners in step), "cores" (shared) and "link".
        versions: policies that a group publishes before the job ends by its steps or its time; infinite if
            neither ends it.
    """

    split: Split
    rho: float
    limits: Mapping[str, float]
    bottleneck: Bottleneck
    versions: float

    @property
    def throughput(self) -> float:
        """Sample uses a second (Equation 3)."""
        return min(self.limits.values())

    @property
    def steps_per_s(self) -> float:
        """Env steps a second, made and received: as many as are used, since the faster side waits."""
        return self.throughput / self.rho


class Model:
    """Predicts splits of a cluster from the parts of a job.

    Attributes:
        job: the config; a split replaces its own split.
        cluster: machines whose cores the splits share out.
    """

    def __init__(self, job: JobConfig, measurements: Measurements, cluster: Cluster) -> None:
        self.job = job
        self._rho = measurements.rho
        self.cluster = cluster
        self._measured_cores = measurements.cores
        self._fragment_bytes = measurements.fragment_bytes
        self._parts = measurements.parts
        self._buffers = 1 if self._takes_turns else job.distribution.buffer.num
        base = self._parts[0]
        self._by_size = {part.num_envs: part for part in self._parts if _is_like(part, base)}
        alike = [part for part in self._parts if part.num_envs == base.num_envs]
        self._by_cores = {part.learner_cores: part for part in alike if part.learners == base.learners}
        self._by_learners = {
            part.learners: part for part in alike if part.learner_cores == base.learner_cores
        }

    @property
    def learners(self) -> list[int]:
        """Numbers of learners that can be predicted from the measured ones."""
        if len(self._by_learners) < 2:
            return list(self._by_learners)
        return sorted({*self._by_learners, *(1 << n for n in range(self.cluster.cores.bit_length()))})

    def knows(self, num_envs: int) -> bool:
        """Whether a number of environments of an actor lies within the measured range."""
        return min(self._by_size) <= num_envs <= max(self._by_size)

    def predict(self, split: Split) -> Prediction:
        """Predict the rates of a split."""
        rho, samples = self._rho, self._at(split.num_envs, "samples")
        network_s = self._at(split.num_envs, "act_s") if split.inference else 0.0
        fragment_s = self._at(split.num_envs, "sample_s") + self._at(split.num_envs, "push_s") - network_s
        receive_s, update_s = self._at(split.num_envs, "receive_s"), self._update_s(split)
        uses = self._parts[0].uses_per_update
        if self._takes_turns:
            update_s += uses / rho / samples * receive_s
        limits = {
            "production": rho
            * min(
                _per_s(split.groups * split.actor_processes * samples, fragment_s),
                _per_s(split.groups * split.inference * samples, network_s),
            ),
            "reception": rho * _per_s(split.groups * self._buffers * samples, receive_s),
            "consumption": _per_s(split.groups * uses, update_s),
        }
        # Core seconds of a sample use.
        actor_s = (split.actor_cores * fragment_s + network_s) / samples / rho
        learner_s = split.learners * split.learner_cores * update_s / uses
        buffer_s = 0.0 if self._takes_turns else receive_s / samples / rho
        if self.job.distribution.one_process:
            limits["cores"] = split.groups / (actor_s + learner_s)
        elif split.cores > self.cluster.cores:
            limits["cores"] = self.cluster.cores / (actor_s + buffer_s + learner_s)
        if self.job.distribution.mode == "sync":
            limits["turns"] = 1 / (1 / limits["production"] + 1 / limits["consumption"])
        if (link := self._link(split)) is not None:
            limits["link"] = link
        return Prediction(
            split=split,
            rho=rho,
            limits=limits,
            bottleneck=self._bottleneck(split, limits, (actor_s, buffer_s, learner_s)),
            versions=self._versions(split, min(limits.values())),
        )

    def extrapolated(self, split: Split) -> Iterator[str]:
        """Describe everything of a prediction that goes beyond the measurements."""
        if split.cores > self._measured_cores and self.cluster.cores > self._measured_cores:
            yield f"more cores at work: they hinder one another no more than {self._measured_cores} did"
        if self.cluster.nodes > 1:
            yield "other nodes: as fast as this one; fragments between them cost no more than inside"
        if split.learner_cores > (most := max(self._by_cores)):
            yield f"a learner with {split.learner_cores} cores: no faster than with {most}, the most measured"
        if split.learners not in self._by_learners:
            yield f"{split.learners} learners: from {', '.join(map(str, sorted(self._by_learners)))} measured"
        if split.groups > 1:
            yield f"{split.groups} groups: averaging their parameters holds none of them up"
        if split.inference:
            yield "inference apart: asking costs nothing, and a pass takes as long as an actor's own"

    def share_of_network(self, num_envs: int) -> float:
        """Return the share of its network in an actor's time for a fragment."""
        return self._at(num_envs, "act_s") / self._at(num_envs, "sample_s")

    def _at(self, num_envs: int, what: str) -> float:
        """Interpolate a figure of a fragment between the measured numbers of environments."""
        sizes = sorted(self._by_size)
        return float(np.interp(num_envs, sizes, [getattr(self._by_size[size], what) for size in sizes]))

    def _update_s(self, split: Split) -> float:
        """Seconds of a learner for an update; more cores than were measured do not make it faster."""
        cores = max((c for c in self._by_cores if c <= split.learner_cores), default=min(self._by_cores))
        base = self._parts[0].learn_s
        return base * (self._by_cores[cores].learn_s / base) * (self._of_learners(split.learners) / base)

    def _of_learners(self, learners: int) -> float:
        """Seconds of an update of L learners: ``a + b / L`` through the two measured numbers of learners."""
        known = self._by_learners
        if learners in known or len(known) < 2:
            return known.get(learners, self._parts[0]).learn_s
        (one, one_s), (more, more_s) = [(number, part.learn_s) for number, part in sorted(known.items())][:2]
        slope = max(0.0, (one_s - more_s) / (1 / one - 1 / more))
        return one_s - slope * (1 / one - 1 / learners)

    @property
    def _takes_turns(self) -> bool:
        """Whether the buffer takes turns with a learner."""
        return self.job.distribution.buffer.colocate or self.job.distribution.one_process

    def _link(self, split: Split) -> float | None:
        """Uses a second that the links of the learners' hosts allow; None if no link limits fragments."""
        nodes = self.cluster.nodes / split.groups
        if nodes <= 1 or self.cluster.link_bytes_per_s is None:
            return None
        at_home = max(self.cluster.cores_per_node - split.cores_of_learners // split.groups, 0)
        away = (nodes - 1) * self.cluster.cores_per_node
        nbytes = self._fragment_bytes * split.num_envs / self.job.environment.num_envs
        nbytes *= away / (at_home + away)
        samples = self._at(split.num_envs, "samples")
        return split.groups * self.cluster.link_bytes_per_s / nbytes * samples * self._rho

    def _bottleneck(
        self, split: Split, limits: Mapping[str, float], core_s: tuple[float, float, float]
    ) -> Bottleneck:
        match min(limits, key=lambda name: limits[name]):
            case "link":
                return BOUND_BY_LINK
            case "cores":
                meant = not (split.pinned or self.job.distribution.one_process)
                return on_shared_cores(MORE_CORES if meant else OWN_CORES, *core_s)
            case "turns":
                return in_step(limits["production"], limits["consumption"])
            case _:
                return bottleneck(*(limits[name] for name in ("production", "reception", "consumption")))

    def _versions(self, split: Split, throughput: float) -> float:
        """Policies that a group publishes before the job's steps or time are up."""
        stop = self.job.experiment.stop
        uses = min(
            math.inf if stop.env_steps is None else stop.env_steps * self._parts[0].uses_per_step,
            math.inf if stop.wall_s is None else stop.wall_s * throughput,
        )
        base = self._parts[0]
        return uses / split.groups / base.uses_per_update / base.updates_per_version


def _is_like(part: Part, base: Part) -> bool:
    return (part.learners, part.learner_cores) == (base.learners, base.learner_cores)


def _per_s(amount: float, seconds: float) -> float:
    return amount / seconds if seconds else math.inf

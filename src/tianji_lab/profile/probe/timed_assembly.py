"""Builds the parts of a job for real, and times those calls that the rest of a role's work is told from."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tianji_algos.core import Agent, Embryo, Model, UpdateResult
from tianji_cli.config.schema import JobConfig
from tianji_cli.files.counters import ProductionFile
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.roles.learner.data_source import DataSource
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup
from tianji_cli.wire.fragment import FragmentStats
from tianji_cli.worker.assembly import Assembly
from tianji_cli.worker.parts import Job
from tianji_cli.worker.supply import Supply
from tianji_envs.core import VectorEnvironment
from tianji_lab.profile.probe.roles import Stopwatch
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions, Transport

ENGINE: Final = "inproc"
LEARNER: Final = 1
ACTOR: Final = 2
GROUP: Final = 0

_jobs = itertools.count()


def job_of(config: JobConfig, directory: Path) -> Job:
    """Plan an actor and a learner with its buffer, each in a process of its own as far as they know."""
    distribution, actor = config.distribution, config.distribution.actor
    processes = (
        PlannedProcess(0, ("root",), None, "here", (), 1),
        PlannedProcess(LEARNER, ("buffer", "learner"), GROUP, "here", (), 1, distribution.device),
        PlannedProcess(ACTOR, ("actor",), GROUP, "here", (), actor.cores, actor.device, actors=(0,)),
    )
    name = f"probe-{os.getpid()}-{next(_jobs)}"
    place = directory / name
    place.mkdir()
    # User roles are no part of what is measured.
    config = config.model_copy(update={"roles": {}})
    return Job(name, config, Plan(processes, ENGINE, ENGINE), place)


class TimedSource(DataSource):
    """Times how batches are made, and has each round begin with the initial parameters.

    So fragments that were recorded once are on-policy for ever.

    Args:
        feed: that does it.
        model: the learner's.

    Attributes:
        draw_s: seconds spent on batches, and on giving their samples new priorities.
        restoring_s: seconds spent on the initial parameters, which is no role's work.
    """

    def __init__(self, feed: DataSource, model: Model) -> None:
        self.draw_s = 0.0
        self.restoring_s = 0.0
        self._feed = feed
        self._model = model
        self._initial = np.zeros(model.parameter_count, np.float32)
        model.write_parameters(self._initial)

    def arrivals(self) -> Sequence[FragmentStats]:
        """Describe what came."""
        return self._feed.arrivals()

    def batch(self) -> Any | None:
        """Hand out the next batch."""
        began = time.perf_counter()
        batch = self._feed.batch()
        self.draw_s += time.perf_counter() - began
        return batch

    def used(self, result: UpdateResult) -> None:
        """Note what the update on it came to."""
        began = time.perf_counter()
        self._feed.used(result)
        self.draw_s += time.perf_counter() - began

    @property
    def round_is_done(self) -> bool:
        """Whether it is time to publish."""
        return self._feed.round_is_done

    def advance(self, version: int) -> None:
        """Begin a round with this version, but with the parameters of the first."""
        self._feed.advance(version)
        began = time.perf_counter()
        self._model.read_parameters(self._initial)
        self.restoring_s += time.perf_counter() - began

    def wind_down(self) -> None:
        """Give up the rest of the round."""
        self._feed.wind_down()

    def report(self) -> dict[str, Any]:
        """Describe what was measured."""
        return self._feed.report()


class TimedAssembly(Assembly):
    """Builds the roles of one side of a job.

    Args:
        job: the job.
        rank: of the side's process.

    Attributes:
        job: the job.
        acting: an agent's choices.
        stepping: vector steps.
        updating: updates.
        production: has the actor's page.
        role_model: that the agent or the update rule works with, once roles are built.
        timed_source: the learner's, once it is built.
    """

    role_model: Model
    timed_source: TimedSource

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, job.plan.processes[rank], 0)
        self.job = job
        self.acting, self.stepping, self.updating = Stopwatch(), Stopwatch(), Stopwatch()
        self.production = ProductionFile(None, job.plan.num_actors)
        self.production.begin(0, 0)

    def environment(
        self, num_envs: int, render: bool = False, *, evaluation: bool = False
    ) -> VectorEnvironment:
        """Make environments whose steps are timed."""
        environment = super().environment(num_envs, render, evaluation=evaluation)
        self.stepping.time(environment, "step")
        return environment

    def agent(self, model: Model, num_envs: int, seed: int) -> Agent:
        """Build an agent whose choices are timed."""
        agent = super().agent(model, num_envs, seed)
        self.acting.time(agent, "act")
        self.role_model = model
        return agent

    def embryo(self, model: Model) -> Embryo:
        """Build an update rule whose updates are timed."""
        embryo = super().embryo(model)
        self.updating.time(embryo, "update")
        self.role_model = model
        return embryo

    def feed(
        self, supply: Supply, transport: Transport, embryo: Embryo, all_reduce: AllReduceGroup | None
    ) -> DataSource:
        """Build a feed whose batches are timed."""
        self.timed_source = TimedSource(super().feed(supply, transport, embryo, all_reduce), embryo.model)
        return self.timed_source

    def endpoints(self) -> tuple[Transport, Transport]:
        """Open this side's endpoint and the one at the other end."""
        own = self.transport(EngineOptions())
        hosts = self.job.plan.endpoints
        other = LEARNER + ACTOR - own.rank
        return own, open_endpoint(ENGINE, ENGINE, hosts, own.wiring, other, 0, EngineOptions())

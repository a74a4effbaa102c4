"""Builds the parts of a job for real, and times those calls that the rest of a role's work is told from."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Final

import numpy as np

from tianji_algos.core import Agent, Embryo
from tianji_cli.config.schema import JobConfig
from tianji_cli.files.counters import ProductionFile
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.roles.learner.data_source import DataSource
from tianji_cli.worker.build import Wrappers, build_roles
from tianji_cli.worker.parts import Job, Parts
from tianji_cli.worker.wiring import open_transport
from tianji_envs.core import VectorEnvironment
from tianji_lab.profile.probe.roles import Stopwatch
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions

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


class TimedSide:
    """The roles of one side of a job, whose parts are timed, and the endpoints of both sides.

    Args:
        job: the job.
        rank: of the side's process.

    Attributes:
        parts: what the roles are built from.
        acting: an agent's choices.
        stepping: vector steps.
        updating: updates.
        drawing: batches of the learner, and new priorities of their samples.
        restoring_s: seconds spent on initial parameters, which is no role's work.
        counters: has the actor's page.
        transport: the endpoint of this side.
        other: the endpoint at the other end.
        roles: of this side.
    """

    def __init__(self, job: Job, rank: int) -> None:
        self.parts = Parts(job, job.plan.processes[rank], 0)
        self.acting, self.stepping, self.updating, self.drawing = (Stopwatch() for _ in range(4))
        self.restoring_s = 0.0
        self.counters = ProductionFile(None, job.plan.num_actors)
        self.counters.begin(0, 0)
        self.transport = open_transport(self.parts, EngineOptions())
        hosts, wiring = job.plan.endpoints, self.transport.wiring
        self.other = open_endpoint(ENGINE, ENGINE, hosts, wiring, LEARNER + ACTOR - rank, 0, EngineOptions())
        wrap = Wrappers(self._environment, self._agent, self._embryo, self._source)
        self.roles = build_roles(self.parts, self.transport, self.counters, wrap)

    def close(self) -> None:
        """Free what the roles and the endpoints hold."""
        for role in self.roles:
            role.close()
        self.transport.close()
        self.other.close()

    def _environment(self, environment: VectorEnvironment) -> VectorEnvironment:
        self.stepping.time(environment, "step")
        return environment

    def _agent(self, agent: Agent) -> Agent:
        self.acting.time(agent, "act")
        return agent

    def _embryo(self, embryo: Embryo) -> Embryo:
        self.updating.time(embryo, "update")
        self._model = embryo.model
        return embryo

    def _source(self, source: DataSource) -> DataSource:
        """Begin each round with the initial parameters, too: recorded fragments are on-policy for ever."""
        self.drawing.time(source, "batch")
        self.drawing.time(source, "used")
        model, advance = self._model, source.advance
        initial = np.zeros(model.parameter_count, np.float32)
        model.write_parameters(initial)

        def advance_and_restore(version: int) -> None:
            advance(version)
            began = time.perf_counter()
            model.read_parameters(initial)
            self.restoring_s += time.perf_counter() - began

        source.advance = advance_and_restore  # type: ignore[method-assign]
        return source

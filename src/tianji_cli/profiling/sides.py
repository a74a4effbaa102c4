"""The two sides of a job, each built for real and run against one that takes or gives whatever it can.

An actor, or a buffer and a learner: each has its process's place in a plan and its endpoint. Both endpoints
of a side are in this process, on the engine that needs no other.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tianji_algos.core import Agent, Embryo, Model
from tianji_cli.cluster.assembly import Assembly, Job, policy_slot
from tianji_cli.cluster.plan import Plan, PlannedProcess
from tianji_cli.config.schema import JobConfig
from tianji_cli.data import published
from tianji_cli.data.fragment import job_number
from tianji_cli.data.production import ProductionFile
from tianji_cli.data.published import PublishedPolicy
from tianji_cli.data.replay_store import ReplayStore
from tianji_cli.profiling.probe_roles import Feeder, Recorded, Sink
from tianji_cli.profiling.protocol import Acted, ActedWindow, Learned, LearnedWindow, Run
from tianji_cli.profiling.stopwatch import Stopwatch
from tianji_cli.profiling.windows import Counts, Windows
from tianji_cli.roles.actor import Actor
from tianji_cli.roles.buffer import Buffer
from tianji_cli.roles.learner import Learner
from tianji_cli.roles.loop import run_in_turns
from tianji_envs.core import VectorEnvironment
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions, Transport

ENGINE: Final = "inproc"
LEARNER: Final = 1
ACTOR: Final = 2
GROUP: Final = 0

FILL_S: Final = 2.0
"""What a replay holds by then has to do."""

FILL_BYTES: Final = 128 << 20
"""More fragments than these make draws no slower: they are beyond all caches."""

_jobs = itertools.count()


def job_of(config: JobConfig, directory: Path) -> Job:
    """Plan an actor and a learner with its buffer, each in a process of its own as far as they know."""
    processes = (
        PlannedProcess(0, ("root",), None, "here", (), 1),
        PlannedProcess(LEARNER, ("buffer", "learner"), GROUP, "here", (), 1, config.distribution.device),
        PlannedProcess(ACTOR, ("actor",), GROUP, "here", (), 1, actors=(0,)),
    )
    name = f"probe-{os.getpid()}-{next(_jobs)}"
    place = directory / name
    place.mkdir()
    return Job(name, config, Plan(processes, ENGINE, ENGINE), place, resumed=False)


def never_sleep(_seconds: float) -> None:
    """Stand in for sleep in a loop where somebody always has something to do."""


class TimedAssembly(Assembly):
    """Builds the real parts and times those calls that the rest of a role's work is told from.

    Args:
        job: the job.
        rank: of the side's process.
    """

    def __init__(self, job: Job, rank: int) -> None:
        super().__init__(job, job.plan.processes[rank], 0)
        self.job = job
        self.acting, self.stepping, self.updating = Stopwatch(), Stopwatch(), Stopwatch()
        self.production = ProductionFile(None, job.plan.num_actors)
        self.production.begin(0, 0)

    def environment(self, num_envs: int, render: bool = False) -> VectorEnvironment:
        """Make environments whose steps are timed."""
        environment = super().environment(num_envs, render)
        self.stepping.time(environment, "step")
        return environment

    def agent(self, model: Model, num_envs: int, seed: int) -> Agent:
        """Build an agent whose choices are timed."""
        agent = super().agent(model, num_envs, seed)
        self.acting.time(agent, "act")
        return agent

    def embryo(self, model: Model) -> Embryo:
        """Build an update rule whose updates are timed."""
        embryo = super().embryo(model)
        self.updating.time(embryo, "update")
        return embryo

    def endpoints(self) -> tuple[Transport, Transport]:
        """Open this side's endpoint and the one at the other end."""
        own = self.transport(EngineOptions())
        plan = self.job.plan
        hosts = {process.rank: process.host for process in plan.trainers}
        other = LEARNER + ACTOR - own.rank
        return own, open_endpoint(ENGINE, ENGINE, hosts, own.wiring, other, 0, EngineOptions())


class ActorSide:
    """An actor, and whoever takes its fragments.

    Args:
        config: of the job.
        directory: where it has a place to write.
    """

    def __init__(self, config: JobConfig, directory: Path) -> None:
        self._steps = config.distribution.actor.send_size
        self.assembly = TimedAssembly(job_of(config, directory), ACTOR)
        self._transport, self._other = self.assembly.endpoints()
        (actor,) = self.assembly.roles(self._transport, self.assembly.production)
        assert isinstance(actor, Actor)
        self.actor = actor
        self.sink = Sink(self._other, policy_slot(GROUP), _initial_policy(self.assembly.model()))

    @property
    def stepping(self) -> Stopwatch:
        """Vector steps."""
        return self.assembly.stepping

    def run(self, step: Run) -> Acted:
        """Let the actor act."""
        self.sink.windows = windows = Windows(step, self._read)
        run_in_turns([self.actor, self.sink], windows, never_sleep)
        self.sink.windows = None
        return Acted(windows=tuple(self._acted(window) for window in windows.counted()))

    def close(self) -> None:
        """Close the environments and the endpoints."""
        self.actor.stop()
        self.actor.close()
        self._transport.close()
        self._other.close()

    def _acted(self, window: Counts) -> ActedWindow:
        return ActedWindow(
            wall_s=window["wall_s"],
            fragments=window["steps"] / self._steps,
            samples=int(window["samples"]),
            busy_s=window["busy_s"],
            act_s=window["act_s"],
            step_s=window["step_s"],
        )

    def _read(self) -> Counts:
        return {
            "steps": self.stepping.calls,
            "samples": self.assembly.production.read(0).produced,
            "busy_s": self.actor.busy_s,
            "act_s": self.assembly.acting.seconds,
            "step_s": self.stepping.seconds,
        }


class LearnerSide:
    """A learner with its buffer, and whoever keeps it supplied.

    The policy begins anew with every version: fragments that were recorded once are on-policy for ever.

    Args:
        config: of the job.
        directory: where it has a place to write.
        recorded: fragments of the same layout.
    """

    def __init__(self, config: JobConfig, directory: Path, recorded: Sequence[Recorded]) -> None:
        assembly = self.assembly = TimedAssembly(job_of(config, directory), LEARNER)
        self._transport, self._other = assembly.endpoints()
        buffer, learner = assembly.roles(self._transport, assembly.production)
        assert isinstance(buffer, Buffer)
        assert isinstance(learner, Learner)
        self._buffer, self._learner = buffer, learner
        number = job_number(assembly.job.id)
        self._feeder = Feeder(self._other, LEARNER, assembly.layout, number, recorded)
        self._drawing, self._restoring_s = Stopwatch(), 0.0
        self._drawing.time(learner._feed, "batch")
        self._drawing.time(learner._feed, "used")
        self._restore_after_publication()
        if isinstance(buffer._store, ReplayStore):
            self._fill(buffer._store)

    def run(self, step: Run) -> Learned:
        """Let buffer and learner work."""
        self._feeder.windows = windows = Windows(step, self._read)
        run_in_turns([self._feeder, self._buffer, self._learner], windows, never_sleep)
        self._feeder.windows = None
        return Learned(windows=tuple(_learned(window) for window in windows.counted()))

    def close(self) -> None:
        """Free what the roles and the endpoints hold."""
        for role in (self._buffer, self._learner):
            role.close()
        self._transport.close()
        self._other.close()

    def _read(self) -> Counts:
        return {
            "fragments": self._feeder.received,
            "updates": self.assembly.updating.calls,
            "versions": self._feeder.version,
            "uses": self._learner.report()["consumed"],
            "store_s": self._buffer.busy_s,
            "update_s": self.assembly.updating.seconds,
            "draw_s": self._drawing.seconds,
            "busy_s": self._learner.busy_s - self._restoring_s,
        }

    def _restore_after_publication(self) -> None:
        """Have each round begin with the initial parameters; the time that takes is nobody's."""
        learner, model = self._learner, self._learner._embryo.model
        initial = np.zeros(model.parameter_count, np.float32)
        model.write_parameters(initial)
        publish = learner.publish_policy

        def publish_and_restore() -> bool:
            worked = publish()
            began = time.perf_counter()
            self._feeder.version += 1
            model.read_parameters(initial)
            self._restoring_s += time.perf_counter() - began
            return worked

        learner.publish_policy = publish_and_restore  # type: ignore[method-assign]

    def _fill(self, store: ReplayStore) -> None:
        """Fill the replay as far as time and memory allow; what it holds then was its warm-up."""
        balance = store.balance
        run_in_turns([self._feeder, self._buffer], _Filling(store, self._feeder), never_sleep)
        self._learner.turn()  # It counts everything that came, which is nothing for a window.
        balance.warmup = min(balance.warmup, balance.received)


class _Filling:
    """Attends a loop until a replay is full.

    Args:
        store: the replay's.
        feeder: who fills it.
    """

    def __init__(self, store: ReplayStore, feeder: Feeder) -> None:
        self._balance = store.balance
        self._feeder = feeder
        self._most = FILL_BYTES // feeder.layout.nbytes
        self._until = time.perf_counter() + FILL_S

    def attend(self) -> bool:
        """Go on while there is room and time, but until there is a fragment."""
        allowed = time.perf_counter() < self._until and self._feeder.received < self._most
        return self._balance.received < self._balance.warmup and (allowed or not self._balance.received)


def _learned(window: Counts) -> LearnedWindow:
    """Tell one window; what the learner did beside updating and drawing is the rest."""
    update_s, draw_s = window["update_s"], window["draw_s"]
    return LearnedWindow(
        wall_s=window["wall_s"],
        fragments=int(window["fragments"]),
        updates=int(window["updates"]),
        versions=int(window["versions"]),
        uses=int(window["uses"]),
        store_s=window["store_s"],
        update_s=update_s,
        draw_s=draw_s,
        rest_s=window["busy_s"] - update_s - draw_s,
    )


def _initial_policy(model: Model) -> memoryview:
    """The policy that a learner publishes first."""
    policy = PublishedPolicy(memoryview(bytearray(published.nbytes(model.parameter_count))))
    model.write_parameters(policy.parameters)
    return policy.memory

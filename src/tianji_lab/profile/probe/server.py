"""The two sides of a job, each built for real and run against one that takes or gives whatever it can.

An actor, or a buffer and a learner: each has its process's place in a plan and its endpoint. Both endpoints
of a side are in this process, on the engine that needs no other. Those calls are timed that the rest of a
role's work is told from.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import distributed

from tianji_algos.core import Agent, Embryo, Model
from tianji_cli.config.checks import steps_under_way
from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import UsageError
from tianji_cli.files.counters import ProductionFile
from tianji_cli.limits import pin as pin_thread
from tianji_cli.plan.graph import POLICY, slot_name
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.plan.spec import JobSpec
from tianji_cli.roles.actor.actor import Actor
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.data_source import DataSource
from tianji_cli.roles.learner.learner import Learner
from tianji_cli.roles.role import run_in_turns
from tianji_cli.wire.parameters import PublishedPolicy, policy_layout
from tianji_cli.worker.build import Wrappers, build_roles, open_transport
from tianji_cli.worker.builder import Builder, seed_process
from tianji_envs.core import VectorEnvironment
from tianji_lab.profile.probe.protocol import (
    Acted,
    ActedWindow,
    Answer,
    Average,
    Averaged,
    Learned,
    LearnedWindow,
    Prepare,
    Prepared,
    Run,
    Step,
)
from tianji_lab.profile.probe.roles import (
    Counts,
    Feeder,
    Recorded,
    Recorder,
    Sink,
    Stopwatch,
    Windows,
    filled_up,
)
from tianji_transports.composite import open_endpoint
from tianji_transports.core import EngineOptions

ENGINE: Final = "inproc"
LEARNER: Final = 1
ACTOR: Final = 2
GROUP: Final = 0
REPLAY_BYTES: Final = 128 << 20
"""More fragments than these make draws no slower: they are beyond all caches."""

_jobs = itertools.count()


def replay_settings(job: JobConfig, fragment_bytes: int) -> list[str]:
    """Settings over ``measuring_settings`` with which a replay is no larger than what is filled of it."""
    distribution = job.distribution
    of_memory = REPLAY_BYTES // fragment_bytes * job.fragment_steps
    in_flight = distribution.actor.window * job.fragment_steps
    under_way = steps_under_way(job.replay_settings, distribution, job.environment)
    least = max(in_flight, under_way, job.batch_steps)
    capacity = min(distribution.buffer.capacity, max(of_memory, least))
    return [f"distribution.buffer.capacity={capacity}", f"training.warmup_steps={capacity}"]


def job_of(config: JobConfig, directory: Path) -> JobSpec:
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
    return JobSpec(name, dump_config(config), Plan(processes, ENGINE, ENGINE), place, place)


class TimedSide:
    """The roles of one side of a job, whose parts are timed, and the endpoints of both sides.

    Attributes:
        drawing: batches of the learner, and new priorities of their samples.
        restoring_s: seconds spent on initial parameters, which is no role's work.
    """

    def __init__(self, config: JobConfig, directory: Path, rank: int) -> None:
        # User roles are no part of what is measured.
        config = config.model_copy(update={"roles": {}})
        job = job_of(config, directory)
        seed_process(job, job.plan.processes[rank], 0)
        self.builder = Builder(job, config, job.plan.processes[rank], 0)
        self.acting, self.stepping, self.updating, self.drawing = (Stopwatch() for _ in range(4))
        self.restoring_s = 0.0
        self.counters = ProductionFile(None, job.plan.num_actors)
        self.counters.begin(0, 0)
        self.transport = open_transport(self.builder, EngineOptions())
        hosts, wiring = job.plan.endpoints, self.transport.wiring
        self.other = open_endpoint(ENGINE, ENGINE, hosts, wiring, LEARNER + ACTOR - rank, 0, EngineOptions())
        wrap = Wrappers(self._environment, self._agent, self._embryo, self._source)
        self.roles = build_roles(self.builder, self.transport, self.counters, wrap)

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


FILL_S: Final = 2.0
"""What a replay holds by then has to do."""


def never_sleep(_seconds: float) -> None:
    """Stand in for sleep in a loop where a role always has something to do."""


class ActorSide:
    """An actor, and the sink that takes its fragments."""

    def __init__(self, config: JobConfig, directory: Path) -> None:
        self._steps = config.distribution.actor.send_size
        self.timed = TimedSide(config, directory, ACTOR)
        (actor,) = self.timed.roles
        assert isinstance(actor, Actor)
        self.actor = actor
        policy = _initial_policy(self.timed.builder.model())
        self.sink = Sink(self.timed.other, slot_name(POLICY, GROUP), policy)

    def run(self, step: Run) -> Acted:
        """Let the actor act."""
        self.sink.windows = windows = Windows(step, self._read)
        run_in_turns([self.actor, self.sink], windows, never_sleep)
        self.sink.windows = None
        return Acted(windows=tuple(self._acted(window) for window in windows.counted()))

    def record(self, fragments: int) -> list[Recorded]:
        """Record so many fragments, or what there is after a second, but one at least."""
        recorder = Recorder(self.sink, self.timed.stepping, fragments)
        run_in_turns([self.actor, self.sink], recorder, never_sleep)
        if recorder.fragments:
            return recorder.fragments[:fragments]
        assert self.actor.unfinished is not None
        return [filled_up(self.actor.unfinished, self.timed.builder.layout, self.timed.stepping.calls)]

    def close(self) -> None:
        """Close the environments and the endpoints."""
        self.actor.stop()
        self.timed.close()

    def _acted(self, window: Counts) -> ActedWindow:
        return ActedWindow(
            wall_s=window["wall_s"],
            fragments=round(window["steps"] / self._steps),
            samples=int(window["samples"]),
            busy_s=window["busy_s"],
            act_s=window["act_s"],
            step_s=window["step_s"],
        )

    def _read(self) -> Counts:
        return {
            "steps": self.timed.stepping.calls,
            "samples": self.timed.counters.read(0).produced,
            "busy_s": self.actor.busy_s,
            "act_s": self.timed.acting.seconds,
            "step_s": self.timed.stepping.seconds,
        }


class LearnerSide:
    """A learner with its buffer, and the feeder that keeps it supplied."""

    def __init__(self, config: JobConfig, directory: Path, recorded: Sequence[Recorded]) -> None:
        self.timed = TimedSide(config, directory, LEARNER)
        builder, (buffer, learner) = self.timed.builder, self.timed.roles
        assert isinstance(buffer, Buffer)
        assert isinstance(learner, Learner)
        self._buffer, self._learner = buffer, learner
        slot = slot_name(POLICY, GROUP)
        self._feeder = Feeder(self.timed.other, LEARNER, slot, builder.layout, builder.number, recorded)
        if isinstance(buffer.store, ReplayStore):
            self._fill(buffer.store)

    def run(self, step: Run) -> Learned:
        """Let buffer and learner work."""
        self._feeder.windows = windows = Windows(step, self._read)
        run_in_turns([self._feeder, self._buffer, self._learner], windows, never_sleep)
        self._feeder.windows = None
        return Learned(windows=tuple(_learned(window) for window in windows.counted()))

    @property
    def rho(self) -> float:
        """Uses of each sample."""
        return self._learner.report().rho

    def close(self) -> None:
        """Free what the roles and the endpoints hold."""
        self.timed.close()

    def _read(self) -> Counts:
        timed, report = self.timed, self._learner.report()
        return {
            "fragments": self._feeder.received,
            "updates": timed.updating.calls,
            "versions": report.version,
            "uses": report.consumed,
            "store_s": self._buffer.busy_s,
            "update_s": timed.updating.seconds,
            "draw_s": timed.drawing.seconds,
            "busy_s": self._learner.busy_s - timed.restoring_s,
        }

    def _fill(self, store: ReplayStore) -> None:
        """Fill the replay as far as time allows; what it holds then was its warm-up."""
        limiter = store.limiter
        run_in_turns([self._feeder, self._buffer], _Filling(store), never_sleep)
        self._learner.turn()  # It counts everything that came, which is nothing for a window.
        limiter.warmup = min(limiter.warmup, limiter.received)


class _Filling:
    """Attends a loop until a replay is full."""

    def __init__(self, store: ReplayStore) -> None:
        self._limiter = store.limiter
        self._until = time.perf_counter() + FILL_S

    def handle(self) -> bool:
        """Go on while there is room and time, but until there is a fragment."""
        in_time = time.perf_counter() < self._until or not self._limiter.received
        return in_time and self._limiter.received < self._limiter.warmup


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
    policy = PublishedPolicy(memoryview(bytearray(policy_layout(model.parameter_count).nbytes)))
    model.write_parameters(policy.parameters)
    return policy.memory


HANDFUL: Final = 4
"""Fragments that are recorded, unless a rollout has more."""
RECORDED_BYTES: Final = 64 << 20
"""Of all recorded fragments; one is recorded however large it is."""
FIRST: Final = 3
"""Averagings that do not count: connections are made, memory is touched."""


class ProbeServer:
    """Does what a probe is asked for, one step after another."""

    def __init__(self) -> None:
        self._sides: dict[str, ActorSide | LearnerSide] = {}
        self._recorded: dict[str, list[Recorded]] = {}
        self._cores = tuple(os.sched_getaffinity(0))

    def do(self, step: Step) -> Answer:
        """Do one step.

        Raises:
            UsageError: nothing of this key was prepared.
            Exception: whatever roles and libraries raise.
        """
        match step:
            case Prepare():
                return self._prepare(step)
            case Run():
                return self._run(step)
            case Average():
                pin(step.cores or self._cores)
                return average(step)

    def close(self) -> None:
        """Free what the sides hold."""
        while self._sides:
            _key, side = self._sides.popitem()
            side.close()

    def _prepare(self, step: Prepare) -> Prepared:
        began = time.perf_counter()
        for key in self._sides.keys() - set(step.keep):
            self._sides.pop(key).close()
            gc.unfreeze()
        # As in a worker, whose collector never sees what was there before its roles.
        gc.collect()
        gc.freeze()
        torch.set_num_threads(1)
        config, directory = load_config(step.config, step.overrides), Path(step.directory)
        if step.role == "actor":
            actor = self._sides[step.key] = ActorSide(config, directory)
            return _facts(actor.timed.builder, None, began)
        recorded = self._fragments(config, directory)
        if config.learns_from_replay:
            settings = replay_settings(config, recorded[0].nbytes)
            config = load_config(step.config, (*step.overrides, *settings))
        learner = self._sides[step.key] = LearnerSide(config, directory, recorded)
        return _facts(learner.timed.builder, learner.rho, began)

    def _run(self, step: Run) -> Answer:
        side = self._sides.get(step.key)
        if side is None:
            raise UsageError(f"nothing was prepared as {step.key!r}")
        pin(step.cores or self._cores)
        torch.set_num_threads(step.threads)
        return side.run(step)

    def _fragments(self, config: JobConfig, directory: Path) -> list[Recorded]:
        """Record fragments, or find those of a config that makes the same ones."""
        parts = (config.environment, config.agent, config.model)
        made_by = "\n".join(part.model_dump_json() for part in parts)
        key = f"{made_by}\n{config.distribution.actor.send_size}"
        if key not in self._recorded:
            side = ActorSide(config, directory)
            try:
                per_rollout = 1 if config.learns_from_replay else config.fragments_per_rollout
                most = max(1, RECORDED_BYTES // side.timed.builder.layout.nbytes)
                self._recorded[key] = side.record(min(max(HANDFUL, per_rollout), most))
            finally:
                side.close()
        return self._recorded[key]


def pin(cores: tuple[int, ...]) -> None:
    """Tie this process to cores, with those threads that libraries have started already."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It has ended since.
            pin_thread(cores, int(thread))


def average(step: Average) -> Averaged:
    """Take part in averaging over loopback, as learners that share a batch will average their gradients.

    Raises:
        RuntimeError: another process did not take part.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # It would look for an interface of the host's name.
    timeout = timedelta(seconds=step.timeout_s)
    store = distributed.FileStore(step.store, step.size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    distributed.init_process_group("gloo", store=store, rank=step.rank, world_size=step.size, timeout=timeout)
    seconds, values = [], torch.zeros(step.values)
    try:
        for _ in range(FIRST + step.rounds):
            began = time.perf_counter()
            distributed.all_reduce(values)
            values /= step.size
            seconds.append(time.perf_counter() - began)
    finally:
        distributed.destroy_process_group()
    return Averaged(seconds=tuple(seconds[FIRST:]))


def _facts(builder: Builder, rho: float | None, began: float) -> Prepared:
    model = builder.model()
    return Prepared(
        seconds=time.perf_counter() - began,
        fragment_bytes=builder.layout.nbytes,
        batch_bytes=builder.batches().nbytes if builder.config.learns_from_replay else 0,
        policy_bytes=policy_layout(model.parameter_count).nbytes,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        rho=rho,
    )

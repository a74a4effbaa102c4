"""The parts of one process of a job: its update rule, seeds and device, and the state that it continues."""

from __future__ import annotations

import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Embryo, Executor, Model, complete_results
from tianji_algos.device import device_of
from tianji_algos.normalization import FILTER, acting_executor
from tianji_cli.config.loader import load_record
from tianji_cli.config.schema import Init, JobConfig
from tianji_cli.errors import UsageError, describe
from tianji_cli.files.checkpoint import load_parameters, load_training
from tianji_cli.files.saved import LAST, Progress, checkpoints_of
from tianji_cli.plan.graph import INFERENCE
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import PlannedProcess
from tianji_cli.roles.actor.remote import Connection, RemoteExecutor
from tianji_cli.roles.inference import PassLayout
from tianji_cli.roles.learner.learner import Episodes
from tianji_cli.roles.records import record_layout
from tianji_cli.wire.records import RecordLayout, job_number
from tianji_cli.worker.initial import Initial, frozen_names
from tianji_cli.worker.parts import Parts, Shown, seed_streams
from tianji_envs.core import VectorEnvironment

VERSIONS_APART: Final = 1_000_000
"""Gap between the versions of a replaced learner's checkpoint and those of its successor."""


class Builder(Parts):
    """Builds the parts of one process of a job.

    Args:
        config: the job's parsed config.
        env_steps: env steps of the learner before this one, as in ``Begin``.
    """

    def __init__(
        self,
        job: Job,
        config: JobConfig,
        process: PlannedProcess,
        incarnation: int,
        env_steps: int = 0,
    ) -> None:
        super().__init__(config)
        self.job = job
        self.process = process
        self.incarnation = incarnation
        self._env_steps = env_steps

    @property
    def _spare_number(self) -> int:
        return super()._spare_number + self.process.rank

    @property
    def _threads(self) -> int:
        """Threads for stepping environments: all cores if no role trains in this process."""
        return super()._threads if self.process.group is None else self.process.threads

    def acting_environment(self, number: int) -> VectorEnvironment:
        """Return the environments of an actor of this process; called once for each actor."""
        if number == self.process.actors[0]:
            return self._of_first_actor
        return self.environment(self.config.environment.num_envs, actor=number)

    @cached_property
    def _of_first_actor(self) -> VectorEnvironment:
        return self.environment(self.config.environment.num_envs, actor=self.process.actors[0])

    @cached_property
    def _shown(self) -> Shown:
        """Spaces of one environment, the first actor's if there is one."""
        if self.process.actors:
            return self._look_at(self._of_first_actor)
        return super()._shown

    def embryo(self, model: Model) -> Embryo:
        """Build the update rule around a model."""
        section, process = self.config.training, self.process
        number = (process.group or 0) * self.config.distribution.learner.num + (process.number or 0)
        embryo: Embryo = algorithms.load("embryo", section.type)(
            self.spaces, model, section.settings, self.seed("embryo", number)
        )
        return complete_results(embryo, prioritised=self.config.distribution.buffer.has_priorities)

    def acting_agent(self, number: int, connection: Connection | None = None) -> Agent:
        """Build the agent of an actor, with its part of the group's exploration range.

        Each group learns from its own actors, so each group has the whole range.

        Args:
            connection: the way to its network where that is apart.
        """
        num_envs = self.config.environment.num_envs
        model = self.acting_model()
        if connection is not None:
            model.executor = lambda _: RemoteExecutor(connection, number)  # type: ignore[method-assign,assignment]
        agent = self.agent(model, num_envs, self.seed("policy", number))
        of_group = [actor for numbers in self.actors.values() for actor in numbers]
        agent.explore_as(of_group.index(number) * num_envs, len(of_group) * num_envs)
        return agent

    @cached_property
    def passes(self) -> PassLayout:
        """Layout of a pass of the network for an actor, where it is apart.

        Raises:
            UsageError: the network could not be apart; the message names its agent or model.
        """
        model, num_envs = self.model(), self.config.environment.num_envs
        built: list[Executor] = []
        make = model.executor

        def noting(batch_size: int) -> Executor:
            built.append(make(batch_size))
            return built[-1]

        model.executor = noting  # type: ignore[method-assign]
        self.agent(model, num_envs, seed=0)
        if not built:
            raise UsageError(
                f"distribution.inference: the agent {self.config.agent.type!r} does not act by "
                "Model.executor(), so no other process can run its network; leave the table out"
            )
        kind = type(built[0])
        if kind.forget is not Executor.forget and kind.resume is Executor.resume:
            raise UsageError(
                f"distribution.inference: the model {self.config.model.type!r} keeps its memory where it "
                "acts (its executor has no resume()); leave the table out, or take a recurrent_actor_critic, "
                "a recurrent_q or a network without memory"
            )
        space = self.spaces.observation
        observation = np.zeros((num_envs, *(space.shape or ())), space.dtype)
        outputs = acting_executor(model, num_envs)(observation)
        statistics = [field for field in self.layout.fields if field.name == FILTER]
        return PassLayout.of(observation, outputs, self.model_fields, statistics)

    def trained_embryo(self) -> Embryo:
        """Build the update rule on this process's device; it continues the last session."""
        return self.begun_embryo(self._model_on(self.device, "distribution.device"))[0]

    def begun_embryo(self, model: Model) -> tuple[Embryo, dict[str, Any] | None]:
        """Build the update rule: it continues a session, begins with another run's tensors, or begins anew.

        Returns:
            The update rule, and a report of the tensors taken from another run; None without another run.
        """
        initial = None
        if self.job.init is not None and self.saved is None:
            initial = Initial.fill(self.job.init, model, self.config.experiment.init or Init())
        embryo = self.embryo(model)
        if initial is not None:
            initial.restore(embryo)
        if self.saved is not None:
            self.saved.restore(embryo)
            embryo.schedule(self.job.env_steps)
        init = self.config.experiment.init
        if init is not None and init.freeze:
            embryo.freeze(frozen_names(model, init.freeze))
        return embryo, None if initial is None else initial.report

    def acting_model(self) -> Model:
        """Build the network on the device of acting, which may differ from that of a learner beside it."""
        key = f"distribution.{'inference' if INFERENCE in self.process.roles else 'actor'}.device"
        return self._model_on(self.config.distribution.actor.device if self._learns else self.device, key)

    @cached_property
    def device(self) -> str:
        """Device of this process; numbers beyond the host's GPUs wrap around."""
        distribution = self.config.distribution
        wanted = distribution.device if self._learns else distribution.actor.device
        if INFERENCE in self.process.roles and distribution.inference is not None:
            wanted = distribution.inference.device
        kind, _, number = self.process.device.partition(":")
        numbered_by_plan = number and wanted == kind == "cuda"
        gpus = torch.cuda.device_count() if numbered_by_plan else 0
        return f"{kind}:{int(number) % gpus}" if gpus else self.process.device

    @property
    def _learns(self) -> bool:
        return not {"learner", "follower"}.isdisjoint(self.process.roles)

    def _model_on(self, device: str, key: str) -> Model:
        """Build the network on a device, which the config's ``key`` asks for.

        Raises:
            UsageError: the host has no such device.
        """
        model = self.model()
        if device == "cpu":
            return model
        try:
            model.to(device)
            if device.startswith("cuda"):
                torch.cuda.set_device(device_of(model))  # Pinned memory and streams belong to it.
        # Torch raises one of these if a device is missing, or double precision for statistics.
        except (RuntimeError, AssertionError, TypeError) as cause:
            raise UsageError(
                f"{key}: {device!r} cannot be used on {socket.gethostname()} ({describe(cause)}); "
                '"cpu" would be right, or a GPU that torch finds'
            ) from cause
        return model

    def seed(self, purpose: str, number: int = 0) -> int:
        """Derive an independent 32-bit seed for this session and incarnation from the experiment's seed."""
        session = self.progress.sessions
        return self._derived_seed(purpose, number, incarnation=self.incarnation, session=session)

    @property
    def group(self) -> int:
        """Group of this process; 0 for a process without a group."""
        return self.process.group or 0

    def carrying(self, role: str) -> tuple[PlannedProcess, ...]:
        """Processes of the group that carry a role, by rank."""
        return self.job.plan.carrying(role, self.group)

    @cached_property
    def actors(self) -> dict[int, Sequence[int]]:
        """Numbers of the group's actors, by the rank of the process that carries them."""
        return {process.rank: process.actors for process in self.carrying("actor")}

    @cached_property
    def number(self) -> int:
        """The job's number, which every message carries."""
        return job_number(self.job.id)

    @cached_property
    def records(self) -> Mapping[str, RecordLayout]:
        """Layouts of the records of ``[graph]``, by class.

        Raises:
            UsageError: the ``fields`` of one raises, or returns no fields of fixed size.
        """
        layouts = {}
        for name in self.config.graph.records:
            try:
                layouts[name] = record_layout(load_record(name).fields(self.spaces, self.config))
            except (Exception, SystemExit) as cause:
                what = f"the fields of record {name!r} cannot be laid out: {describe(cause)}"
                raise UsageError(what) from cause
        return layouts

    @property
    def replaces(self) -> bool:
        """Whether the learner of this process replaces a population's killed one."""
        return self.incarnation > 0 and "learner" in self.process.roles

    @property
    def begins_best(self) -> bool:
        """Whether the learner of a resumed run begins a new best policy, since policies are judged anew."""
        return self.job.own_best and not self.replaces

    @cached_property
    def saved(self) -> Saved | None:
        """Checkpoint of the last session, or of the learner before; None in the first session."""
        if not (self.job.resumed or self.replaces):
            return None
        own = self.replaces or self._at_start.env_steps > 0 or self.group == 0
        return Saved.find(self.job.checkpoints, self.group, own=own)

    @cached_property
    def progress(self) -> Progress:
        """Counters that this session, or this replaced learner, continues."""
        if not self.replaces:
            return self._at_start
        assert self.saved is not None
        progress = Progress.checked(self.saved.document["progress"])
        # Actors wait for versions newer than any that the learner before has published without saving.
        version = progress.version + VERSIONS_APART * self.incarnation
        # The killed learner may have been further than its last checkpoint: these env steps count.
        env_steps = max(progress.env_steps, self._env_steps)
        return replace(progress, env_steps=env_steps, version=version, sessions=self._at_start.sessions)

    @property
    def _at_start(self) -> Progress:
        """Counters of the group at the start of the session."""
        return replace(self.job.progress[self.group]) if self.job.resumed else Progress()

    @property
    def job_env_steps(self) -> int:
        """Env steps of all groups before this session, or approximately so after a learner was replaced."""
        since = self.progress.env_steps - self._at_start.env_steps
        return self.job.env_steps + since * self.config.distribution.groups


def seed_process(job: Job, process: PlannedProcess, incarnation: int) -> None:
    """Seed the global random streams of a process before user code runs in it.

    The roles of a process share its streams; a process has several actors only if all roles of a group share
    it.
    """
    seed = tomllib.loads(job.config)["experiment"]["seed"]
    session = job.progress[process.group or 0].sessions if job.resumed else 0
    numbers = process.group or 0, process.number or 0, *process.actors[:1]
    seed_streams(seed, *"-".join(process.roles).encode(), *numbers, incarnation, session)


@dataclass(frozen=True)
class Saved:
    """A checkpoint that a group continues.

    Attributes:
        place: directory of the checkpoint.
        own: the checkpoint is the group's own. A group that the last session did not have begins with the
            first group's policy.
        tensors: tensors of the update rule.
        document: the rest of the state.
    """

    place: Path
    own: bool
    tensors: Mapping[str, torch.Tensor]
    document: Mapping[str, Any]

    @classmethod
    def find(cls, checkpoints: Path, group: int, *, own: bool) -> Saved:
        """Load the last checkpoint of a group (``own``), or of the first group.

        Raises:
            CheckpointError: the checkpoint is damaged, or of another schema.
        """
        place = checkpoints_of(checkpoints, group if own else 0) / LAST
        return cls(place, own, *load_training(place))

    def restore(self, embryo: Embryo) -> None:
        """Load the state into an update rule.

        Raises:
            CheckpointError: the parameters are damaged, or of another model.
        """
        embryo.model.read_parameters(load_parameters(self.place, embryo.model))
        embryo.load_state(self.tensors, self.document["embryo"])

    @property
    def takeovers(self) -> Sequence[Mapping[str, Any]]:
        """Takeovers of a population member so far; empty if the checkpoint is not the group's own."""
        found: Sequence[Mapping[str, Any]] = self.document.get("member", {}).get("takeovers", ())
        return found if self.own else ()

    def restore_episodes(self, episodes: Episodes) -> None:
        """Continue the returns and thresholds of the group's own checkpoint."""
        if self.own:
            episodes.load_state(self.document["episodes"])

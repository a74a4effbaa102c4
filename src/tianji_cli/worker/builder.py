"""The parts that roles are built from: environments, model, agent, update rule, layouts, seeds, devices."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import gymnasium
import numpy as np
import torch

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Embryo, Model, Spaces, build_model, complete_results
from tianji_algos.device import device_of
from tianji_algos.errors import NotExportableError, UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.models.settings import ImageLayout
from tianji_algos.normalization import Normalization, build_normalizer
from tianji_cli.config.checks import wrong_agent
from tianji_cli.config.environment import build_environment
from tianji_cli.config.loader import dump_config
from tianji_cli.config.schema import Environment, Init, JobConfig
from tianji_cli.errors import UsageError, describe
from tianji_cli.files.checkpoint import load_parameters, load_training
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.files.saved import LAST, Progress, checkpoints_of
from tianji_cli.limits import usable_cores
from tianji_cli.plan.plan import PlannedProcess, make_plan
from tianji_cli.plan.spec import JobSpec
from tianji_cli.roles.buffer.replay.replay import PRIORITY, kept_first
from tianji_cli.roles.learner.learner import Episodes
from tianji_cli.wire.batches import BatchLayout
from tianji_cli.wire.fragment import FragmentLayout, common_fields
from tianji_cli.wire.records import job_number
from tianji_cli.worker.initial import Initial, frozen_names
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import UnsupportedSpaceError
from tianji_envs.options import ACTOR, COPIES
from tianji_envs.team import TeamTranslator

VERSIONS_APART: Final = 1_000_000
"""Gap between the versions of a replaced learner's checkpoint and those of its successor."""


@dataclass(frozen=True)
class _Shown:
    """Space of one observation, spaces as a policy sees them, and whether episodes can be won."""

    frame: gymnasium.Space[Any]
    spaces: Spaces
    winnable: bool
    translator: TeamTranslator | None


class Builder:
    """Builds the parts of one process of a job.

    Args:
        config: the job's parsed config.
        env_steps: env steps of the learner before this one, as in ``ProcessSpec``.
    """

    def __init__(
        self,
        job: JobSpec,
        config: JobConfig,
        process: PlannedProcess,
        incarnation: int,
        env_steps: int = 0,
    ) -> None:
        self.job = job
        self.config = config
        self.process = process
        self.incarnation = incarnation
        self._env_steps = env_steps

    @classmethod
    def of_run(cls, run: RunDirectory, config: JobConfig) -> Builder:
        """Return a builder for a run with this ``config``, to play with its policies.

        It builds the parts of the root's process, which computes on a CPU: a host without a GPU may evaluate
        a run that used GPUs.
        """
        plan = make_plan(config)
        job = JobSpec("", dump_config(config), plan, run.path, run.path)
        return cls(job, config, plan.processes[0], 0)

    def environment(
        self, num_envs: int, render: bool = False, *, evaluation: bool = False, actor: int | None = None
    ) -> VectorEnvironment:
        """Make ``num_envs`` of the config's environments; for an evaluation, whole and unchanged games.

        Args:
            actor: number of the actor; None gives a number behind those of all actors.
        """
        section = self.config.environment
        actor = self.job.plan.num_actors + self.process.rank if actor is None else actor
        os.environ |= {ACTOR: str(actor), COPIES: str(section.num_envs)}
        made = build_environment(section, num_envs, render, evaluation=evaluation, threads=self._env_threads)
        _check_metrics(section, made)
        return made

    def acting_environment(self, number: int) -> VectorEnvironment:
        """Return the environments of an actor of this process; called once for each actor."""
        if number == self.process.actors[0]:
            return self._of_first_actor
        return self.environment(self.config.environment.num_envs, actor=number)

    @cached_property
    def _of_first_actor(self) -> VectorEnvironment:
        return self.environment(self.config.environment.num_envs, actor=self.process.actors[0])

    @cached_property
    def spaces(self) -> Spaces:
        """Spaces of one environment, as a policy sees them."""
        return self._shown.spaces

    @property
    def translator(self) -> TeamTranslator | None:
        """Translator to a team's own observations and actions; None if the environment only has records."""
        return self._shown.translator

    @cached_property
    def layout(self) -> FragmentLayout:
        """Layout of a fragment, the same in every process, since all derive it from the same inputs."""
        shown = self._shown
        metrics = len(self.config.environment.metrics)
        common = common_fields(shown.frame, shown.spaces.stack, winnable=shown.winnable, metrics=metrics)
        fields = common + self.agent_fields + self.model_fields
        if (normalization := self._normalization) is not None and not self.config.learns_from_replay:
            fields += normalization.fields(self.spaces)
        return FragmentLayout(
            self.config.distribution.actor.send_size, self.config.environment.num_envs, kept_first(fields)
        )

    @cached_property
    def agent_fields(self) -> tuple[FieldSpec, ...]:
        """Fields that the agent adds to a fragment."""
        section = self.config.agent
        fields: tuple[FieldSpec, ...] = algorithms.load("agent", section.type).fields(
            self.spaces, section.settings
        )
        return fields

    @cached_property
    def model_fields(self) -> tuple[FieldSpec, ...]:
        """Fields that the network adds to a fragment: its recurrent state.

        Raises:
            UnsuitableModelError: the network is recurrent, and the update rule learns from single steps; or
                it is not, and the rule learns from unrolls.
            UsageError: a policy sees stacks, and the update rule learns from unrolls.
        """
        section = self.config.model
        fields: tuple[FieldSpec, ...] = algorithms.load("model", section.type).recorded(
            self.spaces, section.settings
        )
        if fields and self.config.learns_from_replay and self.config.unroll is None:
            raise UnsuitableModelError(
                f"the model {section.type!r} remembers earlier steps, but {self.config.training.type!r} "
                "learns from a replay, of single ones; a model without memory would be right, "
                "or agent.type = 'r2d2'"
            )
        if self.config.unroll is not None:
            self._check_unrolls(fields)
        return fields

    def _check_unrolls(self, recorded: tuple[FieldSpec, ...]) -> None:
        rule, stack = self.config.training.type, self.spaces.stack
        if stack > 1:
            raise UsageError(
                f"environment.options.stack: policies see stacks of {stack} observations, and {rule!r} "
                "learns from single ones, since its network remembers; stack = 1 would be right"
            )
        if not any(field.name == "state" and field.once for field in recorded):
            raise UnsuitableModelError(
                f"the model {self.config.model.type!r} does not say what it remembers: its recorded() "
                "declares no field 'state' with once=True; the model 'recurrent_q' does"
            )

    def batches(self, learners: int = 1) -> BatchLayout:
        """Return the layout of a replay batch, or of the part that one of so many learners gets."""
        fields = (*self.agent_fields, *self.model_fields)
        read = [field.name for field in fields if field.name != PRIORITY]
        size = self.config.replay_settings.batch_size // learners
        return BatchLayout.of(self.layout, size, read, self.config.sequence_steps or self.config.unroll)

    def model(self) -> Model:
        """Build the network; initial parameters follow from the seed alone."""
        section = self.config.model
        model_type = algorithms.load("model", section.type)
        model = build_model(model_type, self.spaces, section.settings, self.config.experiment.seed)
        build_normalizer(model, self.spaces, self._normalization)
        return model

    @cached_property
    def _normalization(self) -> Normalization | None:
        """Normalisation that the config asks for; None without any.

        Raises:
            UsageError: the update rule would never update the statistics.
        """
        section = self.config.training
        keeps_statistics = algorithms.load("embryo", section.type).normalizes
        distribution = self.config.distribution
        on_mps = "mps" in (distribution.device, distribution.actor.device)  # without double precision
        asked = Normalization.of(section.settings, self.spaces, able=keeps_statistics and not on_mps)
        if asked is not None and not keeps_statistics:
            names = ("observations", "rewards", "values")
            key = "normalize_" + next(name for name in names if getattr(asked, name))
            raise UsageError(
                f"training.{key}: {section.type!r} keeps no statistics to normalise with; false would be "
                "right, or an update rule that derives from PPOEmbryo or IMPALAEmbryo or, doing itself what "
                "tianji_algos.normalization asks of a learner, says `normalizes = True`"
            )
        return asked

    @property
    def subtracts(self) -> bool:
        """Whether means are subtracted from observations before the conversion to float32."""
        asked = self._normalization
        return asked is not None and asked.observations and asked.precise

    @property
    def samples(self) -> bool:
        """Whether the agent explores by samples of its policy, and not by added noise or random actions."""
        section = self.config.agent
        try:
            rule = algorithms.load("agent", section.type).rule(self.spaces, section.settings)
        except NotExportableError:
            return False
        return rule.noise is not None

    def agent(self, model: Model, num_envs: int, seed: int) -> Agent:
        """Build an agent that acts in ``num_envs`` environments."""
        section = self.config.agent
        agent: Agent = algorithms.load("agent", section.type)(
            self.spaces, model, section.settings, num_envs, seed
        )
        return agent

    def embryo(self, model: Model) -> Embryo:
        """Build the update rule around a model."""
        section, process = self.config.training, self.process
        number = (process.group or 0) * self.config.distribution.learner.num + process.learner
        embryo: Embryo = algorithms.load("embryo", section.type)(
            self.spaces, model, section.settings, self.seed("embryo", number)
        )
        return complete_results(embryo, prioritised=self.config.distribution.buffer.has_priorities)

    def acting_agent(self, number: int) -> Agent:
        """Build the agent of an actor, with its part of the group's exploration range.

        Each group learns from its own actors, so each group has the whole range.
        """
        num_envs = self.config.environment.num_envs
        agent = self.agent(self.acting_model(), num_envs, self.seed("policy", number))
        of_group = [actor for numbers in self.actors.values() for actor in numbers]
        agent.explore_as(of_group.index(number) * num_envs, len(of_group) * num_envs)
        return agent

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
        key = "distribution.actor.device"
        return self._model_on(self.config.distribution.actor.device if self._learns else self.device, key)

    @cached_property
    def device(self) -> str:
        """Device of this process; numbers beyond the host's GPUs wrap around."""
        distribution = self.config.distribution
        wanted = distribution.device if self._learns else distribution.actor.device
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

    @property
    def _env_threads(self) -> int:
        """Threads for stepping environments: all cores if no role trains in this process."""
        alone = self.process.group is None
        return len(usable_cores()) if alone else self.process.threads

    @cached_property
    def _shown(self) -> _Shown:
        """Spaces of one environment, the first actor's if there is one; raises as ``_look_at`` does."""
        if self.process.actors:
            return self._look_at(self._of_first_actor)
        with contextlib.closing(self.environment(1)) as environment:
            return self._look_at(environment)

    def look_at(self, environment: VectorEnvironment) -> None:
        """Take the spaces from an existing environment; raises as ``_look_at`` does."""
        self._shown = self._look_at(environment)

    def _look_at(self, environment: VectorEnvironment) -> _Shown:
        """Read the spaces of an environment.

        Raises:
            UsageError: the agent, or a stop rule, does not fit this environment.
        """
        config = self.config
        called = config.environment.id or config.environment.type
        check_agent(config.agent.type, called, environment.agents)
        winnable = environment.won is not None
        if config.experiment.stop.win_rate is not None and not winnable:
            raise UsageError(
                f"experiment.stop.win_rate: {called} does not say whether an episode was won; "
                "mean_return, env_steps or wall_s would be right"
            )
        spaces = spaces_of(environment, config.environment.image_layout)
        return _Shown(environment.observation_space, spaces, winnable, environment.translator)

    def seed(self, purpose: str, number: int = 0) -> int:
        """Derive an independent 32-bit seed for this session and incarnation from the experiment's seed."""
        session = self.progress.sessions
        words = [self.config.experiment.seed, *purpose.encode(), number, self.incarnation, session]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

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


def seed_process(job: JobSpec, process: PlannedProcess, incarnation: int) -> None:
    """Seed the global random streams of a process before user code runs in it.

    The roles of a process share its streams; a process has several actors only if all roles of a group share
    it.
    """
    seed = tomllib.loads(job.config)["experiment"]["seed"]
    session = job.progress[process.group or 0].sessions if job.resumed else 0
    numbers = process.group or 0, process.learner, *process.actors[:1]
    seed_streams(seed, *"-".join(process.roles).encode(), *numbers, incarnation, session)


def seed_streams(*words: int) -> None:
    """Seed the default streams of ``random``, numpy and torch (on every device)."""
    of_python, of_numpy, of_torch = np.random.SeedSequence(words).generate_state(3).tolist()
    random.seed(of_python)
    np.random.seed(of_numpy)
    torch.manual_seed(of_torch)


def check_agent(name: str, environment: str, team: Sequence[str]) -> None:
    """Reject an agent for teams in an environment without one, or a single agent in one with a team.

    Raises:
        UsageError: names the built-in agents that would be right.
    """
    if algorithms.load("agent", name).plays_in_team != bool(team):
        what, right = wrong_agent(name, environment, team=bool(team))
        raise UsageError(f"agent.type: {what}; {right}")


def _check_metrics(section: Environment, made: VectorEnvironment) -> None:
    """Reject environments, perhaps of a user's own factory, without the configured metrics."""
    found = None if made.metrics is None else made.metrics.shape
    wanted = (made.num_envs, len(section.metrics)) if section.metrics else None
    if found != wanted:
        made.close()
        raise UsageError(
            f"environment.metrics: {section.type} made environments with metrics of shape {found}, and for "
            f"{len(section.metrics)} in each of {made.num_envs} environments {wanted} is right"
        )


def spaces_of(environment: VectorEnvironment, layout: ImageLayout = "auto") -> Spaces:
    """Return the spaces of one environment as a policy sees them, with stacks of frames.

    Raises:
        UnsupportedSpaceError: the config asks for stacks of observations that are no arrays of numbers.
    """
    frame, stack = environment.observation_space, environment.stack
    if stack == 1:
        return Spaces(frame, environment.action_space, image_layout=layout)
    if not isinstance(frame, gymnasium.spaces.Box):
        raise UnsupportedSpaceError(f"{frame} cannot be stacked; a Box can")
    # Frames from before the episode are zeros.
    low, high = np.minimum(frame.low, 0), np.maximum(frame.high, 0)
    stacked = gymnasium.spaces.Box(np.stack([low] * stack), np.stack([high] * stack), dtype=frame.dtype.type)
    return Spaces(stacked, environment.action_space, stack, layout)


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

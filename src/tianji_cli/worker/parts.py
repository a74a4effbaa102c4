"""Parts that follow from a config alone, without a plan: environments, spaces, layouts, model, agent.

A config and a checkpoint make a policy to act with: `tianji.load`, `tianji eval` and `tianji export` do so.
``builder.py`` adds the parts of a process in a job: its seeds, its device, the state that it continues.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Model, Spaces, build_model
from tianji_algos.errors import NotExportableError, UnsuitableModelError
from tianji_algos.fields import FieldSpec
from tianji_algos.models.settings import ImageLayout
from tianji_algos.normalization import Normalization, build_normalizer
from tianji_cli.config.checks import wrong_agent
from tianji_cli.config.environment import build_environment
from tianji_cli.config.schema import Environment, JobConfig
from tianji_cli.errors import UsageError, describe
from tianji_cli.files.checkpoint import load_parameters
from tianji_cli.files.saved import saved_progress
from tianji_cli.limits import usable_cores
from tianji_cli.roles.buffer.replay.replay import PRIORITY, kept_first
from tianji_cli.roles.user_role import find_user_role
from tianji_cli.wire.batches import BatchLayout
from tianji_cli.wire.fragment import FragmentLayout, common_fields
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import UnsupportedSpaceError
from tianji_envs.options import ACTOR, COPIES
from tianji_envs.team import TeamTranslator


@dataclass(frozen=True)
class Shown:
    """Space of one observation, spaces as a policy sees them, and whether episodes can be won."""

    frame: gymnasium.Space[Any]
    spaces: Spaces
    winnable: bool
    translator: TeamTranslator | None


class Parts:
    """Builds the parts of one config, on the CPU and for its first session."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config

    def environment(
        self, num_envs: int, render: bool = False, *, evaluation: bool = False, actor: int | None = None
    ) -> VectorEnvironment:
        """Make ``num_envs`` of the config's environments; for an evaluation, whole and unchanged games.

        Args:
            actor: number of the actor; None gives a number behind those of all actors.
        """
        section = self.config.environment
        actor = self._spare_number if actor is None else actor
        os.environ |= {ACTOR: str(actor), COPIES: str(section.num_envs)}
        made = build_environment(section, num_envs, render, evaluation=evaluation, threads=self._threads)
        _check_metrics(section, made)
        return made

    @property
    def _spare_number(self) -> int:
        """Number of environments that no actor has, behind the numbers of all actors."""
        distribution = self.config.distribution
        return distribution.groups * distribution.actor.num.max

    @property
    def _threads(self) -> int:
        """Threads for stepping environments."""
        return len(usable_cores())

    @cached_property
    def spaces(self) -> Spaces:
        """Spaces of one environment, as a policy sees them."""
        return self._shown.spaces

    @property
    def translator(self) -> TeamTranslator | None:
        """Translator to a team's own observations and actions; None if the environment only has records."""
        return self._shown.translator

    @cached_property
    def _shown(self) -> Shown:
        """Spaces of one environment; raises as ``_look_at`` does."""
        with contextlib.closing(self.environment(1)) as environment:
            return self._look_at(environment)

    def look_at(self, environment: VectorEnvironment) -> None:
        """Take the spaces from an existing environment; raises as ``_look_at`` does."""
        self._shown = self._look_at(environment)

    def _look_at(self, environment: VectorEnvironment) -> Shown:
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
        return Shown(environment.observation_space, spaces, winnable, environment.translator)

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
    def layouts(self) -> Mapping[str, FragmentLayout]:
        """Layout of a fragment as it comes to each role of its path: those before it may have added fields.

        Raises:
            UsageError: a role's fields raise, or repeat a name.
        """
        _, *roles, buffer = self.config.graph.path_of_fragments
        layouts, layout = {}, self.layout
        for name in roles:
            layouts[name], section = layout, self.config.roles[name]
            try:
                added = tuple(find_user_role(section.type).fields(self.spaces, section.settings))
                if added:
                    layout = replace(layout, fields=kept_first((*layout.fields, *added)))
            except (Exception, SystemExit) as cause:
                what = f"the fields that role {name!r} adds cannot be laid out: {describe(cause)}"
                raise UsageError(what) from cause
        return layouts | {buffer: layout}

    @property
    def stored_layout(self) -> FragmentLayout:
        """Layout of a fragment where it comes to the buffer, and is learnt from."""
        return self.layouts["buffer"]

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
        made = {field.name for field in self.layout.fields}
        added = (field for field in self.stored_layout.fields if field.name not in made)
        fields = (*self.agent_fields, *self.model_fields, *added)
        read = [field.name for field in fields if field.name != PRIORITY]
        size = self.config.replay_settings.batch_size // learners
        return BatchLayout.of(
            self.stored_layout, size, read, self.config.sequence_steps or self.config.unroll
        )

    def model(self) -> Model:
        """Build the network; initial parameters follow from the seed alone."""
        section = self.config.model
        model_type = algorithms.load("model", section.type)
        model = build_model(model_type, self.spaces, section.settings, self.config.experiment.seed)
        build_normalizer(model, self.spaces, self._normalization)
        return model

    def acting_model(self) -> Model:
        """Build the network on the CPU: a host without a GPU may act with a run's policy that used GPUs."""
        return self.model()

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

    def seed(self, purpose: str, number: int = 0) -> int:
        """Derive an independent 32-bit seed from the experiment's seed."""
        return self._derived_seed(purpose, number, incarnation=0, session=0)

    def _derived_seed(self, purpose: str, number: int, *, incarnation: int, session: int) -> int:
        words = [self.config.experiment.seed, *purpose.encode(), number, incarnation, session]
        return int(np.random.SeedSequence(words).generate_state(1)[0])


class SavedPolicy:
    """A policy of a config and a checkpoint, to act with.

    Args:
        parts: parts of the run's config.
        place: the checkpoint, a directory among the run's checkpoints.

    Attributes:
        model: the network, with the checkpoint's parameters.

    Raises:
        CheckpointError: the parameters are damaged, or of another model.
    """

    def __init__(self, parts: Parts, place: Path) -> None:
        self.parts = parts
        self.model = parts.acting_model()
        self._place = place
        self._parameters = load_parameters(place, self.model)
        self.model.read_parameters(self._parameters)

    @cached_property
    def env_steps(self) -> int:
        """Env steps at the end of training, from which exploration follows."""
        progress = saved_progress(self._place.parent, self.parts.config.distribution.groups)
        return sum(group.env_steps for group in progress)

    def agent(self, num_envs: int, seed: int) -> Agent:
        """Build an agent that acts by this policy in ``num_envs`` environments."""
        agent = self.parts.agent(self.model, num_envs, seed)
        agent.adopt(self._parameters)
        return agent


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


def seed_streams(*words: int) -> None:
    """Seed the default streams of ``random``, numpy and torch (on every device)."""
    of_python, of_numpy, of_torch = np.random.SeedSequence(words).generate_state(3).tolist()
    random.seed(of_python)
    np.random.seed(of_numpy)
    torch.manual_seed(of_torch)

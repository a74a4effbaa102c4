"""Builds the roles of one process from the config and the plan: the one place that knows every part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from tianji_algos import registry as algorithms
from tianji_algos.core import Agent, Embryo, Model, Spaces, build_model
from tianji_algos.fields import FieldSpec
from tianji_cli.cluster.plan import Plan, PlannedProcess
from tianji_cli.cluster.supply import FRAGMENTS, GroupProcesses, Supply, Terms, supply_of
from tianji_cli.config.schema import JobConfig
from tianji_cli.data import published
from tianji_cli.data.checkpoint import CheckpointWriter, load_parameters, load_training
from tianji_cli.data.episodes import Episodes
from tianji_cli.data.fragment import FragmentLayout, common_fields, job_number
from tianji_cli.data.production import ProductionFile, ProductionPage
from tianji_cli.data.progress import Progress, StopRule
from tianji_cli.data.replay import kept_first
from tianji_cli.roles.actor import Actor, Outbox
from tianji_cli.roles.evaluator import MAX_PARALLEL, Evaluator
from tianji_cli.roles.feed import Feed
from tianji_cli.roles.learner import Learner, LearnerDuties
from tianji_cli.roles.role import Role
from tianji_envs import registry as environments
from tianji_envs.core import VectorEnvironment
from tianji_transports.composite import edge_capabilities, open_endpoint
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.wiring import Slot, Wiring


@dataclass(frozen=True)
class Job:
    """What every process of a job knows.

    Attributes:
        id: unique on the host; names shared memory and marks every fragment.
        config: the resolved config.
        plan: who runs where.
        directory: the run directory.
        resumed: training goes on from ``checkpoints/last``.
    """

    id: str
    config: JobConfig
    plan: Plan
    directory: Path
    resumed: bool

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.directory / "checkpoints"


class Assembly:
    """Builds what one process of a job runs.

    Args:
        job: the job.
        process: the process, as planned.
        incarnation: how often it was restarted.
    """

    def __init__(self, job: Job, process: PlannedProcess, incarnation: int) -> None:
        self._job = job
        self._config = job.config
        self._process = process
        self._incarnation = incarnation

    def environment(self, num_envs: int, render: bool = False) -> VectorEnvironment:
        """Make ``num_envs`` of the config's environments."""
        section = self._config.environment
        return environments.find(section.type).make(
            section.id or "", num_envs, section.max_episode_steps, section.options, render
        )

    @cached_property
    def spaces(self) -> Spaces:
        """Spaces of one environment."""
        environment = self.environment(1)
        try:
            return Spaces(environment.observation_space, environment.action_space)
        finally:
            environment.close()

    @cached_property
    def layout(self) -> FragmentLayout:
        """How a fragment is divided: the same in every process, since all derive it from the same things."""
        fields = kept_first(common_fields(self.spaces.observation) + self._agent_fields)
        return FragmentLayout(
            self._config.distribution.actor.send_size, self._config.environment.num_envs, fields
        )

    @cached_property
    def _agent_fields(self) -> tuple[FieldSpec, ...]:
        section = self._config.agent
        fields: tuple[FieldSpec, ...] = algorithms.load("agent", section.type).fields(
            self.spaces, section.settings
        )
        return fields

    def model(self) -> Model:
        """Build the network; initial parameters follow from the seed alone."""
        section = self._config.model
        model_type = algorithms.load("model", section.type)
        return build_model(model_type, self.spaces, section.settings, self._config.experiment.seed)

    def agent(self, model: Model, num_envs: int, seed: int) -> Agent:
        """Build an agent that acts in ``num_envs`` environments."""
        section = self._config.agent
        agent: Agent = algorithms.load("agent", section.type)(
            self.spaces, model, section.settings, num_envs, seed
        )
        return agent

    def embryo(self, model: Model) -> Embryo:
        """Build the update rule around a model."""
        section = self._config.training
        embryo: Embryo = algorithms.load("embryo", section.type)(
            self.spaces, model, section.settings, self.seed("embryo")
        )
        return embryo

    def feed(self, supply: Supply, transport: Transport, embryo: Embryo) -> Feed:
        """Build what the learner takes its batches from, after a buffer beside it."""
        return supply.feed(transport, embryo)

    def seed(self, purpose: str, number: int = 0) -> int:
        """Derive an independent 32-bit seed, of this session and incarnation, from the experiment's seed."""
        session = self._progress.sessions
        words = [self._config.experiment.seed, *purpose.encode(), number, self._incarnation, session]
        return int(np.random.SeedSequence(words).generate_state(1)[0])

    def roles(self, transport: Transport, production: ProductionFile) -> list[Role]:
        """Build the roles of this process, in the order they take turns and stop.

        Args:
            transport: the process's endpoint.
            production: has a page for each of its actors.
        """
        process, config = self._process, self._config
        supply = self.supply(process.group)
        built: list[Role] = []
        number_of_actor = iter(process.actors)
        for name in process.roles:
            if name == "actor":
                number = next(number_of_actor)
                built.append(self._actor(transport, number, ProductionPage(production, number), supply))
            elif name == "buffer":
                built.append(supply.buffer(transport))
            elif name == "learner":
                built.append(self._learner(transport, supply))
        assert built, f"rank {process.rank} of {config.experiment.name} carries no role of a group"
        return built

    def evaluator(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        checkpoint: str = "best",
        on_step: Callable[[VectorEnvironment], None] | None = None,
    ) -> Evaluator:
        """Build what plays greedy episodes with a checkpoint of the run.

        Args:
            episodes: how many; the config's number by default.
            seed: of the environments; derived from the config's by default.
            checkpoint: name of a directory in ``checkpoints/``.
            on_step: called after each step; the environments can be rendered then.
        """
        number = self._config.experiment.eval_episodes if episodes is None else episodes
        num_envs = 1 if on_step is not None else min(number, MAX_PARALLEL)
        model = self.model()
        parameters = load_parameters(self._job.checkpoints / checkpoint, model)
        agent = self.agent(model, num_envs, 0)
        agent.adopt(parameters)
        environment = self.environment(num_envs, render=on_step is not None)
        return Evaluator(
            agent, environment, number, self.seed("evaluation") if seed is None else seed, on_step
        )

    def transport(self, options: EngineOptions) -> Transport:
        """Open this process's endpoint.

        Args:
            options: how the engine may reach other hosts.
        """
        plan, rank = self._job.plan, self._process.rank
        hosts = {process.rank: process.host for process in plan.trainers}
        wiring = self.wiring(edge_capabilities(plan.local, plan.remote, hosts))
        return open_endpoint(plan.local, plan.remote, hosts, wiring, rank, self._incarnation, options)

    def wiring(self, capabilities: Capabilities) -> Wiring:
        """Say who sends what to whom, in all groups."""
        policy = published.nbytes(self.model().parameter_count)
        channels, slots = [], []
        for learner in self._job.plan.carrying("learner"):
            channels += self.supply(learner.group).channels(capabilities)
            carriers = GroupProcesses.of(self._job.plan, learner.group).carriers
            readers = tuple(process.rank for process in carriers)
            slots.append(Slot(policy_slot(learner.group), learner.rank, readers, policy))
        return Wiring(self._job.id, tuple(channels), tuple(slots))

    def supply(self, group: int | None) -> Supply:
        """Say what a group needs to get its learner's batches, and build it."""
        config = self._config
        return supply_of(
            Terms(
                config,
                job_number(self._job.id),
                self.layout,
                tuple(field.name for field in self._agent_fields),
                GroupProcesses.of(self._job.plan, group),
                self.seed,
                self._job.directory,
                resumed=self._job.resumed,
                env_steps=self._progress.env_steps,
            )
        )

    @cached_property
    def _progress(self) -> Progress:
        if not self._job.resumed:
            return Progress()
        _tensors, document = load_training(self._job.checkpoints / "last")
        progress = Progress(**document["progress"])
        progress.sessions += 1
        return progress

    def _actor(self, transport: Transport, number: int, page: ProductionPage, supply: Supply) -> Actor:
        config, process = self._config, self._process
        num_envs = config.environment.num_envs
        environment = self.environment(num_envs)
        agent = self.agent(self.model(), num_envs, self.seed("policy", number))
        agent.explore_as(number * num_envs, self._job.plan.num_actors * num_envs)
        return Actor(
            number,
            self._incarnation,
            job_number(self._job.id),
            agent=agent,
            environment=environment,
            layout=self.layout,
            outbox=Outbox(transport, supply.buffer_rank, FRAGMENTS, policy_slot(process.group)),
            page=page,
            seed=self.seed("environment", number),
            per_version=supply.per_version,
        )

    def _learner(self, transport: Transport, supply: Supply) -> Learner:
        config, last = self._config, self._job.checkpoints / "last"
        model = self.model().to(self._process.device)
        embryo = self.embryo(model)
        episodes = Episodes(config.experiment.thresholds)
        if self._job.resumed:
            model.read_parameters(load_parameters(last, model))
            tensors, document = load_training(last)
            embryo.load_state(tensors, document["embryo"])
            embryo.schedule(self._progress.env_steps)
            episodes.load_state(document["episodes"])
        stop = config.experiment.stop
        return Learner(
            embryo,
            self.feed(supply, transport, embryo),
            transport,
            policy_slot(self._process.group),
            duties=LearnerDuties(
                StopRule(stop.mean_return, stop.env_steps), config.experiment.checkpoint_every_s
            ),
            checkpoints=CheckpointWriter(self._job.checkpoints, model, config.experiment.keep_checkpoints),
            progress=self._progress,
            episodes=episodes,
        )


def policy_slot(group: int | None) -> str:
    """Name of the slot through which a group's policy reaches its actors."""
    return f"policy-{group}"

"""Builds the roles of one process from the config and the plan: the one place that knows every part."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

import torch

from tianji_algos.core import Agent, Embryo, Model
from tianji_algos.device import device_of
from tianji_cli.errors import UsageError, describe
from tianji_cli.files.checkpoint import CheckpointWriter, load_parameters
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.files.saved import checkpoints_of
from tianji_cli.plan.graph import (
    AVERAGE,
    CONTRIBUTIONS,
    FRAGMENTS,
    POLICY,
    ChannelSize,
    copies_for,
    graph_of,
    slot_name,
)
from tianji_cli.roles.actor.actor import Actor, Destination, Outbox
from tianji_cli.roles.actor.evaluator import MAX_PARALLEL, Baseline, EvaluationLimits, Evaluator, baseline
from tianji_cli.roles.learner.data_source import DataSource
from tianji_cli.roles.learner.episodes import Episodes, StopRule
from tianji_cli.roles.learner.learner import Learner, LearnerDuties
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup
from tianji_cli.roles.learner.parallel.followers import Follower
from tianji_cli.roles.learner.parallel.group_average import GroupAverage
from tianji_cli.roles.role import Role
from tianji_cli.roles.user_role import Surroundings, UserRole, find_user_role
from tianji_cli.wire.parameters import average_layout, contribution_layout, policy_layout
from tianji_cli.wire.records import job_number
from tianji_cli.worker.parts import Parts
from tianji_cli.worker.supply import GroupProcesses, Supply, Terms, supply_of
from tianji_envs.core import VectorEnvironment
from tianji_transports.composite import edge_capabilities, open_endpoint
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.wiring import Wiring


class Assembly(Parts):
    """Builds what one process of a job runs."""

    def feed(
        self, supply: Supply, transport: Transport, embryo: Embryo, all_reduce: AllReduceGroup | None
    ) -> DataSource:
        """Build what the learner takes its batches from, after a buffer beside it."""
        return supply.feed(transport, embryo, all_reduce)

    def roles(self, transport: Transport, production: ProductionFile) -> list[Role]:
        """Build the roles of this process, in the order they take turns and stop.

        Args:
            transport: the process's endpoint.
            production: has a page for each of its actors.
        """
        process, config = self._process, self._config
        supply = self.supply(self.group)
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
            elif name == "follower":
                built.append(self._follower(transport, supply))
            else:
                built.append(self._user_role(name, transport))
        assert built, f"rank {process.rank} of {config.experiment.name} carries no role of a group"
        return built

    def check(self) -> None:
        """Build once what every process of the job builds, and make sure that this host can hold its replays.

        Raises:
            TianjiError, AlgorithmError, EnvironmentFailure: something cannot be built.
        """
        model = self.model()
        self.agent(model, 1, seed=0)
        self.embryo(model)
        plan = self._job.plan
        self.supply(0).check(sum(plan.is_local(process.rank) for process in plan.carrying("buffer")))

    def evaluator(
        self,
        episodes: int | None = None,
        seed: int | None = None,
        checkpoint: str | None = None,
        on_step: Callable[[VectorEnvironment], None] | None = None,
        policy: Baseline | None = None,
        limits: EvaluationLimits | None = None,
    ) -> Evaluator:
        """Build what plays greedy episodes with a checkpoint of the run.

        Args:
            episodes: how many; the config's number by default.
            seed: of the environments; derived from the config's by default.
            checkpoint: name of a directory in ``checkpoints/``; the config's choice by default.
            on_step: called after each step; the environments can be rendered then.
            policy: plays in place of the checkpoint.
            limits: how long it may take; the config's by default.

        Raises:
            UsageError: the environment knows no such policy.
        """
        experiment = self._config.experiment
        number = experiment.eval_episodes if episodes is None else episodes
        limits = limits or EvaluationLimits(experiment.eval_max_s, experiment.eval_max_steps)
        num_envs = 1 if on_step is not None else min(number, MAX_PARALLEL)
        seed = self.seed("evaluation") if seed is None else seed
        name = checkpoint or experiment.eval_checkpoint
        trained = self._trained_agent(name, num_envs) if policy is None else None
        environment = self.environment(num_envs, render=on_step is not None, evaluation=True)
        player = baseline(policy, environment, seed) if policy is not None else trained
        assert player is not None
        return Evaluator(player, environment, number, seed, on_step, limits)

    def _trained_agent(self, checkpoint: str, num_envs: int) -> Agent:
        """Build an agent that acts as a checkpoint of the run does."""
        model = self._acting_model()
        parameters = load_parameters(self._job.checkpoints / checkpoint, model)
        agent = self.agent(model, num_envs, 0)
        agent.adopt(parameters)
        return agent

    def transport(self, options: EngineOptions) -> Transport:
        """Open this process's endpoint.

        Args:
            options: how the engine may reach other hosts.
        """
        plan, rank = self._job.plan, self._process.rank
        wiring = self.wiring(edge_capabilities(plan.local, plan.remote, plan.endpoints))
        return open_endpoint(
            plan.local, plan.remote, plan.endpoints, wiring, rank, self._incarnation, options
        )

    def wiring(self, capabilities: Capabilities) -> Wiring:
        """Return who sends what to whom, in all groups, which are alike."""
        graph, channels = graph_of(self._config), self.supply(0).sizes(capabilities)
        copy = replace(channels[FRAGMENTS], borrow=1)
        channels |= {copies_for(role): copy for role in self._config.roles}
        model = self.model()
        slots = {POLICY: policy_layout(model.parameter_count).nbytes}
        if self._config.distribution.groups > 1:
            values = self._values_to_average(model)
            channels[CONTRIBUTIONS] = ChannelSize(contribution_layout(values).nbytes)
            slots[AVERAGE] = average_layout(values, self._config.distribution.groups).nbytes
        return graph.wiring(self._job.id, self._job.plan, channels, slots)

    def _values_to_average(self, model: Model) -> int:
        """Count what a group contributes: parameters and, if wanted, the optimiser's moments."""
        if not self._config.distribution.sync_optimizer:
            return model.parameter_count
        moments = self.embryo(model).averaged_state()
        return model.parameter_count + sum(tensor.numel() for tensor in moments)

    def supply(self, group: int) -> Supply:
        """Describe what a group needs to get its learner's batches, and build it."""
        config = self._config
        return supply_of(
            Terms(
                config,
                job_number(self._job.id),
                self.layout,
                tuple(field.name for field in self.agent_fields),
                GroupProcesses.of(self._job.plan, group),
                partial(self.seed, number=group),
                self._job.directory,
                checkpoints_of(self._job.checkpoints, group),
                resumed=self._job.resumed,
                env_steps=self.progress.env_steps,
            )
        )

    def _actor(self, transport: Transport, number: int, page: ProductionPage, supply: Supply) -> Actor:
        config = self._config
        num_envs = config.environment.num_envs
        environment = self.environment(num_envs)
        agent = self.agent(self._acting_model(), num_envs, self.seed("policy", number))
        # Each group learns from its own actors, so each has the whole range of exploration.
        of_group = [actor for process in supply.processes.carriers for actor in process.actors]
        agent.explore_as(of_group.index(number) * num_envs, len(of_group) * num_envs)
        return Actor(
            number,
            self._incarnation,
            job_number(self._job.id),
            agent=agent,
            environment=environment,
            layout=self.layout,
            outbox=Outbox(
                transport, supply.buffer_rank, FRAGMENTS, slot_name(POLICY, self.group), self._copies()
            ),
            page=page,
            seed=self.seed("environment", number),
            per_version=supply.per_version,
        )

    def _copies(self) -> list[Destination]:
        """Return who gets a copy of every fragment of this group."""
        receiving = [name for name, role in self._config.roles.items() if FRAGMENTS in role.receives]
        return [
            Destination(name, process.rank, copies_for(name))
            for name in receiving
            for process in self._job.plan.carrying(name)
            if process.group == self.group
        ]

    def _user_role(self, name: str, transport: Transport) -> UserRole:
        section = self._config.roles[name]
        group, processes = self.group, GroupProcesses.of(self._job.plan, self.group)
        surroundings = Surroundings(
            name=name,
            group=group,
            settings=section.settings,
            config=self._config,
            directory=self._job.lasting / "roles" / f"{name}-{group}",
            spaces=self.spaces,
            layout=self.layout,
            job=job_number(self._job.id),
            actors={process.rank: process.actors for process in processes.carriers},
            seed=self.seed(name, group),
            transport=transport,
            channel=copies_for(name) if FRAGMENTS in section.receives else None,
            slot=slot_name(POLICY, group) if POLICY in section.reads else None,
            make_agent=lambda num_envs, seed: self.agent(self.model(), num_envs, seed),
            make_environment=lambda num_envs, evaluation: self.environment(num_envs, evaluation=evaluation),
        )
        return find_user_role(section.type)(surroundings)

    def _learner(self, transport: Transport, supply: Supply) -> Learner:
        config, distribution = self._config, self._config.distribution
        embryo, all_reduce = self._trained_embryo(), self._all_reduce()
        episodes = Episodes(config.experiment.thresholds)
        if self.saved is not None:
            self.saved.restore_episodes(episodes)
        stop, several = config.experiment.stop, distribution.groups > 1
        return Learner(
            embryo,
            self.feed(supply, transport, embryo, all_reduce),
            transport,
            slot_name(POLICY, self.group),
            duties=LearnerDuties(
                # How many steps all groups have made together only the root knows.
                StopRule(stop.mean_return, None if several else stop.env_steps, stop.win_rate),
                config.experiment.checkpoint_every_s,
            ),
            checkpoints=CheckpointWriter(
                checkpoints_of(self._job.checkpoints, self.group),
                embryo.model,
                config.experiment.keep_checkpoints,
            ),
            progress=self.progress,
            episodes=episodes,
            average=self._average(transport, embryo) if several else None,
            all_reduce=all_reduce,
            groups=distribution.groups,
            job_env_steps=self._earlier_env_steps,
        )

    def _follower(self, transport: Transport, supply: Supply) -> Follower:
        embryo, all_reduce = self._trained_embryo(), self._all_reduce()
        assert all_reduce is not None
        return Follower(embryo, supply.follower_source(transport, embryo), all_reduce)

    def _trained_embryo(self) -> Embryo:
        """Build the update rule, and go on from where the last session ended."""
        embryo = self.embryo(self._model_on(self._device, "distribution.device"))
        if self.saved is not None:
            self.saved.restore(embryo)
            embryo.schedule(self._earlier_env_steps)
        return embryo

    @property
    def _earlier_env_steps(self) -> int:
        """Of all groups, in earlier sessions."""
        return sum(progress.env_steps for progress in self._job.progress)

    def _all_reduce(self) -> AllReduceGroup | None:
        """Connect with the other learners of the group, who do so now; None if there are none."""
        number = 1 + len(GroupProcesses.of(self._job.plan, self.group).followers)
        if number == 1:
            return None
        store = self._job.directory / f"all_reduce-{self._job.id}-{self.group}"
        return AllReduceGroup(store, self._process.learner, number, self._device)

    @cached_property
    def _device(self) -> str:
        """Where this process computes: where there are fewer GPUs than numbers, they go round."""
        distribution = self._config.distribution
        wanted = distribution.device if self._learns else distribution.actor.device
        kind, _, number = self._process.device.partition(":")
        numbered_by_plan = number and wanted == kind == "cuda"
        gpus = torch.cuda.device_count() if numbered_by_plan else 0
        return f"{kind}:{int(number) % gpus}" if gpus else self._process.device

    @property
    def _learns(self) -> bool:
        return not {"learner", "follower"}.isdisjoint(self._process.roles)

    def _acting_model(self) -> Model:
        """Build the network where policies act, which is another place than a learner's beside them."""
        key = "distribution.actor.device"
        return self._model_on(self._config.distribution.actor.device if self._learns else self._device, key)

    def _model_on(self, device: str, key: str) -> Model:
        """Build the network where it is to compute.

        Args:
            device: in torch's words.
            key: of the config, which asks for it.

        Raises:
            UsageError: there is no such device.
        """
        model = self.model()
        if device == "cpu":
            return model
        try:
            model.to(device)
            if device.startswith("cuda"):
                torch.cuda.set_device(device_of(model))  # Pinned memory and streams are the current one's.
        except (RuntimeError, AssertionError) as cause:  # What torch raises, depending on what is missing.
            raise UsageError(
                f"{key}: {device!r} is not there on {socket.gethostname()} ({describe(cause)}); "
                '"cpu" would be right, or a GPU that torch finds'
            ) from cause
        return model

    def _average(self, transport: Transport, embryo: Embryo) -> GroupAverage:
        distribution = self._config.distribution
        return GroupAverage(
            transport,
            embryo,
            job=job_number(self._job.id),
            group=self.group,
            interval=distribution.sync_interval,
            waits=distribution.mode == "sync",
            wait_s=distribution.sync_wait_s,
            moments=distribution.sync_optimizer,
            updates=self.progress.updates,
            consumed=self.progress.consumed,
        )

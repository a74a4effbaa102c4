"""The page on which the roles of a process are connected: environment, actor, buffer, learner, publisher.

Everything else is looked up from here: ``parts.py`` makes single parts, ``experience.py`` what samples go
through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from tianji_algos.core import Agent, Embryo
from tianji_cli.files.checkpoint import CheckpointWriter, load_parameters
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.files.saved import checkpoints_of
from tianji_cli.plan.graph import FRAGMENTS, POLICY, copies_for, slot_name
from tianji_cli.roles.actor.actor import Actor, Destination, Outbox
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.evaluator import MAX_PARALLEL, Baseline, EvaluationLimits, Evaluator, baseline
from tianji_cli.roles.learner.data_source import DataSource
from tianji_cli.roles.learner.episodes import Episodes
from tianji_cli.roles.learner.learner import Learner, Publisher
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup
from tianji_cli.roles.learner.parallel.followers import Follower
from tianji_cli.roles.learner.parallel.group_average import GroupAverage
from tianji_cli.roles.learner.parallel.scatter import Leader
from tianji_cli.roles.role import Role
from tianji_cli.roles.user_role import Surroundings, UserRole, find_user_role
from tianji_cli.worker.experience import (
    follower_source,
    replay_buffer,
    replay_source,
    rollout_buffer,
    rollout_source,
)
from tianji_cli.worker.parts import Parts
from tianji_envs.core import VectorEnvironment
from tianji_transports.core import Transport

Part = TypeVar("Part")


def _as_it_is(part: Part) -> Part:
    return part


@dataclass(frozen=True)
class Wrappers:
    """What the parts of roles are put into before they are connected, so that their calls can be timed."""

    environment: Callable[[VectorEnvironment], VectorEnvironment] = _as_it_is
    agent: Callable[[Agent], Agent] = _as_it_is
    embryo: Callable[[Embryo], Embryo] = _as_it_is
    source: Callable[[DataSource], DataSource] = _as_it_is


NO_WRAPPERS: Final = Wrappers()


def build_roles(
    parts: Parts, transport: Transport, counters: ProductionFile, wrap: Wrappers = NO_WRAPPERS
) -> list[Role]:
    """Build the roles of a process, in the order they take turns and stop."""
    config, distribution, replays = parts.config, parts.config.distribution, parts.config.learns_from_replay
    policy = slot_name(POLICY, parts.group)
    numbers = iter(parts.process.actors)
    buffer: Buffer | None = None
    built: list[Role] = []
    for name in parts.process.roles:
        if name == "actor":
            number = next(numbers)
            environment = wrap.environment(parts.environment(config.environment.num_envs))
            agent = wrap.agent(parts.acting_agent(number))
            receiver = parts.carrying("buffer")[0].rank
            actor = Actor(
                number,
                parts.incarnation,
                parts.number,
                agent=agent,
                environment=environment,
                layout=parts.layout,
                outbox=Outbox(transport, receiver, FRAGMENTS, policy, _copies(parts)),
                page=ProductionPage(counters, number),
                seed=parts.seed("environment", number),
                per_version=_fragments_per_version(parts),
            )
            built.append(actor)
        elif name == "buffer":
            buffer = replay_buffer(parts, transport) if replays else rollout_buffer(parts, transport)
            built.append(buffer)
        elif name == "learner":
            embryo = wrap.embryo(parts.trained_embryo())
            if replays:
                source, rounds = replay_source(parts, transport, buffer)
            else:
                source, rounds = rollout_source(parts, transport, embryo, buffer)
            leader = Leader(embryo, rounds, _connect_learners(parts)) if rounds else None
            learner = Learner(
                embryo,
                wrap.source(source),
                transport,
                Publisher(embryo.model, transport, policy),
                stop=config.experiment.stop,
                checkpoints=CheckpointWriter(
                    checkpoints_of(parts.job.checkpoints, parts.group),
                    embryo.model,
                    config.experiment.keep_checkpoints,
                ),
                checkpoint_every_s=config.experiment.checkpoint_every_s,
                progress=parts.progress,
                episodes=_episodes(parts),
                average=_average(parts, transport, embryo) if distribution.groups > 1 else None,
                leader=leader,
                groups=distribution.groups,
                job_env_steps=parts.job.env_steps,
            )
            built.append(learner)
        elif name == "follower":
            embryo = wrap.embryo(parts.trained_embryo())
            shards = follower_source(parts, transport, embryo)
            built.append(Follower(embryo, shards, _connect_learners(parts)))
        else:
            built.append(_user_role(parts, transport, name))
    assert built, f"rank {parts.process.rank} of {config.experiment.name} carries no role of a group"
    return built


def build_evaluator(
    parts: Parts,
    episodes: int | None = None,
    seed: int | None = None,
    checkpoint: str | None = None,
    on_step: Callable[[VectorEnvironment], None] | None = None,
    policy: Baseline | None = None,
    limits: EvaluationLimits | None = None,
) -> Evaluator:
    """Build what plays greedy episodes with a checkpoint of the run.

    Args:
        checkpoint: name of a directory in ``checkpoints/``; what is None here is as the config has it.
        on_step: called after each step; the environments can be rendered then.
        policy: plays in place of the checkpoint.

    Raises:
        UsageError: the environment knows no such policy.
    """
    experiment = parts.config.experiment
    number = experiment.eval_episodes if episodes is None else episodes
    limits = limits or EvaluationLimits(experiment.eval_max_s, experiment.eval_max_steps)
    num_envs = 1 if on_step is not None else min(number, MAX_PARALLEL)
    seed = parts.seed("evaluation") if seed is None else seed
    trained: Agent | None = None
    if policy is None:
        model = parts.acting_model()
        place = parts.job.checkpoints / (checkpoint or experiment.eval_checkpoint)
        parameters = load_parameters(place, model)
        trained = parts.agent(model, num_envs, 0)
        trained.adopt(parameters)
    environment = parts.environment(num_envs, render=on_step is not None, evaluation=True)
    player = baseline(policy, environment, seed) if policy is not None else trained
    assert player is not None
    return Evaluator(player, environment, number, seed, on_step, limits)


def _fragments_per_version(parts: Parts) -> int | None:
    """Fragments that an actor makes with one policy: in step, its part of a rollout; None: it never waits."""
    if parts.config.learns_from_replay or parts.config.distribution.mode != "sync":
        return None
    return parts.config.fragments_per_rollout // sum(len(numbers) for numbers in parts.actors.values())


def _copies(parts: Parts) -> list[Destination]:
    """Return which roles of the group get a copy of every fragment."""
    receiving = [name for name, role in parts.config.roles.items() if FRAGMENTS in role.receives]
    return [
        Destination(name, process.rank, copies_for(name))
        for name in receiving
        for process in parts.carrying(name)
    ]


def _episodes(parts: Parts) -> Episodes:
    """Begin to count episodes, or go on from where the last session ended."""
    episodes = Episodes(parts.config.experiment.thresholds)
    if parts.saved is not None:
        parts.saved.restore_episodes(episodes)
    return episodes


def _connect_learners(parts: Parts) -> AllReduceGroup:
    """Connect with the other learners of the group, who do so now."""
    store = parts.job.directory / f"all_reduce-{parts.job.id}-{parts.group}"
    number = parts.config.distribution.learner.num
    return AllReduceGroup(store, parts.process.learner, number, parts.device)


def _average(parts: Parts, transport: Transport, embryo: Embryo) -> GroupAverage:
    distribution = parts.config.distribution
    return GroupAverage(
        transport,
        embryo,
        job=parts.number,
        group=parts.group,
        interval=distribution.sync_interval,
        waits=distribution.mode == "sync",
        wait_s=distribution.sync_wait_s,
        moments=distribution.sync_optimizer,
        updates=parts.progress.updates,
        consumed=parts.progress.consumed,
    )


def _user_role(parts: Parts, transport: Transport, name: str) -> UserRole:
    section, group = parts.config.roles[name], parts.group
    surroundings = Surroundings(
        name=name,
        group=group,
        settings=section.settings,
        config=parts.config,
        directory=parts.job.lasting / "roles" / f"{name}-{group}",
        spaces=parts.spaces,
        layout=parts.layout,
        job=parts.number,
        actors=parts.actors,
        seed=parts.seed(name, group),
        transport=transport,
        channel=copies_for(name) if FRAGMENTS in section.receives else None,
        slot=slot_name(POLICY, group) if POLICY in section.reads else None,
        make_agent=lambda num_envs, seed: parts.agent(parts.model(), num_envs, seed),
        make_environment=lambda num_envs, evaluation: parts.environment(num_envs, evaluation=evaluation),
    )
    return find_user_role(section.type)(surroundings)

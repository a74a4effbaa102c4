"""Connects the roles of a process: environment, actor, buffer, learner, publisher.

The path of samples from actors to the update rule comes next. A learner of rollouts has a buffer beside it
that holds claims or copies of fragments. A learner with a replay has a buffer beside it, or one in a process
of its own that assembles batches ahead. ``builder.py`` builds the parts that this module connects, over the
endpoint that ``channels.py`` opens.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from tianji_algos.core import Embryo, RolloutEmbryo
from tianji_algos.normalization import acting_executor
from tianji_cli.config.edges import BATCHES, FRAGMENTS, POLICY, REQUESTS
from tianji_cli.config.population import config_with
from tianji_cli.config.schema import rows_of
from tianji_cli.files.checkpoint import CheckpointWriter
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.files.directories import LAST
from tianji_cli.files.saved import CheckpointError, checkpoints_of, link_best_to_best_evaluated
from tianji_cli.plan.graph import EXAMINER, INFERENCE, batches_to, fragments_to, slot_name
from tianji_cli.roles.actor.actor import Actor, Destination, Outbox
from tianji_cli.roles.actor.pace import PacedStep
from tianji_cli.roles.actor.remote import Connection
from tianji_cli.roles.buffer.buffer import Buffer, ReplayBuffer
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.file import ReplayKeeper, replay_directory
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.buffer.rollout import FragmentRelay, RolloutStore
from tianji_cli.roles.inference import Inference
from tianji_cli.roles.learner.data_source import (
    DataSource,
    LocalReplayClient,
    RemoteReplayClient,
    ReplayClient,
    ReplaySource,
    RolloutSource,
)
from tianji_cli.roles.learner.learner import Episodes, Learner, Publisher
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup
from tianji_cli.roles.learner.parallel.followers import (
    Follower,
    FollowerSource,
    ScatteredBatches,
    ScatteredRollouts,
)
from tianji_cli.roles.learner.parallel.group_average import GroupAverage
from tianji_cli.roles.learner.parallel.member import PopulationMember
from tianji_cli.roles.learner.parallel.scatter import (
    Leader,
    RolloutRounds,
    Rounds,
    Scatter,
    ScatteringReplayClient,
)
from tianji_cli.roles.role import Role
from tianji_cli.roles.user_role import RoleContext, UserRole, find_user_role
from tianji_cli.wire.address import LOOPBACK
from tianji_cli.wire.batches import BatchArrays
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.channels import lends_rollouts, rollout_shards, window_of_all
from tianji_cli.worker.evaluation import examiner
from tianji_cli.worker.ports import actors_before, all_of, ports_of, receivers_of
from tianji_transports.core import Transport

AGE_BINS: Final = 1000
"""Number of bins of the age histogram, over the capacity of a replay."""


def build_roles(builder: Builder, transport: Transport, counters: ProductionFile) -> list[Role]:
    """Build the roles of a process, in the order of their turns and stops."""
    replays = builder.config.learns_from_replay
    numbers = iter(builder.process.actors)
    connection = _connection(builder, transport)
    buffer: Buffer | None = None
    built: list[Role] = []
    for name in builder.process.roles:
        if name == "actor":
            built.append(_actor(builder, transport, counters, next(numbers), connection))
        elif name == INFERENCE:
            built.append(_inference(builder, transport))
        elif name == "buffer":
            buffer = replay_buffer(builder, transport) if replays else rollout_buffer(builder, transport)
            built.append(buffer)
        elif name == "learner":
            built.append(_learner(builder, transport, buffer))
        elif name == "follower":
            embryo = builder.trained_embryo()
            shards = follower_source(builder, transport, embryo)
            built.append(Follower(embryo, shards, _all_reduce_group(builder)))
        elif name == EXAMINER:
            built.append(examiner(builder, transport))
        else:
            built.append(_user_role(builder, transport, counters, name))
    assert built, (
        f"rank {builder.process.rank} of {builder.config.experiment.name} carries no role of a group"
    )
    return built


def _connection(builder: Builder, transport: Transport) -> Connection | None:
    """Build the way from the actors of a process to their network; None where they have it themselves."""
    receivers = receivers_of(transport.wiring, REQUESTS, builder.process.rank)
    return Connection(transport, receivers[0], builder.passes, builder.number) if receivers else None


def _inference(builder: Builder, transport: Transport) -> Inference:
    """Build a group's network for actors whose inference is apart."""
    section = builder.config.distribution.inference
    assert section is not None, "the plan has the role where the config has the section"
    model, processes = builder.acting_model(), builder.job.plan.processes
    asking = transport.wiring.channel(REQUESTS, builder.process.rank).senders
    return Inference(
        transport,
        [acting_executor(model, builder.config.environment.num_envs) for _ in range(2)],
        builder.passes,
        builder.number,
        {rank: processes[rank].actors for rank in asking},
        slot_name(POLICY, builder.group),
        section,
    )


def _actor(
    builder: Builder,
    transport: Transport,
    counters: ProductionFile,
    number: int,
    connection: Connection | None,
) -> Actor:
    config = builder.config
    environment, section = builder.acting_environment(number), config.environment
    agent = builder.acting_agent(number, connection)
    channel = fragments_to(config.graph.path_of_fragments[1])
    (receiver,) = receivers_of(transport.wiring, channel, builder.process.rank)
    return Actor(
        number,
        builder.incarnation,
        builder.number,
        agent=agent,
        environment=environment,
        layout=builder.layout,
        outbox=Outbox(transport, receiver, channel, slot_name(POLICY, builder.group), _copies(builder)),
        page=ProductionPage(counters, number),
        seed=builder.seed("environment", number),
        per_version=_fragments_per_version(builder),
        pace=PacedStep(environment, section, builder.seed("pace", number)) if section.step_ms else None,
        network=None if connection is None else connection.executors[number],
        settings_with=lambda found: config_with(config, found).agent.settings,
        subtracts=builder.subtracts,
    )


def _learner(builder: Builder, transport: Transport, buffer: Buffer | None) -> Learner:
    """Build the learner that leads its group; ``buffer`` is None if another process carries it."""
    config, section = builder.config, builder.config.experiment
    embryo = builder.trained_embryo()
    if section.evaluation is not None and builder.group == 0 and not builder.job.resumed:
        link_best_to_best_evaluated(builder.job.checkpoints)
    if config.learns_from_replay:
        source, rounds = replay_source(builder, transport, buffer)
    else:
        source, rounds = rollout_source(builder, transport, embryo, buffer)
    leader = None
    if rounds:
        all_reduce = _all_reduce_group(builder)
        file = builder.job.directory / f"all_reduce-{builder.job.id}-{builder.group}"
        leader = Leader(embryo, rounds, all_reduce, all_reduce.open(file))
    return Learner(
        embryo,
        source,
        transport,
        Publisher(embryo.model, transport, slot_name(POLICY, builder.group)),
        stop=section.stop,
        checkpoints=CheckpointWriter(
            checkpoints_of(builder.job.checkpoints, builder.group),
            embryo.model,
            section.keep_checkpoints,
            has_best=section.evaluation is None,
        ),
        checkpoint_every_s=section.checkpoint_every_s,
        progress=builder.progress,
        episodes=_episodes(builder),
        begins_best=builder.begins_best,
        average=_average(builder, transport, embryo),
        member=_member(builder, transport, embryo),
        leader=leader,
        groups=config.distribution.groups,
        job_env_steps=builder.job_env_steps,
    )


def rollout_buffer(builder: Builder, transport: Transport) -> Buffer:
    """Build the buffer of a group whose learner learns from rollouts: beside it, or apart from it."""
    actors = actors_before(builder, transport.wiring, "buffer")
    if builder.config.distribution.buffer.colocate:
        return _rollouts(builder, transport, FRAGMENTS, actors)
    (learner,) = builder.carrying("learner")
    relay = FragmentRelay(builder.stored_layout, builder.number, actors, transport, learner.rank)
    return Buffer(transport, FRAGMENTS, relay)


def _rollouts(
    builder: Builder, transport: Transport, channel: str, actors: Mapping[int, Sequence[int]]
) -> Buffer:
    """Build what makes rollouts of the fragments that come over a channel."""
    distribution = builder.config.distribution
    store = RolloutStore(
        builder.stored_layout,
        builder.number,
        actors,
        per_rollout=builder.config.fragments_per_rollout,
        window=window_of_all(builder),
        lends=lends_rollouts(builder, transport.capabilities),
        in_step=distribution.mode == "sync",
        rollouts=distribution.buffer.rollouts,
        seed=builder.seed("rollouts", builder.group),
    )
    return Buffer(transport, channel, store)


def rollout_source(
    builder: Builder, transport: Transport, embryo: Embryo, buffer: Buffer | None
) -> tuple[DataSource, Rounds | None]:
    """Build the source of the learner's part of rollouts, and the rounds that scatter the rest."""
    intake = None
    if buffer is None:
        actors = {
            process.rank: all_of(actors_before(builder, transport.wiring, "buffer", process.rank))
            for process in builder.carrying("buffer")
        }
        buffer = intake = _rollouts(builder, transport, BATCHES, actors)
    assert isinstance(buffer.store, RolloutStore)
    learners = builder.config.distribution.learner.num
    source = RolloutSource(cast("RolloutEmbryo", embryo), buffer.store, learners, intake)
    shards = rollout_shards(builder, transport.capabilities)
    scatter = _scatter(builder, transport, shards.window, shards.max_bytes)
    return source, None if scatter is None else RolloutRounds(scatter, source)


def replay_buffer(builder: Builder, transport: Transport) -> Buffer:
    """Build a replay and its buffer; a resumed session fills it from a saved replay.

    Raises:
        ReplayFileError: the saved replay is damaged, or does not fit the config.
    """
    config, section = builder.config, builder.config.distribution.buffer
    replay = _replay(builder, "replay", section.capacity, builder.progress.env_steps // section.num)
    learning = config.replay_settings
    limiter = RateLimiter(
        learning.replay_ratio, _part_of_buffer(builder, learning.warmup_steps), config.tolerance
    )
    keeper = None
    if section.save_with_checkpoint:
        saved = checkpoints_of(builder.job.checkpoints, builder.group)
        place = replay_directory(saved, builder.process.number or 0, section.num)
        keeper = ReplayKeeper(replay, place, config.experiment.checkpoint_every_s)
        if builder.job.resumed and keeper.restore():
            limiter.warmup = max(0, limiter.warmup - replay.size)
    store = ReplayStore(
        builder.stored_layout,
        builder.number,
        actors_before(builder, transport.wiring, "buffer"),
        replay=replay,
        limiter=limiter,
        tables=[
            _replay(builder, f"replay of {role}", table.capacity) for role, table in section.tables.items()
        ],
        sources={
            builder.job.plan.source_number(process.rank): place
            for place, role in enumerate(section.tables)
            for process in builder.carrying(role)
        },
        rows=rows_of(config.replay_settings.batch_size, section.tables),
    )
    if section.colocate:
        return Buffer(transport, FRAGMENTS, store, keeper)
    (learner,) = builder.carrying("learner")
    channel = batches_to(config.graph.path_of_batches[1])
    (taker,) = receivers_of(transport.wiring, channel, builder.process.rank)
    return ReplayBuffer(
        transport,
        FRAGMENTS,
        store,
        learner=learner.rank,
        taker=(taker, channel),
        batches=builder.batches(),
        keeper=keeper,
        in_step=section.priority_updates == "sync",
        metrics=len(config.environment.metrics),
    )


def _replay(builder: Builder, purpose: str, capacity: int, env_steps: int = 0) -> Replay:
    """Build this buffer's part of a replay that holds so many env steps of a group."""
    number = builder.group * builder.config.distribution.buffer.num + (builder.process.number or 0)
    return Replay(
        builder.stored_layout,
        replay_settings(builder, capacity),
        agent_fields=kept_fields(builder),
        seed=builder.seed(purpose, number),
        directory=builder.job.directory,
        env_steps=env_steps,
    )


def replay_source(
    builder: Builder, transport: Transport, buffer: Buffer | None
) -> tuple[DataSource, Rounds | None]:
    """Build the source of replay batches, from here or elsewhere, and the rounds that scatter them."""
    config, section = builder.config, builder.config.distribution.buffer
    learning, batches = config.replay_settings, builder.batches()
    client: ReplayClient
    rounds: Rounds | None = None
    if not section.colocate:
        at_once = section.num == 1 or (builder.job.resumed and section.save_with_checkpoint)
        warmup = 0 if at_once else _part_of_buffer(builder, learning.warmup_steps)
        buffers = {process.rank: warmup for process in builder.carrying("buffer")}
        stats = config.fragment_steps, len(config.environment.metrics)
        client = RemoteReplayClient(transport, buffers, builder.number, batches, *stats)
    else:
        assert buffer is not None
        assert isinstance(buffer.store, ReplayStore)
        shard = builder.batches(config.distribution.learner.num)
        scatter = _scatter(builder, transport, 1, shard.nbytes)
        if scatter is None:
            client = LocalReplayClient(buffer.store, BatchArrays(batches))
        else:
            client = rounds = ScatteringReplayClient(
                transport,
                buffer.store,
                batches,
                shard,
                scatter,
                publish_every=learning.publish_every,
                prioritised=section.has_priorities,
                in_step=section.priority_updates == "sync",
            )
    source = ReplaySource(
        client,
        rho=learning.replay_ratio,
        publish_every=learning.publish_every,
        prioritised=section.has_priorities,
        age_bin=max(1, section.capacity // AGE_BINS),
        own=math.ceil(rows_of(learning.batch_size, section.tables)[0] / config.distribution.learner.num),
    )
    return source, rounds


def follower_source(builder: Builder, transport: Transport, embryo: Embryo) -> FollowerSource:
    """Build the source of a follower's shards."""
    if builder.config.learns_from_replay:
        (learner,), distribution = builder.carrying("learner"), builder.config.distribution
        return ScatteredBatches(
            transport,
            builder.number,
            builder.batches(distribution.learner.num),
            learner.rank,
            prioritised=distribution.buffer.has_priorities,
        )
    shards = rollout_shards(builder, transport.capabilities)
    return ScatteredRollouts(
        transport,
        builder.number,
        cast("RolloutEmbryo", embryo),
        builder.stored_layout,
        all_of(builder.actors),
        shards=shards.window,
        lends=shards.borrow == shards.window,
    )


def _part_of_buffer(builder: Builder, env_steps: int) -> int:
    """Return the part of a group's env steps that falls to each of its buffers."""
    return math.ceil(env_steps / builder.config.distribution.buffer.num)


def replay_settings(builder: Builder, capacity: int) -> ReplaySettings:
    """Settings of a buffer's part of a replay that holds so many env steps of a group."""
    config, section = builder.config, builder.config.distribution.buffer
    transitions, steps = config.transition_settings, section.importance_steps
    return ReplaySettings(
        capacity=_part_of_buffer(builder, capacity),
        sampler=section.sampler,
        n_step=1 if transitions is None else transitions.n_step,
        gamma=1.0 if transitions is None else transitions.gamma,
        sequence_steps=config.sequence_steps,
        unroll=config.unroll,
        priority_exponent=section.priority_exponent,
        importance_exponent=section.importance_exponent,
        # The config counts steps of the whole job, and each buffer counts its own.
        importance_steps=None
        if steps is None
        else max(1, steps // config.distribution.groups // section.num),
        memory=section.memory,
    )


def kept_fields(builder: Builder) -> tuple[str, ...]:
    """Return the names of the agent's fields that the replay holds."""
    return tuple(field.name for field in builder.batches().fields)


def _scatter(builder: Builder, transport: Transport, shards: int, nbytes: int) -> Scatter | None:
    """Build the channels to the learner's followers; None without followers."""
    ranks = [process.rank for process in builder.carrying("follower")]
    return Scatter(transport, ranks, builder.number, shards, nbytes) if ranks else None


def _fragments_per_version(builder: Builder) -> int | None:
    """Return an actor's fragments per version: in step, its part of a rollout; None if it never waits."""
    if builder.config.learns_from_replay or builder.config.distribution.mode != "sync":
        return None
    return builder.config.fragments_per_rollout // sum(len(numbers) for numbers in builder.actors.values())


def _copies(builder: Builder) -> list[Destination]:
    """Return the receivers in the group that get a copy of every fragment."""
    plan = builder.job.plan
    return [
        Destination(role, process.rank, edge.name)
        for edge in plan.channels
        if edge.senders == ("actor",) and edge.route == "all"
        for role in edge.receivers
        for process in plan.connected(role, builder.group)
    ]


def _episodes(builder: Builder) -> Episodes:
    """Build the episode counts, new or continued from the last session."""
    episodes = Episodes(builder.config.experiment.thresholds, builder.config.environment.metrics)
    if builder.saved is not None and not builder.begins_best:
        builder.saved.restore_episodes(episodes)
    return episodes


def _all_reduce_group(builder: Builder) -> AllReduceGroup:
    """Build a learner's part in the all-reduce of its group."""
    hosts = {process.host for role in ("learner", "follower") for process in builder.carrying(role)}
    return AllReduceGroup(
        builder.process.number or 0,
        builder.config.distribution.learner.num,
        builder.device,
        LOOPBACK if len(hosts) == 1 else builder.job.interface,
    )


def _average(builder: Builder, transport: Transport, embryo: Embryo) -> GroupAverage | None:
    """Build a learner's part in parameter averaging; None with one group, or with a population."""
    distribution = builder.config.distribution
    if distribution.groups == 1 or builder.config.population is not None:
        return None
    return GroupAverage(
        transport,
        embryo,
        job=builder.number,
        group=builder.group,
        interval=distribution.sync_interval,
        waits=distribution.mode == "sync",
        wait_s=distribution.sync_wait_s,
        moments=distribution.sync_optimizer,
        updates=builder.progress.updates,
        consumed=builder.progress.consumed,
    )


def _member(builder: Builder, transport: Transport, embryo: Embryo) -> PopulationMember | None:
    """Build a learner's part in a population; None without one."""
    population = builder.config.population
    if population is None:
        return None
    return PopulationMember(
        transport,
        embryo,
        job=builder.number,
        group=builder.group,
        interval=population.interval,
        waits=builder.config.distribution.mode == "sync",
        env_steps=builder.progress.env_steps,
        hyperparameters=builder.job.hyperparameters_of(builder.group),
        takeovers=() if builder.saved is None else builder.saved.takeovers,
        settings_with=lambda found: config_with(builder.config, found).training.settings,
    )


def _user_role(builder: Builder, transport: Transport, counters: ProductionFile, name: str) -> UserRole:
    section, group = builder.config.roles[name], builder.group
    number = builder.process.number
    context = RoleContext(
        name=name,
        group=group,
        number=number or 0,
        settings=section.settings,
        config=builder.config,
        directory=builder.job.run
        / "roles"
        / "-".join(map(str, (name, group, number)[: 2 if number is None else 3])),
        states=builder.job.states(builder.process.rank, name),
        spaces=builder.spaces,
        layout=builder.layout,
        seed=builder.seed(name, group * section.num + (number or 0)),
        transport=transport,
        ports=lambda rejected: ports_of(builder, transport, counters, name, rejected),
        make_agent=lambda num_envs, seed: builder.agent(builder.model(), num_envs, seed),
        make_environment=lambda num_envs, evaluation: builder.environment(num_envs, evaluation=evaluation),
    )
    role = find_user_role(section.type)(context)
    if builder.job.resumed or builder.incarnation:
        _check_states(context.states.parent, name, section.num)
        role.restore()
    return role


def _check_states(roles: Path, name: str, num: int) -> None:
    """Make sure that each saved state of a role has a process that goes on with it.

    Raises:
        CheckpointError: another number of processes has saved them.
    """
    wanted = {name} if num == 1 else {f"{name}-{number}" for number in range(num)}
    saved = [place for place in (roles / name, *sorted(roles.glob(f"{name}-*"))) if (place / LAST).exists()]
    others = [
        place for place in saved if place.name.removeprefix(f"{name}-").isdecimal() or place.name == name
    ]
    if others := [place for place in others if place.name not in wanted]:
        raise CheckpointError(
            f"{others[0]} was saved by another number of processes than roles.{name}.num = {num}\n"
            f"without it the role begins anew: rm -r {shlex.join(map(str, others))}"
        )

"""What samples go through between actors and update rule: channels, a group's buffer, learners' data sources.

Channels and slots are as large as the parts of the job ask for, and the same in every process.
A learner of rollouts has a buffer beside it that holds claims or copies of fragments. A learner of a replay
has one beside it, or in a process of its own that assembles batches ahead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from tianji_algos.core import Embryo, Model, RolloutEmbryo
from tianji_cli.config.schema import BATCHES_AHEAD
from tianji_cli.files.saved import checkpoints_of
from tianji_cli.plan.graph import (
    ARRIVALS,
    AVERAGE,
    BATCHES,
    CONTRIBUTIONS,
    FRAGMENTS,
    HEADERS,
    POLICY,
    PRIORITIES,
    SHARDS,
    ChannelSize,
    copies_for,
    graph_of,
)
from tianji_cli.roles.buffer.buffer import Buffer, ReplayBuffer
from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.file import ReplayKeeper
from tianji_cli.roles.buffer.replay.replay import Replay, ReplaySettings, bytes_of
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.roles.learner.data_source import (
    DataSource,
    LocalReplayClient,
    RemoteReplayClient,
    ReplayClient,
    ReplaySource,
    RolloutSource,
)
from tianji_cli.roles.learner.parallel.followers import FollowerSource, ScatteredBatches, ScatteredRollouts
from tianji_cli.roles.learner.parallel.scatter import (
    LAYOUT,
    RolloutRounds,
    Rounds,
    Scatter,
    ScatteringReplayClient,
)
from tianji_cli.wire.batches import BatchArrays, priorities_layout
from tianji_cli.wire.fragment import stats_layout
from tianji_cli.wire.parameters import average_layout, contribution_layout, policy_layout
from tianji_cli.worker.parts import Parts
from tianji_transports.composite import edge_capabilities, open_endpoint
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.wiring import Wiring

ARRIVALS_AHEAD: Final = 64
"""Fragments whose arrival a learner may have yet to hear of."""
AGE_BINS: Final = 1000
"""Bins of the histogram of ages, over the capacity of a replay."""


def open_transport(parts: Parts, options: EngineOptions) -> Transport:
    """Open the endpoint of a process; ``options`` say how the engine may reach other hosts."""
    plan = parts.job.plan
    wiring = wiring_of(parts, edge_capabilities(plan.local, plan.remote, plan.endpoints))
    rank, incarnation = parts.process.rank, parts.incarnation
    return open_endpoint(plan.local, plan.remote, plan.endpoints, wiring, rank, incarnation, options)


def wiring_of(parts: Parts, capabilities: Capabilities) -> Wiring:
    """Return who sends what to whom, in all groups, which are alike, over engines of these capabilities."""
    distribution, replays = parts.config.distribution, parts.config.learns_from_replay
    channels = _replay_channels(parts) if replays else _rollout_channels(parts, capabilities)
    copy = replace(channels[FRAGMENTS], borrow=1)
    channels |= {copies_for(role): copy for role in parts.config.roles}
    model = parts.model()
    slots = {POLICY: policy_layout(model.parameter_count).nbytes}
    if distribution.groups > 1:
        values = _values_to_average(parts, model)
        channels[CONTRIBUTIONS] = ChannelSize(contribution_layout(values).nbytes)
        slots[AVERAGE] = average_layout(values, distribution.groups).nbytes
    return graph_of(parts.config).wiring(parts.job.id, parts.job.plan, channels, slots)


def window_of_all(parts: Parts) -> int:
    """Fragments that all actors of a group together may have pushed and unclaimed."""
    return parts.config.window * sum(len(numbers) for numbers in parts.actors.values())


def lends_rollouts(parts: Parts, capabilities: Capabilities) -> bool:
    """Whether the engine lends all fragments that a store of rollouts holds: it keeps claims, not copies."""
    return _lends(capabilities, _rollout_slots(parts))


def rollout_shards(parts: Parts, capabilities: Capabilities) -> ChannelSize:
    """A follower's fragments of a rollout, all claimed at once where the engine lends as many."""
    fragments = parts.config.fragments_per_rollout // parts.config.distribution.learner.num
    borrow = fragments if _lends(capabilities, fragments) else 1
    return ChannelSize(parts.layout.nbytes, fragments, borrow)


def _rollout_channels(parts: Parts, capabilities: Capabilities) -> dict[str, ChannelSize]:
    borrow = _rollout_slots(parts) if lends_rollouts(parts, capabilities) else 1
    channels = {FRAGMENTS: ChannelSize(parts.layout.nbytes, parts.config.window, borrow)}
    if parts.config.distribution.learner.num > 1:
        channels |= {HEADERS: ChannelSize(LAYOUT.nbytes), SHARDS: rollout_shards(parts, capabilities)}
    return channels


def _replay_channels(parts: Parts) -> dict[str, ChannelSize]:
    distribution = parts.config.distribution
    batches, shard = parts.batches(), parts.batches(distribution.learner.num)
    channels = {FRAGMENTS: ChannelSize(parts.layout.nbytes, parts.config.window)}
    if distribution.learner.num > 1:
        channels |= {HEADERS: ChannelSize(LAYOUT.nbytes), SHARDS: ChannelSize(shard.nbytes)}
        channels[PRIORITIES] = ChannelSize(priorities_layout(shard.size).nbytes)
    if not distribution.buffer.colocate:
        channels |= {
            BATCHES: ChannelSize(batches.nbytes, BATCHES_AHEAD),
            ARRIVALS: ChannelSize(stats_layout(parts.config.fragment_steps).nbytes, ARRIVALS_AHEAD),
            PRIORITIES: ChannelSize(priorities_layout(batches.size).nbytes, BATCHES_AHEAD + 1),
        }
    return channels


def _rollout_slots(parts: Parts) -> int:
    config = parts.config
    return RolloutStore.slots_needed(
        config.fragments_per_rollout, window_of_all(parts), config.distribution.buffer.rollouts
    )


def _lends(capabilities: Capabilities, claims: int) -> bool:
    """Whether an engine lends so many claims at once."""
    return capabilities.lends and (capabilities.max_borrowed == 0 or claims <= capabilities.max_borrowed)


def _values_to_average(parts: Parts, model: Model) -> int:
    """Count what a group contributes: parameters and, if wanted, the optimiser's moments."""
    if not parts.config.distribution.sync_optimizer:
        return model.parameter_count
    moments = parts.embryo(model).averaged_state()
    return model.parameter_count + sum(tensor.numel() for tensor in moments)


def rollout_buffer(parts: Parts, transport: Transport) -> Buffer:
    """Build the buffer of a group whose learner learns from rollouts, beside it."""
    distribution = parts.config.distribution
    store = RolloutStore(
        parts.layout,
        parts.number,
        parts.actors,
        per_rollout=parts.config.fragments_per_rollout,
        window=window_of_all(parts),
        lends=lends_rollouts(parts, transport.capabilities),
        in_step=distribution.mode == "sync",
        rollouts=distribution.buffer.rollouts,
        seed=parts.seed("rollouts", parts.group),
    )
    return Buffer(transport, FRAGMENTS, store)


def rollout_source(
    parts: Parts, transport: Transport, embryo: Embryo, buffer: Buffer | None
) -> tuple[DataSource, Rounds | None]:
    """Build what the learner takes its part of rollouts from, and what scatters the rest to followers."""
    assert buffer is not None
    assert isinstance(buffer.store, RolloutStore)
    source = RolloutSource(cast("RolloutEmbryo", embryo), buffer.store, parts.config.distribution.learner.num)
    shards = rollout_shards(parts, transport.capabilities)
    scatter = _scatter(parts, transport, shards.window, shards.max_bytes)
    return source, None if scatter is None else RolloutRounds(scatter, source)


def replay_buffer(parts: Parts, transport: Transport) -> Buffer:
    """Build a group's replay and the buffer over it, filled if a replay was saved for this session.

    Raises:
        ReplayFileError: what was saved is damaged, or does not fit the config.
    """
    config, section = parts.config, parts.config.distribution.buffer
    replay = Replay(
        parts.layout,
        replay_settings(parts),
        agent_fields=_kept(parts),
        seed=parts.seed("replay", parts.group),
        directory=parts.job.directory,
        env_steps=parts.progress.env_steps,
    )
    learning = config.replay_settings
    limiter = RateLimiter(learning.replay_ratio, learning.warmup_steps, config.tolerance)
    keeper = None
    if section.save_with_checkpoint:
        place = checkpoints_of(parts.job.checkpoints, parts.group) / "replay"
        keeper = ReplayKeeper(replay, place, config.experiment.checkpoint_every_s)
        if parts.job.resumed and keeper.restore():
            limiter.warmup = max(0, limiter.warmup - replay.size)
    store = ReplayStore(parts.layout, parts.number, parts.actors, replay=replay, limiter=limiter)
    if section.colocate:
        return Buffer(transport, FRAGMENTS, store, keeper)
    (learner,) = parts.carrying("learner")
    return ReplayBuffer(
        transport,
        FRAGMENTS,
        store,
        learner=learner.rank,
        batches=parts.batches(),
        keeper=keeper,
        in_step=section.priority_updates == "sync",
    )


def replay_source(
    parts: Parts, transport: Transport, buffer: Buffer | None
) -> tuple[DataSource, Rounds | None]:
    """Build what the learner draws batches from, here or elsewhere, and what scatters them to followers."""
    config, section = parts.config, parts.config.distribution.buffer
    learning, batches = config.replay_settings, parts.batches()
    client: ReplayClient
    rounds: Rounds | None = None
    if not section.colocate:
        (process,) = parts.carrying("buffer")
        client = RemoteReplayClient(transport, process.rank, parts.number, batches, config.fragment_steps)
    else:
        assert buffer is not None
        assert isinstance(buffer.store, ReplayStore)
        shard = parts.batches(config.distribution.learner.num)
        scatter = _scatter(parts, transport, 1, shard.nbytes)
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
    )
    return source, rounds


def follower_source(parts: Parts, transport: Transport, embryo: Embryo) -> FollowerSource:
    """Build what a follower takes its shards from."""
    if parts.config.learns_from_replay:
        (learner,), distribution = parts.carrying("learner"), parts.config.distribution
        return ScatteredBatches(
            transport,
            parts.number,
            parts.batches(distribution.learner.num),
            learner.rank,
            prioritised=distribution.buffer.has_priorities,
        )
    shards = rollout_shards(parts, transport.capabilities)
    return ScatteredRollouts(
        transport,
        parts.number,
        cast("RolloutEmbryo", embryo),
        parts.layout,
        [number for numbers in parts.actors.values() for number in numbers],
        shards=shards.window,
        lends=shards.borrow == shards.window,
    )


def check_replay_memory(parts: Parts, buffers: int) -> None:
    """Make sure that one host can hold so many replays.

    Raises:
        ReplayMemoryError: it cannot; says how large they may be.
    """
    settings = replay_settings(parts)
    bytes_of(parts.layout, settings, _kept(parts)).place(settings, parts.job.directory, buffers)


def replay_settings(parts: Parts) -> ReplaySettings:
    """What a group's replay is to be like."""
    config, section = parts.config, parts.config.distribution.buffer
    transitions, steps = config.transition_settings, section.importance_steps
    return ReplaySettings(
        capacity=section.capacity,
        sampler=section.sampler,
        n_step=1 if transitions is None else transitions.n_step,
        gamma=1.0 if transitions is None else transitions.gamma,
        sequence_steps=config.sequence_steps,
        priority_exponent=section.priority_exponent,
        importance_exponent=section.importance_exponent,
        # Steps of the whole job: each group counts its own.
        importance_steps=None if steps is None else max(1, steps // config.distribution.groups),
        memory=section.memory,
    )


def _kept(parts: Parts) -> tuple[str, ...]:
    """Names of the agent's fields that the replay holds."""
    return tuple(field.name for field in parts.batches().fields)


def _scatter(parts: Parts, transport: Transport, shards: int, nbytes: int) -> Scatter | None:
    """Open the channels to the learner's followers; None if it has none."""
    ranks = [process.rank for process in parts.carrying("follower")]
    return Scatter(transport, ranks, parts.number, shards, nbytes) if ranks else None

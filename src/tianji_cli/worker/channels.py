"""Sizes of a job's channels and slots, which all processes derive alike, and the endpoint of a process."""

from __future__ import annotations

from typing import Final

from tianji_algos.core import Model
from tianji_cli.config.checks import fragments_held_between
from tianji_cli.config.edges import (
    ANSWERS,
    ARRIVALS,
    AVERAGE,
    BATCHES,
    CONTRIBUTIONS,
    FRAGMENTS,
    HEADERS,
    MEMBERS,
    POLICY,
    PRIORITIES,
    REQUESTS,
    SHARDS,
    TAKEOVERS,
    THROUGH_ROLES,
)
from tianji_cli.config.schema import BATCHES_AHEAD
from tianji_cli.plan.graph import ChannelSize, batches_to, fragments_to
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.roles.learner.parallel.member import StateMemory
from tianji_cli.roles.learner.parallel.scatter import LAYOUT as HEADERS_LAYOUT
from tianji_cli.wire.batches import priorities_layout
from tianji_cli.wire.fragment import stats_layout
from tianji_cli.wire.members import member_layout
from tianji_cli.wire.parameters import average_layout, contribution_layout, policy_layout
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.ports import all_of
from tianji_transports.composite import edge_capabilities, open_endpoint
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.wiring import Wiring

ARRIVALS_AHEAD: Final = 64
"""Window of ``ARRIVALS``: fragments whose stats may be on their way to a learner."""


def open_transport(builder: Builder, options: EngineOptions) -> Transport:
    """Open the endpoint of a process; ``options`` are the engine's options for other hosts."""
    plan = builder.job.plan
    wiring = wiring_of(builder, edge_capabilities(plan.local, plan.remote, plan.endpoints))
    rank, incarnation = builder.process.rank, builder.incarnation
    return open_endpoint(plan.local, plan.remote, plan.endpoints, wiring, rank, incarnation, options)


def wiring_of(builder: Builder, capabilities: Capabilities) -> Wiring:
    """Return the channels and slots of all groups, which are alike, over engines of these capabilities."""
    distribution, replays = builder.config.distribution, builder.config.learns_from_replay
    # Sizes of all that a group could have: the plan's edges decide which of these channels there are.
    channels = _replay_channels(builder) if replays else _rollout_channels(builder, capabilities)
    channels[HEADERS] = ChannelSize(HEADERS_LAYOUT.nbytes)
    for role, section in builder.config.roles.items():
        layout = builder.layouts.get(role, builder.layout)
        channels[fragments_to(role)] = ChannelSize(layout.nbytes, builder.config.window, 1 + section.holds)
    model = builder.model()
    slots = {POLICY: policy_layout(model.parameter_count).nbytes}
    if distribution.inference is not None:
        channels[REQUESTS] = ChannelSize(builder.passes.request.nbytes, window=1)
        channels[ANSWERS] = ChannelSize(builder.passes.answer.nbytes, window=distribution.actors_per_process)
    if builder.config.population is not None:
        size = ChannelSize(member_layout(StateMemory(builder.embryo(model)).nbytes).nbytes)
        channels |= {MEMBERS: size, TAKEOVERS: size}
    elif distribution.groups > 1:
        values = _values_to_average(builder, model)
        channels[CONTRIBUTIONS] = ChannelSize(contribution_layout(values).nbytes)
        slots[AVERAGE] = average_layout(values, distribution.groups).nbytes
    for name, edge in builder.config.graph.channels.items():
        if name not in THROUGH_ROLES:
            channels[name] = ChannelSize(builder.records[edge.record].nbytes, edge.window)
    for name, value in builder.config.graph.slots.items():
        slots[name] = builder.records[value.record].nbytes
    return builder.job.plan.wiring(builder.job.id, channels, slots)


def window_of_all(builder: Builder) -> int:
    """Return the fragments that may be on their way to what makes rollouts of them."""
    return _before_buffers(builder) + _sent_on(builder) * builder.config.distribution.buffer.num


def _before_buffers(builder: Builder) -> int:
    """Return the fragments that actors may have pushed and unclaimed, and that roles behind them may hold."""
    config = builder.config
    held = fragments_held_between(config.graph, config.roles, config.window)
    return config.window * len(all_of(builder.actors)) + held


def _sent_on(builder: Builder) -> int:
    """Return the fragments that a buffer apart may have sent on and unclaimed; 0 if none is apart.

    All that waits on its way should be no more than a rollout, since the rest would only grow stale.
    """
    config, buffer = builder.config, builder.config.distribution.buffer
    if buffer.colocate:
        return 0
    room = config.fragments_per_rollout - _before_buffers(builder)
    return max(1, min(config.window, room // buffer.num))


def lends_rollouts(builder: Builder, capabilities: Capabilities) -> bool:
    """Whether the engine lends all fragments of a rollout store, which then keeps claims, not copies."""
    return _lends(capabilities, _rollout_slots(builder))


def rollout_shards(builder: Builder, capabilities: Capabilities) -> ChannelSize:
    """Return the channel size of a follower's part of a rollout, claimed at once if the engine lends it."""
    fragments = builder.config.fragments_per_rollout // builder.config.distribution.learner.num
    borrow = fragments if _lends(capabilities, fragments) else 1
    return ChannelSize(builder.stored_layout.nbytes, fragments, borrow)


def _rollout_channels(builder: Builder, capabilities: Capabilities) -> dict[str, ChannelSize]:
    nbytes, colocate = builder.stored_layout.nbytes, builder.config.distribution.buffer.colocate
    borrow = _rollout_slots(builder) if lends_rollouts(builder, capabilities) else 1
    return {
        FRAGMENTS: ChannelSize(nbytes, builder.config.window, borrow if colocate else 1),
        BATCHES: ChannelSize(nbytes, _sent_on(builder), borrow),
        SHARDS: rollout_shards(builder, capabilities),
    }


def _replay_channels(builder: Builder) -> dict[str, ChannelSize]:
    config, shard = builder.config, builder.batches(builder.config.distribution.learner.num)
    ahead = ChannelSize(builder.batches().nbytes, BATCHES_AHEAD)
    arrivals = stats_layout(config.fragment_steps, len(config.environment.metrics))
    return {
        FRAGMENTS: ChannelSize(builder.stored_layout.nbytes, config.window),
        SHARDS: ChannelSize(shard.nbytes),
        **{batches_to(role): ahead for role in config.graph.path_of_batches[1:]},
        ARRIVALS: ChannelSize(arrivals.nbytes, ARRIVALS_AHEAD),
        PRIORITIES: ChannelSize(priorities_layout(shard.size).nbytes, BATCHES_AHEAD + 1),
    }


def _rollout_slots(builder: Builder) -> int:
    config = builder.config
    return RolloutStore.slots_needed(
        config.fragments_per_rollout, window_of_all(builder), config.distribution.buffer.rollouts
    )


def _lends(capabilities: Capabilities, claims: int) -> bool:
    """Whether an engine lends so many claims at once."""
    return capabilities.lends and (capabilities.max_borrowed == 0 or claims <= capabilities.max_borrowed)


def _values_to_average(builder: Builder, model: Model) -> int:
    """Count the values that a group contributes: parameters and, if configured, the optimiser's moments."""
    if not builder.config.distribution.sync_optimizer:
        return model.parameter_count
    moments = builder.embryo(model).averaged_state()
    return model.parameter_count + sum(tensor.numel() for tensor in moments)

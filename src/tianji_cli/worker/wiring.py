"""Channels and slots of a job, as large as its parts ask for, and the endpoint of a process."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tianji_algos.core import Model
from tianji_cli.config.schema import BATCHES_AHEAD
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
from tianji_cli.roles.buffer.rollout import RolloutStore
from tianji_cli.roles.learner.parallel.scatter import LAYOUT
from tianji_cli.wire.batches import priorities_layout
from tianji_cli.wire.fragment import stats_layout
from tianji_cli.wire.parameters import average_layout, contribution_layout, policy_layout
from tianji_cli.worker.parts import Parts
from tianji_transports.composite import edge_capabilities, open_endpoint
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.wiring import Wiring

ARRIVALS_AHEAD: Final = 64
"""Fragments whose arrival a learner may have yet to hear of."""


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

"""Channels between the roles of a job, and the slots that they read: built in and the config's. Plain data.

Edges connect roles, not processes: ``fragments`` goes from actors to the buffer, whatever their number. Edges
are inside a group; only the root is outside of all groups. ``Plan.wiring`` turns them into the ``Wiring``
that every endpoint of a job is built from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Final

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
from tianji_cli.config.schema import Graph, JobConfig, Route

ROOT: Final = "root"
EXAMINER: Final = "examiner"
INFERENCE: Final = "inference"


@dataclass(frozen=True)
class ChannelEdge:
    """A stream from all processes that carry some roles to those that carry others.

    Attributes:
        name: unique among the channels of a receiver.
        drained: it carries samples, or news of them: the receivers stop after the senders, when they have
            claimed the last one.
        route: "all": each receiver gets every message; "share": each sender sends to one of the receivers;
            "credit": each message goes to one of them.
    """

    name: str
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    drained: bool = False
    route: Route = "all"

    @property
    def roles(self) -> Iterator[tuple[str, str]]:
        """Pairs of a role that sends and one that receives."""
        return product(self.senders, self.receivers)


@dataclass(frozen=True)
class SlotEdge:
    """A slot with the latest value of one role, which others read."""

    name: str
    writer: str
    readers: tuple[str, ...]


@dataclass(frozen=True)
class ChannelSize:
    """The size of a channel's memory.

    Attributes:
        max_bytes: size of the largest message.
        window: pushes that each sending role may have unclaimed; of fragments, ``JobConfig.window``.
        borrow: claims that the receiver may hold at once.
    """

    max_bytes: int
    window: int = 2
    borrow: int = 1


def edges_of(config: JobConfig) -> tuple[tuple[ChannelEdge, ...], tuple[SlotEdge, ...]]:
    """Return the channels and the slots of a job according to its config."""
    distribution, roles = config.distribution, config.roles
    channels = [
        ChannelEdge(fragments_to(receiver), senders, (receiver,), drained=True, route="share")
        for senders, receiver in _hops(config.graph)
    ]
    channels += [
        _edge(fragments_to(name), "actor", name, drained=True)
        for name, section in roles.items()
        if FRAGMENTS in section.receives
    ]
    prioritised = config.learns_from_replay and distribution.buffer.has_priorities
    if not distribution.buffer.colocate:
        channels += [
            _edge(batches_to(receiver), sender, receiver, drained=True)
            for sender, receiver in pairwise(config.graph.path_of_batches)
        ]
        if config.learns_from_replay:
            channels += [_edge(ARRIVALS, "buffer", "learner", drained=True)]
            channels += [_edge(PRIORITIES, "learner", "buffer")]
    if distribution.learner.num > 1:
        channels += [_edge(HEADERS, "learner", "follower"), _edge(SHARDS, "learner", "follower")]
        channels += [_edge(PRIORITIES, "follower", "learner")] if prioritised else []
    actor = "actor"
    if distribution.inference is not None:
        actor = INFERENCE  # It alone has policies, and the actors ask it.
        channels += [ChannelEdge(REQUESTS, ("actor",), (INFERENCE,), drained=True, route="share")]
        channels += [_edge(ANSWERS, INFERENCE, "actor")]
    readers = [actor, *(name for name, section in roles.items() if POLICY in section.reads)]
    readers += [EXAMINER] if config.experiment.evaluation is not None else []
    slots = [SlotEdge(POLICY, "learner", tuple(readers))]
    if config.population is not None:
        channels += [_edge(MEMBERS, "learner", ROOT), _edge(TAKEOVERS, ROOT, "learner")]
    elif distribution.groups > 1:
        channels += [_edge(CONTRIBUTIONS, "learner", ROOT)]
        slots += [SlotEdge(AVERAGE, ROOT, ("learner",))]
    channels += [
        ChannelEdge(name, senders, receivers, drained=True, route=channel.route)
        for name, channel in config.graph.channels.items()
        if name not in THROUGH_ROLES
        for senders, receivers in pairwise(channel.steps)
    ]
    slots += [SlotEdge(name, slot.writer, slot.readers) for name, slot in config.graph.slots.items()]
    return tuple(channels), tuple(slots)


def _hops(graph: Graph) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield who sends fragments to whom; roles that make fragments send them where actors do."""
    for sender, receiver in pairwise(graph.path_of_fragments):
        yield (sender, *graph.sources) if sender == "actor" else (sender,), receiver


def _edge(name: str, sender: str, receiver: str, *, drained: bool = False) -> ChannelEdge:
    return ChannelEdge(name, (sender,), (receiver,), drained)


def fragments_to(role: str) -> str:
    """Return the name of the channel that brings a role fragments, or copies of them."""
    return FRAGMENTS if role == "buffer" else f"{FRAGMENTS}-{role}"


def batches_to(role: str) -> str:
    """Return the name of the channel that brings a role batches."""
    return BATCHES if role == "learner" else f"{BATCHES}-{role}"


def slot_name(name: str, group: int | None) -> str:
    """Return the name of a slot in the wiring: a group's own, or the root's."""
    return name if group is None else f"{name}-{group}"

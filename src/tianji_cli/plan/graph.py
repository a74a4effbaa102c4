"""Roles, the channels between them and the slots that they read. Plain data.

A graph connects roles, not processes: ``fragments`` goes from actors to the buffer, whatever their number.
Edges are inside a group; only the root is outside of all groups. With a plan the graph becomes the ``Wiring``
that every endpoint of a job is built from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.plan.plan import EXAMINER, ROOT_RANK, Plan, PlannedProcess
from tianji_transports.wiring import Channel, Slot, Wiring

ROOT: Final = "root"

FRAGMENTS: Final = "fragments"
"""Channel from the actors of a group to its buffer: one message a fragment."""

BATCHES: Final = "batches"
"""Channel from a buffer in a process of its own to the learner: one message a batch."""

ARRIVALS: Final = "arrivals"
"""Channel from a buffer in a process of its own to the learner: one message for each received fragment."""

PRIORITIES: Final = "priorities"
"""Channel to the role with the replay: one message for each used batch."""

HEADERS: Final = "headers"
"""Channel from the learner to its followers: one message for each round of updates."""

SHARDS: Final = "shards"
"""Channel from the learner to its followers: fragments or batches of a round."""

CONTRIBUTIONS: Final = "contributions"
"""Channel from the learners of all groups to the root: parameters to average."""

MEMBERS: Final = "members"
"""Channel from the learners of a population to the root: states of the members, to compare."""

TAKEOVERS: Final = "takeovers"
"""Channel from the root to each learner of a population: the state that it goes on with."""

POLICY: Final = "policy"
"""Slot of a group's newest policy."""

AVERAGE: Final = "average"
"""Slot of the newest average over all groups."""


@dataclass(frozen=True)
class ChannelEdge:
    """A stream from all processes that carry one role to each process that carries another.

    Its name is unique among the channels of the receiver.
    """

    name: str
    sender: str
    receiver: str


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
        window: pushes that each sending role may have unclaimed.
        borrow: claims that the receiver may hold at once.
    """

    max_bytes: int
    window: int = 2
    borrow: int = 1


@dataclass(frozen=True)
class RoleGraph:
    """All edges of a job."""

    channels: tuple[ChannelEdge, ...]
    slots: tuple[SlotEdge, ...]

    def neighbours(self, plan: Plan) -> Mapping[int, Set[int]]:
        """Return the ranks that each rank shares an edge with, in either direction."""
        found: dict[int, set[int]] = {process.rank: set() for process in plan.processes}
        pairs = [(edge.sender, edge.receiver) for edge in self.channels]
        pairs += [(edge.writer, reader) for edge in self.slots for reader in edge.readers]
        for one, other in pairs:
            for group in plan.groups:
                ones, others = (
                    [process.rank for process in _carrying(role, plan, group)] for role in (one, other)
                )
                for rank in ones:
                    found[rank].update(others)
                for rank in others:
                    found[rank].update(ones)
        return found

    def producers(self, plan: Plan) -> Set[int]:
        """Return the ranks of processes that send and receive nothing, such as actors without a learner."""
        senders = {edge.sender for edge in self.channels}
        receivers = {edge.receiver for edge in self.channels}
        return {
            process.rank
            for process in plan.trainers
            if senders.intersection(process.roles) and receivers.isdisjoint(process.roles)
        }

    def wiring(
        self,
        job: str,
        plan: Plan,
        channels: Mapping[str, ChannelSize],
        slots: Mapping[str, int],
    ) -> Wiring:
        """Return the channels and slots between ranks; ``slots`` has the bytes of each slot's value."""
        groups = plan.groups
        streams = [
            stream
            for edge in self.channels
            for group in (groups if edge.receiver != ROOT else (None,))
            for stream in _channels(edge, plan, group, channels[edge.name])
        ]
        values = [
            _slot(edge, plan, group, slots[edge.name])
            for edge in self.slots
            for group in (groups if edge.writer != ROOT else (None,))
        ]
        return Wiring(job, tuple(streams), tuple(values))


def graph_of(config: JobConfig) -> RoleGraph:
    """Connect the roles of a job according to its config."""
    distribution, roles = config.distribution, config.roles
    channels = [ChannelEdge(FRAGMENTS, "actor", "buffer")]
    channels += [
        ChannelEdge(copies_for(name), "actor", name)
        for name, section in roles.items()
        if FRAGMENTS in section.receives
    ]
    prioritised = config.learns_from_replay and distribution.buffer.has_priorities
    if not distribution.buffer.colocate:
        channels += [ChannelEdge(BATCHES, "buffer", "learner"), ChannelEdge(ARRIVALS, "buffer", "learner")]
        channels += [ChannelEdge(PRIORITIES, "learner", "buffer")]
    if distribution.learner.num > 1:
        channels += [ChannelEdge(HEADERS, "learner", "follower"), ChannelEdge(SHARDS, "learner", "follower")]
        channels += [ChannelEdge(PRIORITIES, "follower", "learner")] if prioritised else []
    readers = ["actor", *(name for name, section in roles.items() if POLICY in section.reads)]
    readers += [EXAMINER] if config.experiment.evaluation is not None else []
    slots = [SlotEdge(POLICY, "learner", tuple(readers))]
    if config.population is not None:
        channels += [ChannelEdge(MEMBERS, "learner", ROOT), ChannelEdge(TAKEOVERS, ROOT, "learner")]
    elif distribution.groups > 1:
        channels += [ChannelEdge(CONTRIBUTIONS, "learner", ROOT)]
        slots += [SlotEdge(AVERAGE, ROOT, ("learner",))]
    return RoleGraph(tuple(channels), tuple(slots))


def copies_for(role: str) -> str:
    """Return the name of the channel that brings a user role a copy of every fragment."""
    return f"{FRAGMENTS}-{role}"


def slot_name(name: str, group: int | None) -> str:
    """Return the name of a slot in the wiring: a group's own, or the root's."""
    return name if group is None else f"{name}-{group}"


def _channels(edge: ChannelEdge, plan: Plan, group: int | None, size: ChannelSize) -> list[Channel]:
    senders = _carrying(edge.sender, plan, group)
    if not senders:
        return []  # `tianji profile` measures a learner without the others.
    per_process = max(process.roles.count(edge.sender) for process in senders)
    ranks = tuple(process.rank for process in senders)
    return [
        Channel(edge.name, receiver.rank, ranks, size.max_bytes, size.window * per_process, size.borrow)
        for receiver in _carrying(edge.receiver, plan, group)
    ]


def _slot(edge: SlotEdge, plan: Plan, group: int | None, nbytes: int) -> Slot:
    (writer,) = _carrying(edge.writer, plan, group)
    readers = {process.rank for role in edge.readers for process in _carrying(role, plan, group)}
    return Slot(slot_name(edge.name, group), writer.rank, tuple(sorted(readers)), nbytes)


def _carrying(role: str, plan: Plan, group: int | None) -> Sequence[PlannedProcess]:
    """Return the processes that carry a role in a group, or in all groups."""
    if role == ROOT:
        return (plan.processes[ROOT_RANK],)
    if role == EXAMINER:
        return plan.carrying(role)  # The examiner reads the policies of all groups.
    return plan.carrying(role, group)

"""The ends of a role's channels and slots of ``[graph]``, for the process that carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain

from tianji_cli.config.edges import BATCHES, FRAGMENTS, THROUGH_ROLES
from tianji_cli.config.schema import ChannelSection
from tianji_cli.files.counters import ProductionFile, ProductionPage
from tianji_cli.plan.graph import batches_to, fragments_to, slot_name
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.roles.records import (
    BatchInlet,
    BatchOutlet,
    CreditOutlet,
    FragmentInlet,
    FragmentOutlet,
    Ports,
    RecordInlet,
    RecordOutlet,
    SlotReader,
    SlotWriter,
    SourceOutlet,
)
from tianji_cli.wire.parameters import PublishedPolicy
from tianji_cli.wire.records import Record
from tianji_cli.wire.reports import Rejected
from tianji_cli.worker.builder import Builder
from tianji_transports.core import Transport
from tianji_transports.wiring import Wiring


def ports_of(
    builder: Builder, transport: Transport, counters: ProductionFile, role: str, rejected: Rejected
) -> Ports:
    """Open the ends of a role's channels and slots; messages that do not belong there count as rejected."""
    graph, plan, ports = builder.config.graph, builder.job.plan, Ports({}, {}, {}, {})
    _add_fragments(ports, builder, transport, counters, role, rejected)
    if role in graph.path_of_batches:
        _add_batches(ports, builder, transport, role, rejected)
    for name, channel in graph.channels.items():
        if name not in THROUGH_ROLES:
            _add_records(ports, builder, transport, role, rejected, name, channel)
    for slot in plan.slots:
        where = slot_name(slot.name, None if slot.writer in plan.of_job else builder.group)
        own = graph.slots.get(slot.name)
        layout = None if own is None else builder.records[own.record]
        if layout is not None and role == slot.writer:
            ports.writers[slot.name] = SlotWriter(transport, where, layout, builder.number)
        if role in slot.readers:
            record = PublishedPolicy if layout is None else partial(Record, layout)
            ports.readers[slot.name] = SlotReader(transport, where, record)
    return ports


def _add_fragments(
    ports: Ports,
    builder: Builder,
    transport: Transport,
    counters: ProductionFile,
    role: str,
    rejected: Rejected,
) -> None:
    """Add the ends of the path of fragments, and the copies that a role receives."""
    graph, plan, job, rank = builder.config.graph, builder.job.plan, builder.number, builder.process.rank
    path, own = graph.path_of_fragments, fragments_to(role)
    is_source, is_between = role in graph.sources, role in path
    # Copies are counted nowhere; a process with actors, too, has pages of theirs.
    of_rank = {number: page for (writer, number), page in plan.pages.items() if writer == rank}
    counted = is_source or is_between
    pages = {number: ProductionPage(counters, page) for number, page in of_rank.items() if counted}
    if any(edge.name == own for edge in plan.channels):
        layout = builder.layouts.get(role, builder.layout)
        validator = FragmentValidator(layout, job, actors_before(builder, transport.wiring, role))
        validator.rejected = rejected
        holds = builder.config.roles[role].holds
        inlet = FragmentInlet(transport, own, layout, validator, pages, holds)
        ports.inlets[FRAGMENTS if is_between else own] = inlet
    if not is_source and not is_between:
        return
    receiver = path[1] if is_source else path[path.index(role) + 1]
    channel, layout = fragments_to(receiver), builder.layouts[receiver]
    receivers = receivers_of(transport.wiring, channel, rank)
    if is_source:
        ((number, page),) = pages.items()
        ports.outlets[FRAGMENTS] = SourceOutlet(transport, channel, layout, receivers, job, number, page)
    else:
        ports.outlets[FRAGMENTS] = FragmentOutlet(transport, channel, layout, receivers, job)


def _add_batches(ports: Ports, builder: Builder, transport: Transport, role: str, rejected: Rejected) -> None:
    path, layout = builder.config.graph.path_of_batches, builder.batches().record
    to = batches_to(path[path.index(role) + 1])
    receivers = receivers_of(transport.wiring, to, builder.process.rank)
    ports.inlets[BATCHES] = BatchInlet(transport, batches_to(role), layout, builder.number, rejected)
    ports.outlets[BATCHES] = BatchOutlet(transport, to, layout, receivers)


def _add_records(
    ports: Ports,
    builder: Builder,
    transport: Transport,
    role: str,
    rejected: Rejected,
    name: str,
    channel: ChannelSection,
) -> None:
    layout, job, by_credit = builder.records[channel.record], builder.number, channel.route == "credit"
    if any(role in step for step in channel.steps[1:]):
        ports.inlets[name] = RecordInlet(transport, name, layout, job, rejected, gets_all=not by_credit)
    if receivers := receivers_of(transport.wiring, name, builder.process.rank):
        outlet = CreditOutlet if by_credit else RecordOutlet
        ports.outlets[name] = outlet(transport, name, layout, receivers, job)


def receivers_of(wiring: Wiring, channel: str, sender: int) -> list[int]:
    """Return the ranks that a rank sends to over a channel."""
    return [one.receiver for one in wiring.channels if one.name == channel and sender in one.senders]


def actors_before(
    builder: Builder, wiring: Wiring, role: str, rank: int | None = None
) -> dict[int, Sequence[int]]:
    """Return the numbers of the actors whose fragments come to a role here, by the rank that sends them.

    Fragments of a source carry a number of its process, in place of an actor's.
    """
    path, plan = builder.config.graph.path_of_fragments, builder.job.plan
    before = path[path.index(role) - 1] if role in path else "actor"
    channel = wiring.channel(fragments_to(role), builder.process.rank if rank is None else rank)
    return {
        sender: plan.processes[sender].actors or (plan.source_number(sender),)
        if before == "actor"
        else all_of(actors_before(builder, wiring, before, sender))
        for sender in channel.senders
    }


def all_of(actors: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return the numbers of all actors, from those of each rank."""
    return tuple(chain.from_iterable(actors.values()))

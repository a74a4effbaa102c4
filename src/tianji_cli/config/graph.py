"""Rules for the channels and slots of ``[graph]``: every message arrives, and no role waits for itself.

Roles of one's own are connected with one another here. Built-in roles have channels of their own: a role gets
copies of ``fragments`` by ``receives``, and looks at ``policy`` by ``reads``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from tianji_cli.config.schema import Distribution, Graph, UserRoleSection
from tianji_cli.config.source import Conflict
from tianji_plugins import did_you_mean

RESERVED: Final = (
    "fragments", "batches", "arrivals", "priorities", "headers", "shards", "contributions", "members",
    "takeovers", "policy", "average",
)  # fmt: skip
"""Names of built-in channels and slots."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


def _edges_are_named(graph: Graph) -> Iterator[Conflict]:
    """A channel or slot has a name of its own: it is part of what engines open."""
    for kind, names in (("channels", graph.channels), ("slots", graph.slots)):
        for name in names:
            key = [f"graph.{kind}.{name}"]
            if name in RESERVED:
                yield Conflict(key, f"{name!r} is built in", "call yours otherwise")
            elif _NAME.fullmatch(name) is None:
                remedy = "1 to 32 letters, digits and '_' do, beginning with a letter"
                yield Conflict(key, f"{name!r} is no name for it", remedy)


def _roles_exist(graph: Graph, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """The graph connects roles of the config."""
    named = {f"graph.channels.{name}.path": sum(edge.steps, ()) for name, edge in graph.channels.items()}
    named |= {f"graph.slots.{name}.writer": (edge.writer,) for name, edge in graph.slots.items()}
    named |= {f"graph.slots.{name}.readers": edge.readers for name, edge in graph.slots.items()}
    for key, names in named.items():
        for name in dict.fromkeys(names):
            if name not in roles:
                remedy = did_you_mean(name, list(roles), "roles of your own") if roles else "add [roles.NAME]"
                yield Conflict([key], f"there is no [roles.{name}]", remedy)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            yield Conflict([key], f"{twice!r} stands there twice", "name it once")


def _no_role_waits_for_itself(graph: Graph) -> Iterator[Conflict]:
    """Channels go round in no circle: its windows could fill up, and every role in it would wait."""
    before: dict[str, set[str]] = {}
    for channel in graph.channels.values():
        for senders, receivers in pairwise(channel.steps):
            for receiver in receivers:
                before.setdefault(receiver, set()).update(senders)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as cause:
        circle = list(reversed(cause.args[1]))
        within = [
            f"graph.channels.{name}.path"
            for name, channel in graph.channels.items()
            if any(
                set(one) & set(circle) and set(other) & set(circle) for one, other in pairwise(channel.steps)
            )
        ]
        what = (
            f"{' -> '.join(circle)} is a circle: its windows could fill up, and each would wait for the next"
        )
        yield Conflict(within, what, "let one of them publish a slot instead, which waits for no reader")


def _every_process_has_a_part(
    graph: Graph, roles: Mapping[str, UserRoleSection], distribution: Distribution
) -> Iterator[Conflict]:
    """Each receiver of a shared channel has a sender, and each slot one writer."""
    for name, channel in graph.channels.items():
        for senders, receivers in pairwise(channel.steps):
            sending, receiving = (
                sum(roles[role].num for role in step if role in roles) for step in (senders, receivers)
            )
            if channel.route == "share" and receiving > sending:
                what = (
                    f"{receiving} of {', '.join(receivers)} share what {sending} of {', '.join(senders)} send"
                )
                keys = [f"graph.channels.{name}.route", *(f"roles.{role}.num" for role in receivers)]
                yield Conflict(keys, f"{what}: some would get nothing", "no more receivers than senders do")
    for name, slot in graph.slots.items():
        if slot.writer in roles and roles[slot.writer].num > 1:
            keys = [f"graph.slots.{name}.writer", f"roles.{slot.writer}.num"]
            yield Conflict(
                keys, f"{slot.writer!r} has {roles[slot.writer].num} processes", "one writes a slot"
            )
        if slot.writer in slot.readers:
            yield Conflict([f"graph.slots.{name}.readers"], f"{slot.writer!r} writes it", "leave it out")
    for role, section in roles.items():
        if section.num > 1 and distribution.one_process:
            what = 'transport "inproc" puts all roles of a group in one process, which has one of each'
            remedy = 'num = 1 or transport = "shm" would be right'
            yield Conflict([f"roles.{role}.num", "distribution.transport"], what, remedy)


RULES: Final = (_edges_are_named, _roles_exist, _no_role_waits_for_itself, _every_process_has_a_part)
"""Rules of the graph, as ``checks.RULES``."""

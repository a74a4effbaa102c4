"""Rules for the channels and slots of ``[graph]``: every message arrives, and no role waits for itself.

Roles of one's own are connected with one another here, and may stand between actors and the buffer, in the
path of ``fragments``. Built-in roles have channels of their own otherwise: a role gets copies of
``fragments`` by ``receives``, and looks at ``policy`` by ``reads``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from tianji_cli.config.schema import ChannelSection, Distribution, Graph, UserRoleSection
from tianji_cli.config.source import Conflict
from tianji_plugins import did_you_mean

FRAGMENTS: Final = "fragments"
RESERVED: Final = (
    FRAGMENTS, "batches", "arrivals", "priorities", "headers", "shards", "contributions", "members",
    "takeovers", "policy", "average",
)  # fmt: skip
"""Names of built-in channels and slots."""

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


def _edges_are_named(graph: Graph) -> Iterator[Conflict]:
    """A channel or slot has a name of its own: it is part of what engines open."""
    for kind, names in (("channels", graph.channels), ("slots", graph.slots)):
        for name in names:
            key = [f"graph.{kind}.{name}"]
            if name in RESERVED and (kind, name) != ("channels", FRAGMENTS):
                yield Conflict(key, f"{name!r} is built in", "choose another name")
            elif _NAME.fullmatch(name) is None:
                remedy = "1 to 32 letters, digits and '_' do, beginning with a letter"
                yield Conflict(key, f"{name!r} is not a valid name", remedy)


def _fragments_reach_the_buffer(graph: Graph, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """Fragments go from actors to the buffer, each by one way; other channels have records."""
    for name, channel in graph.channels.items():
        key = f"graph.channels.{name}"
        if name != FRAGMENTS:
            if not channel.record:
                yield Conflict([f"{key}.record"], "missing", 'for example record = "my_module:MyRecord"')
            continue
        if channel.record:
            yield Conflict(
                [f"{key}.record"], "the layout of fragments follows from the agent", "leave it out"
            )
        if channel.window != ChannelSection.model_fields["window"].default:
            yield Conflict([f"{key}.window"], "distribution.actor.window bounds fragments", "leave it out")
        ends = channel.steps[0], channel.steps[-1]
        if ends != (("actor",), ("buffer",)) or any(len(step) > 1 for step in channel.steps):
            what = "fragments go from actors to the buffer, by one role after another"
            yield Conflict([f"{key}.path"], what, 'path = ["actor", "my_role", "buffer"] would be right')
        for role in sum(channel.steps[1:-1], ()):
            if role in roles and FRAGMENTS in roles[role].receives:
                keys = [f"roles.{role}.receives", f"{key}.path"]
                yield Conflict(
                    keys, f"{role!r} gets every fragment of its actors by the path", "leave it out"
                )


def _roles_exist(graph: Graph, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """The graph connects roles of the config."""
    named = {
        f"graph.channels.{name}.path": sum(edge.steps[1:-1] if name == FRAGMENTS else edge.steps, ())
        for name, edge in graph.channels.items()
    }
    named |= {f"graph.slots.{name}.writer": (edge.writer,) for name, edge in graph.slots.items()}
    named |= {f"graph.slots.{name}.readers": edge.readers for name, edge in graph.slots.items()}
    for key, names in named.items():
        for name in dict.fromkeys(names):
            if name not in roles:
                remedy = did_you_mean(name, list(roles), "roles of your own") if roles else "add [roles.NAME]"
                yield Conflict([key], f"there is no [roles.{name}]", remedy)
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            yield Conflict([key], f"{twice!r} is named twice", "name it once")


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
    if graph.channels and distribution.one_process:
        what = 'transport "inproc" puts all roles of a group in one process, which cannot wait for itself'
        keys = [*(f"graph.channels.{name}" for name in graph.channels), "distribution.transport"]
        yield Conflict(keys, what, 'transport = "shm" would be right')
    built_in = {"actor": distribution.actor.num, "buffer": 1}
    for name, channel in graph.channels.items():
        for senders, receivers in pairwise(channel.steps):
            sending, receiving = (
                sum(roles[role].num if role in roles else built_in.get(role, 0) for role in step)
                for step in (senders, receivers)
            )
            if (channel.route == "share" or name == FRAGMENTS) and receiving > sending:
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


RULES: Final = (
    _edges_are_named,
    _fragments_reach_the_buffer,
    _roles_exist,
    _no_role_waits_for_itself,
    _every_process_has_a_part,
)
"""Rules of the graph, as ``checks.RULES``."""

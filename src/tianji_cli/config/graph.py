"""Rules for the channels and slots of ``[graph]``: every message arrives, and no role waits for itself.

Roles of one's own are connected with one another here, and may stand between actors and the buffer, in the
path of ``fragments``, or between buffer and learner, in that of ``batches``. Built-in roles have channels of
their own otherwise: a role gets copies of ``fragments`` by ``receives``, and reads ``policy`` by ``reads``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import Final

from tianji_cli.config.edges import BATCHES, FRAGMENTS, RESERVED, THROUGH_ROLES
from tianji_cli.config.schema import (
    ChannelSection,
    Distribution,
    Environment,
    Graph,
    Population,
    ReplayLearnerSettings,
    UserRoleSection,
    rows_of,
)
from tianji_cli.config.source import Conflict
from tianji_plugins import did_you_mean

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")


def _edges_are_named(graph: Graph) -> Iterator[Conflict]:
    """A channel or slot has a name of its own: it is part of what engines open."""
    for kind, names in (("channels", graph.channels), ("slots", graph.slots)):
        for name in names:
            key = [f"graph.{kind}.{name}"]
            if name in RESERVED and (kind == "slots" or name not in THROUGH_ROLES):
                yield Conflict(key, f"{name!r} is built in", "choose another name")
            elif _NAME.fullmatch(name) is None:
                remedy = "1 to 32 letters, digits and '_' do, beginning with a letter"
                yield Conflict(key, f"{name!r} is not a valid name", remedy)


def _channels_have_their_keys(graph: Graph) -> Iterator[Conflict]:
    """A channel of one's own has a record; what is in a built-in one, and how much, other keys say."""
    for name, channel in graph.channels.items():
        key = f"graph.channels.{name}"
        if name not in THROUGH_ROLES:
            if not channel.record:
                yield Conflict([f"{key}.record"], "missing", 'for example record = "my_module:MyRecord"')
            continue
        if channel.record:
            yield Conflict([f"{key}.record"], f"the layout of {name} follows from the agent", "leave it out")
        if channel.route == "credit":
            yield Conflict([f"{key}.route"], f"a learner needs {name} in their order", "leave it out")
        if channel.window != ChannelSection.model_fields["window"].default:
            what = (
                "distribution.actor.window bounds fragments" if name == FRAGMENTS else "two batches are ahead"
            )
            yield Conflict([f"{key}.window"], what, "leave it out")


def _batches_reach_the_learner(
    graph: Graph,
    distribution: Distribution,
    replay: ReplayLearnerSettings,  # noqa: ARG001 - the learner draws batches
) -> Iterator[Conflict]:
    """Batches go from a buffer in a process of its own to the learner, by one role after another."""
    if BATCHES not in graph.channels:
        return
    key, path = f"graph.channels.{BATCHES}.path", graph.path_of_batches
    if path[0] != "buffer" or path[-1] != "learner" or len(path) != len(graph.channels[BATCHES].path):
        what = "batches go from the buffer to the learner, by one role after another"
        yield Conflict([key], what, 'path = ["buffer", "my_role", "learner"] would be right')
    if distribution.buffer.colocate:
        what = "a buffer that takes turns with the learner sends it nothing"
        yield Conflict([key, "distribution.buffer.colocate"], what, "colocate = false would be right")
    if distribution.buffer.num > 1:
        what = "priorities go back to the buffer that has sent their batch"
        yield Conflict([key, "distribution.buffer.num"], what, "num = 1 would be right")


def _fragments_reach_the_buffer(graph: Graph, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """Fragments go from actors to the buffer, each by one way."""
    for name, channel in graph.channels.items():
        if name != FRAGMENTS:
            continue
        key = f"graph.channels.{name}"
        first, *others = channel.steps
        if "actor" not in first or others[-1] != ("buffer",) or any(len(step) > 1 for step in others):
            what = "fragments go from actors to the buffer, by one role after another"
            yield Conflict([f"{key}.path"], what, 'path = ["actor", "my_role", "buffer"] would be right')
        for role in sum(others[:-1], ()):
            if role in roles and FRAGMENTS in roles[role].receives:
                keys = [f"roles.{role}.receives", f"{key}.path"]
                yield Conflict(
                    keys, f"{role!r} gets every fragment of its actors by the path", "leave it out"
                )


def _roles_exist(graph: Graph, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """The graph connects roles of the config."""
    named = {
        f"graph.channels.{name}.path": sum(edge.steps, ())
        for name, edge in graph.channels.items()
        if name not in THROUGH_ROLES
    }
    named[f"graph.channels.{BATCHES}.path"] = graph.path_of_batches[1:-1]
    named[f"graph.channels.{FRAGMENTS}.path"] = (*graph.sources, *graph.path_of_fragments[1:-1])
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


def _every_role_is_connected(graph: Graph, roles: Mapping[str, UserRoleSection]) -> Iterator[Conflict]:
    """No role is there without a channel or slot: it has no endpoint."""
    edges = [step for channel in graph.channels.values() for step in channel.steps]
    edges += [(slot.writer, *slot.readers) for slot in graph.slots.values()]
    connected = {role for edge in edges for role in edge}
    for name, section in roles.items():
        if name not in connected and not section.receives and not section.reads:
            remedy = 'receives = ["fragments"], reads = ["policy"] or a channel of [graph] would be right'
            yield Conflict([f"roles.{name}"], "it is connected with no other role", remedy)


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
    built_in = {"actor": distribution.actor_processes, "buffer": distribution.buffer.num, "learner": 1}
    for name, channel in graph.channels.items():
        for senders, receivers in pairwise(channel.steps):
            sending, receiving = (
                sum(roles[role].num if role in roles else built_in.get(role, 0) for role in step)
                for step in (senders, receivers)
            )
            if (channel.route == "share" or name in THROUGH_ROLES) and receiving > sending:
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


def _each_source_has_a_table(
    graph: Graph,
    roles: Mapping[str, UserRoleSection],
    distribution: Distribution,
    replay: ReplayLearnerSettings,
) -> Iterator[Conflict]:
    """A role that makes fragments has a table, since actors' samples would push its out, and batches both."""
    tables, path = distribution.buffer.tables, f"graph.channels.{FRAGMENTS}.path"
    for role in set(graph.sources) - tables.keys():
        table = f"distribution.buffer.tables.{role}"
        yield Conflict([path, table], f"{role!r} makes fragments and has no table", f"[{table}] share = 0.5")
    for role in tables.keys() - set(graph.sources):
        keys = [f"distribution.buffer.tables.{role}", path]
        remedy = f'path = [["actor", "{role}"], "buffer"] would be right'
        yield Conflict(keys, f"{role!r} makes no fragments", remedy)
    if not tables:
        return
    keys, rows = (
        [f"distribution.buffer.tables.{role}.share" for role in tables],
        rows_of(replay.batch_size, tables),
    )
    if min(rows) < 1:
        what = f"of a batch of {replay.batch_size}, {rows[0]} samples are actors' and {rows[1:]} the tables'"
        yield Conflict([*keys, "training.batch_size"], what, "at least one of each would be right")
    if distribution.mode == "sync":
        what = "in step, batches depend on the moment when a role's fragments come"
        yield Conflict(["distribution.mode", path], what, 'mode = "async" would be right')
    first = graph.path_of_fragments[1]
    receiving = roles[first].num if first in roles else distribution.buffer.num
    for role in tables:
        if distribution.buffer.num > 1 and role in roles and roles[role].num < receiving:
            what = f"{receiving} of {first} share what {roles[role].num} of {role} send: a table stays empty"
            keys = [f"roles.{role}.num", "distribution.buffer.num"]
            yield Conflict(keys, what, f"roles.{role}.num = {receiving} would be right")


def _rollouts_come_from_actors(
    graph: Graph,
    rollout_steps: int,  # noqa: ARG001 - the learner trains on rollouts
) -> Iterator[Conflict]:
    """A rollout has steps of the newest policies alone, and is in no message."""
    if BATCHES in graph.channels:
        what = "the learner makes minibatches of its rollouts itself"
        yield Conflict([f"graph.channels.{BATCHES}", "agent.type"], what, "leave it out")
    if graph.sources:
        what = f"{', '.join(graph.sources)} makes fragments, and rollouts are made of actors' alone"
        remedy = 'an agent with a replay, such as "dqn" or "sac", would be right'
        yield Conflict([f"graph.channels.{FRAGMENTS}.path", "agent.type"], what, remedy)


def _no_version_is_held_back(
    graph: Graph,
    roles: Mapping[str, UserRoleSection],
    distribution: Distribution,
    environment: Environment,
    rollout_steps: int,
) -> Iterator[Conflict]:
    """In step, roles that gather fragments do not wait for more than actors make.

    What is in a window goes on by itself. So windows hold no version back, and do not count.
    """
    gathering = [role for role in graph.path_of_fragments if role in roles and roles[role].holds]
    held = sum(roles[role].num * roles[role].holds for role in gathering)
    made = rollout_steps // (distribution.actor.send_size * environment.num_envs)
    if distribution.mode == "sync" and gathering and held >= made:
        what = f"{', '.join(gathering)} may hold {held} fragments until others come, and actors make {made}"
        keys = ["distribution.mode", f"graph.channels.{FRAGMENTS}.path", "training.rollout_steps"]
        yield Conflict(keys, f"{what} for a version", 'mode = "async" would be right')


def _roles_of_the_job_belong_to_no_group(
    graph: Graph,
    roles: Mapping[str, UserRoleSection],
    distribution: Distribution,
    population: Population | None = None,
) -> Iterator[Conflict]:
    """A role for all groups has channels and slots of its own, and no part in those of one group."""
    of_job = {name for name, section in roles.items() if section.per == "job"}
    for name in of_job:
        keys = [f"roles.{name}.per"]
        if distribution.one_process:
            what = 'transport "inproc" puts all roles of a group in one process'
            yield Conflict([*keys, "distribution.transport"], what, 'transport = "shm" would be right')
        if population is not None:
            what = "a member of a population may be replaced with all its roles"
            yield Conflict([*keys, "population"], what, 'per = "group" would be right')
        if roles[name].reads and distribution.groups > 1:
            what = f"there are {distribution.groups} policies, one of each group"
            yield Conflict([*keys, f"roles.{name}.reads"], what, 'per = "group" would be right')
        if name in (*graph.path_of_fragments, *graph.sources, *graph.path_of_batches):
            path = f"graph.channels.{BATCHES if name in graph.path_of_batches else FRAGMENTS}.path"
            what = "fragments and batches stay in their group"
            yield Conflict([*keys, path], what, 'per = "group" would be right')
    for name, channel in graph.channels.items():
        for step in channel.steps:
            if of_job & {*step} and not of_job >= {*step}:
                what = f"of {', '.join(step)} some are of a group and some of the job"
                yield Conflict([f"graph.channels.{name}.path"], what, "two channels would be right")
    for name, slot in graph.slots.items():
        if slot.writer not in of_job and of_job & {*slot.readers} and distribution.groups > 1:
            keys, what = [f"graph.slots.{name}.readers"], f"each group has a {slot.writer!r} and a slot of it"
            yield Conflict(keys, what, "a channel, which brings the records of all, would be right")


RULES: Final = (
    _every_role_is_connected,
    _channels_have_their_keys,
    _batches_reach_the_learner,
    _roles_of_the_job_belong_to_no_group,
    _rollouts_come_from_actors,
    _no_version_is_held_back,
    _each_source_has_a_table,
    _edges_are_named,
    _fragments_reach_the_buffer,
    _roles_exist,
    _no_role_waits_for_itself,
    _every_process_has_a_part,
)
"""Rules of the graph, as ``checks.RULES``."""

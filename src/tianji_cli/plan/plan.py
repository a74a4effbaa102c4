"""The plan of a job: roles, host and cores of each process, and who is connected to whom. Pure data.

Rank 0 is the root. Then come, for each group, the learner with its buffer, its followers, user roles,
inference where it is apart, and the actors; then the examiner, which evaluates during training, and last the
evaluator, which starts when training is over. The examiner belongs to the first group. Buffers that are not
colocated have the ranks before their learner's. With ``transport = "inproc"`` all roles of a group share one
process.

Groups take turns over the hosts, so that a group's traffic stays on its host as long as there are as many
groups as hosts. With more hosts than groups, a group has several: its learner is on the first of them, and
its actors are spread in blocks, by the cores that are left. So are several buffers, each with a block of the
actors, and several processes of a user role. A config may name the hosts of groups and roles, and the cores
that a role's processes share out on each host; other roles get the cores that are not named.
"""

from __future__ import annotations

import heapq
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property, partial
from itertools import chain, count, cycle, islice, product
from typing import Final

from tianji_cli.config.schema import Inference, JobConfig, UserRoleSection, section_key
from tianji_cli.errors import UsageError
from tianji_cli.limits import usable_cores
from tianji_cli.plan.graph import (
    EXAMINER,
    INFERENCE,
    ROOT,
    ChannelEdge,
    ChannelSize,
    SlotEdge,
    edges_of,
    fragments_to,
    slot_name,
)
from tianji_cli.quantities import several
from tianji_transports.wiring import Channel, Slot, Wiring

ROOT_RANK: Final = 0

MOST_TITLES: Final = 3
"""Most processes that one line names."""


@dataclass(frozen=True)
class Host:
    """A host that processes of a job can run on.

    Attributes:
        name: unique in the job.
        cores: logical CPUs to pin to; empty leaves the scheduler alone.
        is_there: False for one that may join, whose cores are those of the root's host until then.
    """

    name: str
    cores: tuple[int, ...] = ()
    is_there: bool = True


@dataclass(frozen=True)
class PlannedProcess:
    """One process of a job.

    Attributes:
        rank: number of the process in the job.
        roles: roles of the process, in the order of their turns.
        group: group of the roles; None for the root and the evaluator.
        host: name of the host.
        cores: logical CPUs that the process is pinned to; empty leaves it to the scheduler.
        threads: compute threads that the process may use.
        device: torch device of the learner or follower, or else of actor, inference, examiner or evaluator.
            "cuda:3" belongs to the fourth learner, or the fourth that acts, on its host; with fewer GPUs the
            numbers wrap around.
        actors: numbers of the actors among its roles; an actor's number is unique in the job.
        number: of a follower, or of another role that a group has several of; None if it is the only one.
    """

    rank: int
    roles: tuple[str, ...]
    group: int | None
    host: str
    cores: tuple[int, ...]
    threads: int
    device: str = "cpu"
    actors: tuple[int, ...] = ()
    number: int | None = None

    @property
    def only_acts(self) -> bool:
        """Whether it carries actors, and nothing else."""
        return set(self.roles) == {"actor"}

    @property
    def title(self) -> str:
        """Title of the process in ``ps`` and in messages: ``actor 3 (group 0)``."""
        group = "" if self.group is None else f" (group {self.group})"
        if self.only_acts and len(self.actors) > 1:
            return f"actors {' and '.join(map(str, self.actors))}{group}"
        own = next(iter(self.actors), None) if self.only_acts else self.number
        number = "" if own is None else f" {own}"
        names = list(dict.fromkeys(self.roles))
        return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names) + number + group


@dataclass(frozen=True)
class Plan:
    """All processes of a job, and the edges between their roles.

    Attributes:
        processes: all processes, by rank.
        local: engine of the edges inside a host.
        remote: engine of the edges between hosts.
        channels: channels between roles.
        slots: slots of roles.
        of_job: roles that belong to no group: there is one of each for all of them.
    """

    processes: tuple[PlannedProcess, ...]
    local: str
    remote: str
    channels: tuple[ChannelEdge, ...] = ()
    slots: tuple[SlotEdge, ...] = ()
    of_job: frozenset[str] = frozenset({ROOT, EXAMINER})

    @property
    def transport(self) -> str:
        """Engines that this plan uses: ``shm``, or ``shm+zmq`` inside and between hosts."""
        if len({process.host for process in self.trainers}) == 1:
            return self.local
        hosts = [
            {process.host for process in self.trainers if process.group == group} for group in self.groups
        ]
        # With several groups, each has an edge to the root.
        crossing = len(self.groups) > 1 or any(len(of_group) > 1 for of_group in hosts)
        engines = [self.local, self.remote] if crossing else [self.local]
        return "+".join(dict.fromkeys(engines))

    @property
    def hosts(self) -> Mapping[int, str]:
        """Host of each rank."""
        return {process.rank: process.host for process in self.processes}

    def carrying(self, role: str, group: int | None = None) -> tuple[PlannedProcess, ...]:
        """Return the processes that carry a role, by rank: those of a group, or all of them."""
        of_group = (process for process in self.processes if group is None or process.group == group)
        return tuple(process for process in of_group if role in process.roles)

    def titles(self, ranks: Iterable[int]) -> str:
        """Name some processes in a line: the first few, and the number of the others."""
        titles = [self.processes[rank].title for rank in sorted(ranks)]
        more = len(titles) - MOST_TITLES
        return ", ".join(titles[:MOST_TITLES]) + (f" and {more} more" if more > 0 else "")

    def is_local(self, rank: int) -> bool:
        """Whether a rank is on the root's host."""
        return self.processes[rank].host == self.processes[ROOT_RANK].host

    @property
    def trainers(self) -> tuple[PlannedProcess, ...]:
        """Processes that take part in training: all but the root and the evaluator."""
        return tuple(process for process in self.processes if process.group is not None)

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of the groups."""
        return tuple(sorted({process.group for process in self.processes if process.group is not None}))

    @property
    def endpoints(self) -> Mapping[int, str]:
        """Host of each rank with an endpoint: the trainers, and the root if there are several groups."""
        with_root = (self.processes[ROOT_RANK],) if len(self.groups) > 1 else ()
        return {process.rank: process.host for process in (*with_root, *self.trainers)}

    @property
    def num_actors(self) -> int:
        """Number of actors in the job."""
        return sum(len(process.actors) for process in self.processes)

    def source_number(self, rank: int) -> int:
        """Return the number that fragments of a role's own process carry, which is no actor's."""
        return self.num_actors + rank

    @cached_property
    def pages(self) -> Mapping[tuple[int, int], int]:
        """Number of the page in which a rank counts the samples of an actor, or source, by both numbers.

        An actor's own page has the actor's number. Roles before the buffers have a page for each actor and
        source whose fragments come to them, and a source has one for what it makes.
        """
        buffers = {process.rank for process in self.carrying("buffer")}
        before = set[int]().union(*map(self.upstream, buffers)) - buffers
        found = [(process.rank, actor) for process in self.processes for actor in process.actors]
        for rank in sorted(before - self.producers()):
            makers = sorted(one for one in {rank, *self.upstream(rank)} if not self.upstream(one))
            numbers = [self.processes[one].actors or (self.source_number(one),) for one in makers]
            found += [(rank, number) for number in chain.from_iterable(numbers)]
        return {key: page for page, key in enumerate(found)}

    def pages_of(self, rank: int) -> tuple[int, ...]:
        """Return the numbers of the pages that a rank writes."""
        return tuple(page for (writer, _), page in self.pages.items() if writer == rank)

    def connected(self, role: str, group: int | None) -> tuple[PlannedProcess, ...]:
        """Return the processes that carry an edge's role in a group; None stands for all groups."""
        return self.carrying(role, None if role in self.of_job else group)

    def neighbours(self) -> Mapping[int, Set[int]]:
        """Return the ranks that each rank shares an edge with, in either direction."""
        found: dict[int, set[int]] = {process.rank: set() for process in self.processes}
        pairs = [pair for edge in self.channels for pair in edge.roles]
        pairs += [(edge.writer, reader) for edge in self.slots for reader in edge.readers]
        for one, other in self._between(pairs):
            found[one].add(other)
            found[other].add(one)
        return found

    def to_notify(self, rank: int) -> Set[int]:
        """Return the ranks to notify when a rank has died and comes again: neighbours that send it nothing.

        Its senders wait for the next one, as they do for one that is slow.
        """
        sent = [pair for edge in self.channels for pair in edge.roles]
        senders = {one for one, other in self._between(sent) if other == rank}
        return self.neighbours()[rank] - senders

    def outlived(self) -> Mapping[int, Set[int]]:
        """Return the ranks that each rank outlives at the end, so that no sample is left behind.

        A process that neither sends samples nor gets any, such as a follower, stops with its learner.
        """
        found: dict[int, set[int]] = {process.rank: set() for process in self.processes}
        drained = [pair for edge in self.channels if edge.drained for pair in edge.roles]
        for sender, receiver in self._between(drained):
            if sender != receiver:
                found[receiver].add(sender)
        apart = {role for pair in drained for role in pair}
        for learner in self.carrying("learner"):
            for process in self.trainers:
                if process.group == learner.group and apart.isdisjoint(process.roles):
                    found[process.rank] |= found[learner.rank]
        return found

    def fragment_holders(self) -> Set[int]:
        """Return the ranks that fragments of actors come to: the buffers, and user roles before them."""
        buffers = {process.rank for process in self.carrying("buffer")}
        return buffers.union(*map(self.upstream, buffers)) - self.producers()

    def _between(self, roles: Iterable[tuple[str, str]]) -> Iterator[tuple[int, int]]:
        """Yield the pairs of ranks that carry two connected roles."""
        for (one, other), group in product(roles, self.groups):
            for process, peer in product(self.connected(one, group), self.connected(other, group)):
                yield process.rank, peer.rank

    def producers(self) -> Set[int]:
        """Return the ranks of actors in processes of their own, which receive no samples."""
        return {process.rank for process in self.processes if process.only_acts}

    def producers_on(self, host: str) -> Set[int]:
        """Return those of the ``producers`` that are on a host."""
        return {rank for rank in self.producers() if self.processes[rank].host == host}

    def pinned_to(self, host: Host) -> Plan:
        """Return the plan with a host's processes on the cores that the host has, if it has others."""
        planned = sorted(
            {core for process in self.processes if process.host == host.name for core in process.cores}
        )
        if {*planned} <= {*host.cores}:
            return self
        there = dict(zip(planned, cycle(host.cores), strict=False))  # Empty if its cores are unknown.
        processes = (
            replace(process, cores=tuple(sorted({there[core] for core in process.cores if there})))
            if process.host == host.name
            else process
            for process in self.processes
        )
        return replace(self, processes=tuple(processes))

    def wiring(self, job: str, channels: Mapping[str, ChannelSize], slots: Mapping[str, int]) -> Wiring:
        """Return the channels and slots between ranks; ``slots`` has the bytes of each slot's value."""
        streams = [
            stream
            for edge in self.channels
            for group in (self.groups if self.of_job.isdisjoint(edge.receivers) else (None,))
            for stream in self._streams(edge, group, channels[edge.name])
        ]
        values = [
            self._slot(edge, group, slots[edge.name])
            for edge in self.slots
            for group in (self.groups if edge.writer not in self.of_job else (None,))
        ]
        return Wiring(job, tuple(streams), tuple(values))

    def upstream(self, rank: int) -> set[int]:
        """Return the ranks whose fragments come to a rank: actors, and user roles between."""
        process, found = self.processes[rank], set[int]()
        for edge in self.channels:
            receiver = edge.receivers[0]
            if receiver in process.roles and edge.route == "share" and edge.name == fragments_to(receiver):
                found.update(self._senders(edge, process.group)[rank])
        return found.union(*map(self.upstream, found - {rank}))

    def _senders(self, edge: ChannelEdge, group: int | None) -> dict[int, tuple[int, ...]]:
        """Return the ranks that send to each receiver.

        Each gets a block of each role's processes, mostly of the same host; processes of a role that has
        fewer than there are receivers go to those with the fewest so far.
        """
        receivers = [process.rank for process in self._all_connected(edge.receivers, group)]
        if edge.route != "share":
            ranks = tuple(process.rank for process in self._all_connected(edge.senders, group))
            return dict.fromkeys(receivers, ranks)
        shares: dict[int, list[int]] = {rank: [] for rank in receivers}
        for role in edge.senders:
            processes = self.connected(role, group)
            for place, process in enumerate(processes, start=1):
                to = receivers[(place * len(receivers) - 1) // len(processes)]
                if len(processes) < len(receivers):
                    to = min(shares, key=lambda rank: len(shares[rank]))
                shares[to].append(process.rank)
        return {rank: tuple(sorted(share)) for rank, share in shares.items()}

    def _streams(self, edge: ChannelEdge, group: int | None, size: ChannelSize) -> list[Channel]:
        senders = self._all_connected(edge.senders, group)
        per_process = max(sum(map(process.roles.count, edge.senders)) for process in senders)
        sizes = size.max_bytes, size.window * per_process, size.borrow
        return [
            Channel(edge.name, receiver, ranks, *sizes)
            for receiver, ranks in self._senders(edge, group).items()
        ]

    def _all_connected(self, roles: Iterable[str], group: int | None) -> list[PlannedProcess]:
        found = {process.rank: process for role in roles for process in self.connected(role, group)}
        return [found[rank] for rank in sorted(found)]

    def _slot(self, edge: SlotEdge, group: int | None, nbytes: int) -> Slot:
        (writer,) = self.connected(edge.writer, group)
        readers = {process.rank for role in edge.readers for process in self.connected(role, group)}
        return Slot(slot_name(edge.name, group), writer.rank, tuple(sorted(readers)), nbytes)


def this_host() -> Host:
    """Describe this host: its name (Slurm's name, under Slurm) and the cores that this process may use."""
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    return Host(name, usable_cores())


def expected_hosts(config: JobConfig, present: Sequence[Host] = ()) -> tuple[Host, ...]:
    """Describe the hosts of a job, those that have not joined yet as if they were like this one.

    Args:
        present: hosts that are there, the root's first; this one alone by default.
    """
    present = present or [this_host()]
    taken, hosts = {host.name for host in present}, config.distribution.hosts
    # Hosts that are named and not there are those that will join, if training waits for them.
    named = list(islice(_named_elsewhere(config, taken), max(0, hosts.min - len(present))))
    names = (name for number in count(len(present) + len(named)) if (name := f"host-{number}") not in taken)
    others = islice(chain(named, names), hosts.max - len(present))
    return (*present, *(Host(name, present[0].cores, is_there=False) for name in others))


def _named_elsewhere(config: JobConfig, taken: Set[str]) -> Iterator[str]:
    """Yield the names of hosts in a config that no host in ``taken`` has, those that are whole first."""
    sections = config.distribution.placed(config.roles).values()
    patterns = dict.fromkeys(chain(config.distribution.group_hosts, *(section.hosts for section in sections)))
    known = [*taken]
    for pattern in sorted(patterns, key=lambda pattern: any(sign in pattern for sign in "*?[")):
        if not (_is_seat(pattern) or any(fnmatchcase(name, pattern) for name in known)):
            known.append(pattern)
            yield pattern


def _is_seat(pattern: str) -> bool:
    """Whether a pattern means seats, such as ``host-1``, and not the names of hosts."""
    return pattern.startswith("host-")


def make_plan(config: JobConfig, hosts: Sequence[Host] | None = None) -> Plan:
    """Place every role of a job on hosts, the root's host first; on this host alone by default.

    Raises:
        UsageError: a group would have no actor before further hosts join, or a host or core that the config
            names is not there.
    """
    hosts = hosts or [this_host()]
    plan = _Planner(config, hosts).plan()
    seats = config.distribution.hosts
    first = {host.name for host in hosts[: seats.min]}
    num = config.distribution.actor.num.max
    for group in plan.groups if seats.varies else ():
        if not any(process.host in first for process in plan.carrying("actor", group)):
            raise UsageError(
                f"distribution.actor.num = {num} gives group {group} no actor on "
                f"the first {several(len(first), 'host')} (distribution.hosts.min), where training begins: "
                + ("another actor.hosts" if config.distribution.actor.hosts else "more actors")
                + " would be right"
            )
    return plan


def cores_at_work(plan: Plan) -> tuple[int, int]:
    """Count the cores that trainers use on the root's host, and on the other with the most; 1 at least."""
    used: Counter[str] = Counter()
    for process in plan.trainers:
        used[process.host] += process.threads
    root = used.pop(plan.hosts[ROOT_RANK], 0)
    return max(root, 1), max([1, *used.values()])


def plan_for_ranks(config: JobConfig, hosts: Sequence[Host]) -> Plan:
    """Place every role of a job whose ranks an MPI launcher has already started.

    Args:
        hosts: host of each rank, as many as the plan has processes.

    Raises:
        UsageError: a core that the config names is not there, or it names hosts, which the launcher chooses.
    """
    if keys := config.distribution.keys_of_hosts(config.roles):
        raise UsageError(f"{', '.join(keys)}: an MPI launcher places the ranks; leave it out")
    return _Planner(config, list(dict.fromkeys(hosts))).plan(by_rank=hosts)


class _Planner:
    """Makes the plan, process by process."""

    def __init__(self, config: JobConfig, hosts: Sequence[Host]) -> None:
        self._config = config
        self._hosts = hosts
        distribution = config.distribution
        self._shared = distribution.one_process
        parted = not (distribution.buffer.colocate or self._shared)
        self._buffers = distribution.buffer.num if parted else 0
        self._sections = distribution.placed(config.roles)
        self._asked: Counter[tuple[int | None, str]] = Counter()
        """Cores that the roles of a group, but for its actors, have of their own on a host."""
        self._processes: list[PlannedProcess] = []
        self._learners_on: Counter[str] = Counter()
        self._actors_on: Counter[str] = Counter()
        groups = range(distribution.groups)
        self._seats = {host.name: f"host-{number}" for number, host in enumerate(hosts)}
        self._first = hosts[: distribution.hosts.min] if distribution.hosts.varies else hosts
        """Hosts that training begins with; those that come later carry actors alone."""
        named: dict[str, set[int]] = {host.name: set() for host in hosts}
        for (role, section), group in product(self._sections.items(), groups):
            if section.core_list:
                there = self._hosts_of_learners if role == "learner" else partial(self._hosts_of_role, role)
                for host in there(group):
                    named[host.name].update(section.core_list)
        learners = Counter(host for group in groups for host in self._hosts_of_learners(group))
        buffers = Counter(host for group in groups for host in self._spread("buffer", group, self._buffers))
        self._placements = {
            host.name: _Placement(
                [core for core in host.cores if core not in named[host.name]]
                if distribution.pin_cores
                else (),
                0 if distribution.learner.core_list else learners[host] * distribution.learner.cores,
                0 if distribution.buffer.core_list else buffers[host] * distribution.buffer.cores,
            )
            for host in hosts
        }
        self._by_rank: Sequence[Host] | None = None

    def plan(self, by_rank: Sequence[Host] | None = None) -> Plan:
        """Place the root, the groups and the evaluator."""
        self._by_rank = by_rank
        distribution = self._config.distribution
        self._add(("root",), None, self._hosts[0])
        actor = 0
        for group in range(distribution.groups):
            numbers = tuple(range(actor, actor + distribution.actor.num.max))
            actor += len(numbers)
            self._add_group(group, numbers)
        if self._config.experiment.evaluation is not None:
            self._add((EXAMINER,), 0, self._hosts[0])
        if self._config.experiment.last_episodes:
            self._add(("evaluator",), None, self._hosts[0])
        transport = distribution.transport
        of_job = {name for name, section in self._config.roles.items() if section.per == "job"}
        for role, section in self._sections.items():
            if section.core_list:
                self._share_out(role, section.core_list)
        edges = edges_of(self._config)
        names = frozenset({ROOT, EXAMINER} | of_job)
        return Plan(tuple(self._processes), transport.local, transport.remote, *edges, names)

    def _hosts_of(self, group: int) -> list[Host]:
        """Return the hosts of a group, its learner's first."""
        groups, number = self._config.distribution.groups, len(self._hosts)
        if names := self._config.distribution.group_hosts:
            mine = self._named([names[group % len(names)]], "distribution.group_hosts")
            turn = group // len(names) % len(mine)
            return mine[turn:] + mine[:turn]
        return list(self._hosts[group::groups]) or [self._hosts[group % number]]

    def _hosts_of_role(self, role: str, group: int) -> list[Host]:
        """Return the hosts of a role: the group's among those that the config names, or else all of these.

        Raises:
            UsageError: there is none, or none that training begins with.
        """
        mine, key = self._hosts_of(group), f"{section_key(role, self._config.roles)}.hosts"
        if names := self._sections[role].hosts:
            named = self._named(names, key)
            mine = [host for host in mine if host in named] or named
        if role != "actor" and not (mine := [host for host in mine if host in self._first]):
            why = f"training begins with {several(len(self._first), 'host')} (distribution.hosts.min)"
            raise UsageError(
                f"{key}, or distribution.group_hosts, puts {role} on hosts that may not come: {why}"
            )
        return mine

    def _named(self, patterns: Sequence[str], key: str) -> list[Host]:
        """Return the hosts that have one of the names.

        Raises:
            UsageError: no host has one of them.
        """

        def names(pattern: str, host: Host) -> bool:
            return fnmatchcase(self._seats[host.name] if _is_seat(pattern) else host.name, pattern)

        wrong = [one for one in patterns if not any(names(one, host) for host in self._hosts)]
        if wrong:
            there = ", ".join(" = ".join(dict.fromkeys(one)) for one in self._seats.items())
            raise UsageError(
                f"{key}: {', '.join(wrong)} is none of {several(len(self._hosts), 'host')} ({there})"
            )
        return [host for host in self._hosts if any(names(pattern, host) for pattern in patterns)]

    def _hosts_of_learners(self, group: int) -> list[Host]:
        """Return the host of each learner of a group: one for all, unless the config names several."""
        if self._config.distribution.learner.hosts:
            return self._spread("learner", group, self._config.distribution.learner.num)
        return [self._hosts_of_role("learner", group)[0]] * self._config.distribution.learner.num

    def _spread(self, role: str, group: int, processes: int) -> list[Host]:
        """Return the host of each of several processes of a role, such as a group's buffers."""
        mine = self._hosts_of_role(role, group)
        if role == "buffer" and processes == 1 and not self._sections[role].hosts:
            mine = self._hosts_of_learners(group)[:1]  # Every batch goes from one to the other.
        return [mine[number * len(mine) // processes] for number in range(processes)]

    def _share_out(self, role: str, cores: Sequence[int]) -> None:
        """Pin a role's processes on each host to their shares of the cores that the config names.

        Raises:
            UsageError: a host does not have these cores.
        """
        learns, key = {"learner", "follower"}, section_key(role, self._config.roles)
        carrying = [
            process
            for process in self._processes
            if (learns & {*process.roles} if role == "learner" else {role} == {*process.roles})
        ]
        for host in self._hosts:
            ranks = [process.rank for process in carrying if process.host == host.name]
            missing = sorted({*cores} - {*host.cores})
            if ranks and host.is_there and host.cores and missing:
                raise UsageError(
                    f"{key}.cores names {several(len(missing), 'core')} that {host.name} "
                    f"does not have, such as {missing[0]}: it has {', '.join(map(str, sorted(host.cores)))}"
                )
            for place, rank in enumerate(ranks):
                first, end = (len(cores) * number // len(ranks) for number in (place, place + 1))
                share = tuple(cores[first : max(end, first + 1)])
                self._processes[rank] = replace(self._processes[rank], cores=share, threads=len(share))

    def _add_group(self, group: int, actors: tuple[int, ...]) -> None:
        distribution = self._config.distribution
        home, *others_of_learner = self._hosts_of_learners(group)
        for number, host in enumerate(self._spread("buffer", group, self._buffers)):
            several = number if self._buffers > 1 else None
            self._add(("buffer",), group, host, distribution.buffer.cores, number=several)
        roles: tuple[str, ...] = ("learner",) if self._buffers else ("buffer", "learner")
        if self._shared:
            # Roles stop in this order, senders first.
            roles = (*("actor",) * len(actors), *roles, *self._config.roles)
        self._add(roles, group, home, distribution.learner.cores, actors=actors if self._shared else ())
        if not self._shared:
            for follower, host in enumerate(others_of_learner, start=1):
                self._add(("follower",), group, host, distribution.learner.cores, number=follower)
            others: dict[str, UserRoleSection | Inference] = {
                name: role for name, role in self._config.roles.items() if role.per == "group" or group == 0
            }
            if distribution.inference is not None:
                others[INFERENCE] = distribution.inference
            for name, section in others.items():
                if name == INFERENCE and not section.hosts:
                    hosts = [home] * section.num
                else:
                    hosts = self._spread(name, group, section.num)
                for number, host in enumerate(hosts):
                    several = number if section.num > 1 else None
                    self._add((name,), group, host, section.cores, number=several)
            each = distribution.actors_per_process
            together = [actors[first : first + each] for first in range(0, len(actors), each)]
            for numbers, host in zip(together, self._hosts_of_actors(group, len(together)), strict=True):
                self._add(("actor",) * len(numbers), group, host, distribution.actor.cores, actors=numbers)

    def _hosts_of_actors(self, group: int, number: int) -> list[Host]:
        """Spread a group's actors over its hosts in blocks, in proportion to the remaining cores."""
        mine = self._hosts_of_role("actor", group)
        least = int(self._config.distribution.hosts.varies)  # A host that training begins with has an actor.
        free = [max(len(host.cores) - self._asked[group, host.name], least) for host in mine]
        shares = _shares(number, free if any(free) else [1] * len(mine))
        return [host for host, share in zip(mine, shares, strict=True) for _ in range(share)]

    def _add(
        self,
        roles: tuple[str, ...],
        group: int | None,
        host: Host,
        cores: int = 0,
        actors: tuple[int, ...] = (),
        number: int | None = None,
    ) -> None:
        rank = len(self._processes)
        if self._by_rank is not None:
            host = self._by_rank[rank]
        self._asked[group, host.name] += cores
        placement = self._placements[host.name]
        learns = "learner" in roles or roles == ("follower",)
        take = placement.learner if learns else placement.buffer if roles == ("buffer",) else placement.actor
        pins = take(cores) if cores or (group is not None and roles != (EXAMINER,)) else ()
        device = self._device(roles, host.name)
        self._processes.append(
            PlannedProcess(rank, roles, group, host.name, pins, max(cores, 1), device, actors, number)
        )

    def _device(self, roles: tuple[str, ...], host: str) -> str:
        """Choose the device of a process: each learner, and each actor, on a host gets the next GPU."""
        distribution = self._config.distribution
        if "learner" in roles or roles == ("follower",):
            device, number, given = distribution.device, distribution.learner.num, self._learners_on
        elif roles == (INFERENCE,) and distribution.inference is not None:
            device, number, given = distribution.inference.device, distribution.inference.num, self._actors_on
        elif roles == ("actor",) and distribution.inference is None:
            device, number, given = distribution.actor.device, distribution.actor.num.max, self._actors_on
        else:
            return distribution.actor.device if roles in {("evaluator",), (EXAMINER,)} else "cpu"
        if device != "cuda" or number * distribution.groups == 1:
            return device
        given[host] += 1
        return f"cuda:{given[host] - 1}"


def _shares(number: int, weights: Sequence[int]) -> list[int]:
    """Divide a number into integers, as close to the weights as possible; the first of equals gets most."""
    shares = [0] * len(weights)
    # The part with the least load after one more comes first.
    loads = [(1 / weight, i) for i, weight in enumerate(weights) if weight]
    heapq.heapify(loads)
    for _ in range(number):
        _, i = loads[0]
        shares[i] += 1
        heapq.heapreplace(loads, ((shares[i] + 1) / weights[i], i))
    return shares


class _Placement:
    """Hands out the cores of a host: learners come first, then buffers, and actors share the rest.

    If no core would be left for actors, buffers share with them.
    """

    def __init__(self, cores: Sequence[int], for_learners: int, for_buffers: int) -> None:
        enough = len(cores) > for_learners
        self._learners = list(cores[:for_learners]) if enough else []
        rest = list(cores[for_learners:]) if enough else []
        own = for_buffers if len(rest) > for_buffers else 0
        self._buffers = rest[:own]
        self._actors = rest[own:]
        self._next_actor = 0

    def learner(self, number: int) -> tuple[int, ...]:
        """Take the next cores for a learner."""
        taken, self._learners = self._learners[:number], self._learners[number:]
        return tuple(taken)

    def buffer(self, number: int) -> tuple[int, ...]:
        """Take the next cores for a buffer, or the actors' cores if buffers have none of their own."""
        if not self._buffers:
            return tuple(self._actors)
        taken, self._buffers = self._buffers[:number], self._buffers[number:]
        return tuple(taken)

    def actor(self, number: int) -> tuple[int, ...]:
        """Take cores for an actor, wrapping around if there are too few; 0 takes all."""
        if not self._actors:
            return ()
        if not 0 < number < len(self._actors):
            return tuple(self._actors)
        pins = {self._actors[(self._next_actor + i) % len(self._actors)] for i in range(number)}
        self._next_actor += number
        return tuple(sorted(pins))


@dataclass(frozen=True)
class FilesElsewhere:
    """Files that a process on another host than the root's writes into the run directory, in words."""

    host: str
    what: str


def files_elsewhere(plan: Plan, config: JobConfig) -> Iterator[FilesElsewhere]:
    """List the files that processes on other hosts than the root's write into the run directory."""
    roles, saves = config.roles, config.distribution.buffer.save_with_checkpoint
    listed: set[FilesElsewhere] = set()
    for process in plan.trainers:
        if plan.is_local(process.rank):
            continue
        group = process.group or 0
        if saves and process.roles == ("buffer",):
            yield FilesElsewhere(process.host, f"the replay of {process.title}")
        if "learner" in process.roles:
            yield FilesElsewhere(process.host, f"the checkpoints of group {group}")
        for name in process.roles:
            if name in roles:
                place = FilesElsewhere(process.host, f"the files of {name} (group {group})")
                if place not in listed:  # Several processes of a role write alike.
                    listed.add(place)
                    yield place

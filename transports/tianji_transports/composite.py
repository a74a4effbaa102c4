"""Two engines behind one interface: one for the edges inside a host, one for those between hosts.

An edge is one sender and one receiver of a channel, or a slot's writer and one of its readers. ``split``
divides a wiring by edges, so that a channel whose senders are on several hosts becomes two of one name.
Callers open the endpoint of a plan with ``open_endpoint``; ``edge_capabilities`` tells its capabilities
beforehand.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tianji_transports import registry
from tianji_transports.core import (
    ANY,
    Capabilities,
    Claim,
    CloseReport,
    Counters,
    EngineOptions,
    Full,
    Loan,
    Transport,
)
from tianji_transports.endpoint import AnyEndpoint, Endpoint, HeldLoan, drain, wait_for_news
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Channel, Wiring


def open_endpoint(
    local: str,
    remote: str,
    hosts: Mapping[int, str],
    wiring: Wiring,
    rank: int,
    incarnation: int = 0,
    options: EngineOptions | None = None,
) -> Transport:
    """Open an endpoint of the engine that the plan asks for, or of both.

    Args:
        local: engine of the edges inside a host.
        remote: engine of the edges between hosts.
        hosts: host of each rank; the same mapping at every rank of the job.

    Raises:
        TransportError: an engine does not load, or the engines cannot be combined.
    """
    edge_capabilities(local, remote, hosts)
    name = _single(local, remote, hosts)
    if name is not None:
        return registry.create(name, wiring, rank, incarnation, options)
    return CompositeTransport(_engine(local), _engine(remote), hosts, wiring, rank, incarnation, options)


def edge_capabilities(local: str, remote: str, hosts: Mapping[int, str]) -> Capabilities:
    """Capabilities of the endpoints of ``open_endpoint``, the same at every rank.

    Raises:
        TransportError: an engine does not load, or the engines cannot be combined.
    """
    name = _single(local, remote, hosts)
    if name is None:
        can = both(_engine(local).capabilities, _engine(remote).capabilities)
        if not (_engine(local).capabilities.rings or _engine(remote).capabilities.rings):
            raise TransportError(
                f"transports {local!r} and {remote!r} cannot sleep in one wait: neither rings"
            )
    else:
        can = registry.load(name).capabilities
    if not can.cross_host and len(set(hosts.values())) > 1:
        places = ", ".join(sorted(set(hosts.values())))
        raise TransportError(f"transport {remote!r} does not reach from host to host ({places})")
    return can


def _single(local: str, remote: str, hosts: Mapping[int, str]) -> str | None:
    """Name of the only engine that the job needs; None if it needs both."""
    return local if local == remote or len(set(hosts.values())) == 1 else None


def _engine(name: str) -> type[AnyEndpoint]:
    """Load an engine that can be combined with another."""
    found = registry.load(name)
    if not issubclass(found, Endpoint):
        raise TransportError(f"transport {name!r} is no Endpoint and cannot be combined with another")
    return found


def both(local: Capabilities, remote: Capabilities) -> Capabilities:
    """Combine the capabilities of two engines into those that both have."""
    borrowed = [can.max_borrowed for can in (local, remote) if can.max_borrowed]
    return Capabilities(
        cross_host=remote.cross_host,
        lends=local.lends and remote.lends,
        max_borrowed=min(borrowed, default=0),
        peer_restart=local.peer_restart and remote.peer_restart,
        max_bytes=min(local.max_bytes, remote.max_bytes),
        cross_process=local.cross_process and remote.cross_process,
        progresses=local.progresses and remote.progresses,
    )


def split(wiring: Wiring, hosts: Mapping[int, str], host: str) -> tuple[Wiring, Wiring]:
    """Divide a wiring by its edges.

    The job id of the part inside a host contains the host's name, so that hosts on one machine stay apart.

    Returns:
        The edges inside ``host``, and those between any two hosts.
    """

    def inside(one: int, other: int) -> bool:
        return hosts[one] == hosts[other] == host

    def between(one: int, other: int) -> bool:
        return hosts[one] != hosts[other]

    return _part(wiring, f"{wiring.job}@{host}", inside), _part(wiring, wiring.job, between)


def _part(wiring: Wiring, job: str, has: Callable[[int, int], bool]) -> Wiring:
    """Keep the edges for which ``has`` is true, and the channels and slots that have any."""
    channels, slots = [], []
    for channel in wiring.channels:
        senders = tuple(sender for sender in channel.senders if has(sender, channel.receiver))
        if senders:
            channels.append(replace(channel, senders=senders))
    for slot in wiring.slots:
        readers = tuple(reader for reader in slot.readers if has(slot.writer, reader))
        if readers:
            slots.append(replace(slot, readers=readers))
    return Wiring(job, tuple(channels), tuple(slots))


@dataclass(eq=False)
class Confluence:
    """A channel with local and remote senders; claims alternate in proportion to the senders of each side.

    Attributes:
        local: engine of the senders on this host.
        remote: engine of the other senders.
        share: number of senders on this host.
        turn: position in the cycle of claims; ``local`` comes first below ``share``.
    """

    channel: Channel
    local: AnyEndpoint
    remote: AnyEndpoint
    share: int
    turn: int = 0

    def probe(self, counters: Counters) -> Claim | None:
        """Claim from the engine whose turn it is, or else from the other."""
        name = self.channel.name
        if self.turn < self.share:
            first, second = self.local, self.remote
        else:
            first, second = self.remote, self.local
        claim = first.probe(name)
        if claim is None:
            counters.misses -= 1  # to ask both is one probe
            claim = second.probe(name)
        if claim is not None:
            self.turn = (self.turn + 1) % len(self.channel.senders)
        return claim

    def check_borrow(self) -> None:
        """Hold both engines together to the borrow that the wiring allows."""
        borrow, name = self.channel.borrow, self.channel.name
        if self.local.held(name) + self.remote.held(name) >= borrow:
            raise TransportError(
                f"all {borrow} claims that the wiring allows on {name!r} are held: release one first"
            )


class CompositeTransport(Transport):
    """An endpoint with one engine for its own host and another one for all the others.

    Opens only those engines that its rank has edges for.
    """

    def __init__(
        self,
        local: type[AnyEndpoint],
        remote: type[AnyEndpoint],
        hosts: Mapping[int, str],
        wiring: Wiring,
        rank: int,
        incarnation: int = 0,
        options: EngineOptions | None = None,
    ) -> None:
        super().__init__(wiring, rank, incarnation, options)
        # The pair has the capabilities, not the class; and the pair has them even where this rank opens only
        # one engine, since every rank must derive the same wiring from them.
        self.capabilities = both(local.capabilities, remote.capabilities)  # type: ignore[misc]
        self._hosts = hosts
        inside, between = split(wiring, hosts, hosts[rank])
        self._local = self._open(local, inside)
        try:
            self._remote = self._open(remote, between)
            if self._local is None and self._remote is None:
                raise TransportError(f"rank {rank} has no channel and no slot in job {wiring.job!r}")
        except BaseException:
            if self._local is not None:
                self._local.close()
            raise
        opened = [engine for engine in (self._remote, self._local) if engine is not None]
        # The first engine sleeps for both, so it is the one without ``rings``.
        self._engines = sorted(opened, key=lambda engine: engine.capabilities.rings)
        self._ways = {
            other: engine
            for other, host in hosts.items()
            if (engine := self._local if host == hosts[rank] else self._remote) is not None
        }
        self._inflows: dict[str, AnyEndpoint] = {}
        self._confluences: dict[str, Confluence] = {}
        self._written: dict[str, list[AnyEndpoint]] = {}
        self._read: dict[str, AnyEndpoint] = {}
        for engine in opened:
            engine.counters = self.counters
            self._sort_in(engine)

    def _open(self, engine: type[AnyEndpoint], part: Wiring) -> AnyEndpoint | None:
        """Open an engine if this rank has an edge in its part of the wiring."""
        if self.rank not in part.ranks:
            return None
        return engine(part, self.rank, self.incarnation, self.options)

    def _sort_in(self, engine: AnyEndpoint) -> None:
        """Index the channels and slots of an engine."""
        for channel in engine.wiring.channels:
            if channel.receiver != self.rank:
                continue
            if channel.name in self._inflows:
                self._confluences[channel.name] = self._confluence(channel.name)
            self._inflows[channel.name] = engine
        for slot in engine.wiring.slots:
            if slot.writer == self.rank:
                self._written.setdefault(slot.name, []).append(engine)
            if self.rank in slot.readers:
                self._read[slot.name] = engine

    def _confluence(self, name: str) -> Confluence:
        assert self._local is not None
        assert self._remote is not None
        share = len(self._local.wiring.channel(name, self.rank).senders)
        return Confluence(self.wiring.channel(name, self.rank), self._local, self._remote, share)

    @property
    def address(self) -> str:
        """The addresses of both engines, as a JSON list; null for an engine that this rank does not use."""
        engines = (self._local, self._remote)
        return json.dumps([None if engine is None else engine.address for engine in engines])

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Pass peers' addresses to the engine that reaches each of them."""
        parts = {rank: self._part_of(rank, address) for rank, address in addresses.items()}
        for engine in self._engines:
            reached = {rank: part for rank, part in parts.items() if self._ways.get(rank) is engine}
            engine.connect({rank: part for rank, part in reached.items() if part is not None})

    def _part_of(self, rank: int, address: str) -> str | None:
        """The address of ``rank`` for the engine that reaches it."""
        try:
            local, remote = json.loads(address)
        except (TypeError, ValueError) as error:
            raise TransportError(f"{address!r} is no address of rank {rank} for two engines") from error
        part = local if self._hosts.get(rank) == self._hosts[self.rank] else remote
        if not (part is None or isinstance(part, str)):
            raise TransportError(f"{address!r} is no address of rank {rank} for two engines")
        return part

    # -- sending ---------------------------------------------------------------------------------------

    def _way(self, rank: int, channel: str) -> AnyEndpoint:
        engine = self._ways.get(rank)
        if engine is None:
            raise self._error(f"rank {self.rank} shares no channel {channel!r} with rank {rank}")
        return engine

    def loan(self, dest: int, channel: str, nbytes: int) -> Loan | Full:
        """Ask for memory to fill, or FULL; see ``Transport.loan``."""
        return self._way(dest, channel).loan(dest, channel, nbytes)

    def push(self, loan: Loan) -> None:
        """Send a filled loan; see ``Transport.push``."""
        assert isinstance(loan, HeldLoan), "a loan of another kind of transport"
        self._ways[loan.outlet.dest].push(loan)

    def unconfirmed(self, dest: int, channel: str) -> int:
        """Count the pushes to a receiver that it has not claimed yet."""
        return self._way(dest, channel).unconfirmed(dest, channel)

    def peer_lost(self, rank: int) -> None:
        """Handle the death of a peer; callers do so before they restart the peer."""
        for engine in self._engines:
            engine.peer_lost(rank)

    # -- receiving -------------------------------------------------------------------------------------

    def probe(self, channel: str, source: int = ANY) -> Claim | None:
        """Claim the next message, if there is one; see ``Transport.probe``."""
        confluence = self._confluences.get(channel)
        if confluence is None:
            engine = self._inflows.get(channel)
            if engine is None:
                raise self._error(f"rank {self.rank} does not receive {channel!r}")
            return engine.probe(channel, source)
        confluence.check_borrow()
        if source == ANY:
            return confluence.probe(self.counters)
        return self._way(source, channel).probe(channel, source)

    # -- slots -----------------------------------------------------------------------------------------

    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        """Replace a slot's value on both sides; see ``Transport.publish``."""
        engines = self._written.get(slot)
        if engines is None:
            raise self._error(f"rank {self.rank} does not write slot {slot!r}")
        for engine in engines:
            engine.publish(slot, payload, version)
        self.counters.publishes -= len(engines) - 1

    def latest(self, slot: str, newer_than: int = -1) -> Claim | None:
        """Claim a slot's newest value if it is newer; see ``Transport.latest``."""
        engine = self._read.get(slot)
        if engine is None:
            raise self._error(f"rank {self.rank} does not read slot {slot!r}")
        return engine.latest(slot, newer_than)

    # -- waiting and the end ---------------------------------------------------------------------------

    def wait(self, timeout_s: float, also: Sequence[int] = ()) -> bool:
        """Sleep at both engines at once until there is news; see ``Transport.wait``."""
        if self._report is not None:
            raise self._error("wait")
        return wait_for_news(self._engines, timeout_s, also)

    @contextlib.contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Keep strangers from taking descriptors at either engine; see ``Transport.undisturbed``."""
        with contextlib.ExitStack() as stack:
            for engine in self._engines:
                stack.enter_context(engine.undisturbed())
            yield

    def close(self, drain_s: float = 0.0) -> CloseReport:
        """Drain both engines together, then free everything; see ``Transport.close``."""
        if self._report is not None:
            return self._report
        drain(self._engines, drain_s)
        unconfirmed: dict[tuple[int, str], int] = {}
        unclaimed: dict[tuple[int, str], int] = {}
        self._report = CloseReport(unconfirmed, unclaimed, self.counters)
        with contextlib.ExitStack() as closing:
            for engine in self._engines:
                closing.callback(engine.close)
            for engine in self._engines:
                report = engine.close()
                unconfirmed.update(report.unconfirmed)
                unclaimed.update(report.unclaimed)
        return self._report

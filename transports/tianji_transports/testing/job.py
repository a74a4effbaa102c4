"""A job of a test: endpoints in the test's process, peers in processes of their own, and no traces after."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import uuid
from collections.abc import Mapping
from multiprocessing.connection import Connection, Pipe
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self

from tianji_transports import registry
from tianji_transports.composite import CompositeTransport, both
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.testing import verbs
from tianji_transports.testing.peer import STATIONS, serve
from tianji_transports.wiring import Channel, Slot, Wiring
from tianji_transports.zmq.transport import ZmqTransport

PROCESSES = multiprocessing.get_context("forkserver")
# Each peer would import its engine anew, which takes longer than most tests. Missing engines are skipped.
PROCESSES.set_forkserver_preload(
    ["tianji_transports.testing.peer", *(f"tianji_transports.{engine}" for engine in ("shm", "zmq", "ucx"))]
)


class Runner(Protocol):
    """The process or thread of a peer.

    Attributes:
        pid: id of the process.
        control: connection to it.
    """

    pid: int
    control: Connection

    def is_alive(self) -> bool:
        """Whether the peer still runs."""

    def kill(self) -> None:
        """End the peer at once."""

    def join(self, timeout_s: float) -> bool:
        """Wait for the peer's end; returns whether it came."""


class OwnRunner:
    """A process, or a thread, of one peer."""

    def __init__(self, in_process: bool, arguments: tuple[Any, ...]) -> None:
        self.control, theirs = Pipe()
        self._theirs = theirs
        self._in_process = in_process
        self._task: Any
        if in_process:
            self._task = threading.Thread(target=serve, args=(theirs, *arguments))
        else:
            self._task = PROCESSES.Process(target=serve, args=(theirs, *arguments))
        self._task.start()
        self.pid = os.getpid() if in_process else self._task.pid
        if not in_process:
            theirs.close()

    def is_alive(self) -> bool:
        """Whether the process or thread runs."""
        return bool(self._task.is_alive())

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the process or thread; returns whether it came."""
        self._task.join(timeout_s)
        if self._task.is_alive():
            return False
        self.control.close()
        if self._in_process:
            self._theirs.close()
        else:
            self._task.close()
        return True


class Peer:
    """A rank in its own process (a thread, for engines of one process) that executes the test's commands."""

    def __init__(
        self, engine: str, wiring: Wiring, rank: int, incarnation: int, options: EngineOptions
    ) -> None:
        self.rank = rank
        self.in_process = not registry.load(engine).capabilities.cross_process
        arguments = (engine, wiring, rank, incarnation, options)
        self._runner: Runner
        if os.environ.get(STATIONS):
            from tianji_transports.testing.stations import recruit  # noqa: PLC0415 - it needs MPI

            self._runner = recruit(arguments)
        else:
            self._runner = OwnRunner(self.in_process, arguments)
        self._control = self._runner.control
        self.address: str = self.answer()

    def tell(self, verb: str, *arguments: Any) -> None:
        """Send a command to the peer; ``answer`` returns its result."""
        self._control.send((verb, arguments))

    def answer(self, at: Transport | None = None) -> Any:
        """Wait for the result of a command, at the endpoint ``at`` if that has a part in it."""
        if at is not None:
            verbs.until(at, lambda: self.answered() or None)
        if not self._control.poll(verbs.PATIENCE_S + 5):
            raise TimeoutError(f"rank {self.rank} does not answer")
        result = self._control.recv()
        if isinstance(result, BaseException):
            raise result
        return result

    def answered(self) -> bool:
        """Whether the result is there."""
        return self._control.poll()

    def ask(self, verb: str, *arguments: Any) -> Any:
        """Send a command to the peer and wait for the result."""
        self.tell(verb, *arguments)
        return self.answer()

    def signal(self, number: int) -> None:
        """Send a signal to the peer's process."""
        os.kill(self._runner.pid, number)

    def kill(self) -> None:
        """Kill the peer's process with SIGKILL and wait for its end."""
        self._runner.kill()
        self._end()

    def stop(self) -> None:
        """Make the peer close its endpoint and end."""
        if self._runner.is_alive():
            self.tell("stop")
        self._end()

    def _end(self) -> None:
        assert self._runner.join(verbs.PATIENCE_S + 5), f"rank {self.rank} does not end"


class Job:
    """One job: a wiring, its endpoints here, its peers elsewhere; all know one another's addresses."""

    def __init__(self, engine: str, channels: tuple[Channel, ...] = (), slots: tuple[Slot, ...] = ()) -> None:
        self.engine = engine
        self.capabilities = registry.load(engine).capabilities
        self.wiring = Wiring(f"contract-{uuid.uuid4().hex}", channels, slots)
        self.options = EngineOptions()
        self.endpoints: list[Transport] = []
        self.peers: list[Peer] = []
        self._addresses: dict[int, str] = {}

    def open(self, rank: int, incarnation: int = 0) -> Transport:
        """Open an endpoint in the test's own process."""
        endpoint = registry.create(self.engine, self.wiring, rank, incarnation, self.options)
        self.endpoints.append(endpoint)
        self._introduce(rank, endpoint.address)
        endpoint.connect(self._addresses)
        return endpoint

    def start(self, rank: int, incarnation: int = 0) -> Peer:
        """Start a peer."""
        peer = Peer(self.engine, self.wiring, rank, incarnation, self.options)
        self.peers.append(peer)
        self._introduce(rank, peer.address)
        peer.ask("connect", self._addresses)
        return peer

    def kill(self, peer: Peer) -> None:
        """Kill a peer."""
        self.peers.remove(peer)
        peer.kill()

    def stop(self, peer: Peer) -> None:
        """Make a peer close and end."""
        self.peers.remove(peer)
        peer.stop()

    def _introduce(self, rank: int, address: str) -> None:
        self._addresses[rank] = address
        news: Mapping[int, str] = {rank: address}
        neighbours = self._neighbours(rank)
        for endpoint in self.endpoints:
            if endpoint.rank in neighbours:
                endpoint.connect(news)
        for peer in self.peers:
            if peer.rank in neighbours:
                peer.ask("connect", news)

    def _neighbours(self, rank: int) -> set[int]:
        """Ranks that share a channel or a slot's value with ``rank``; the others may go on undisturbed."""
        edges = {(sender, channel.receiver) for channel in self.wiring.channels for sender in channel.senders}
        edges |= {(slot.writer, reader) for slot in self.wiring.slots for reader in slot.readers}
        return {one for edge in edges if rank in edge for one in edge} - {rank}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self.peers:
            peer = self.peers.pop()
            if kind is None or peer.in_process:
                peer.stop()
            else:
                peer.kill()
        while self.endpoints:
            self.endpoints.pop().close()


RANKS = 64


class Arrangement(CompositeTransport):
    """``shm`` inside hosts and ``zmq`` between them; ``per_host`` successive ranks share a host."""

    capabilities: ClassVar[Capabilities] = both(ShmTransport.capabilities, ZmqTransport.capabilities)
    per_host: ClassVar[int]

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        hosts: Mapping[int, str] = {other: f"host-{other // self.per_host}" for other in range(RANKS)}
        super().__init__(ShmTransport, ZmqTransport, hosts, wiring, rank, incarnation, options)


class ManyHosts(Arrangement):
    """Every rank on a host of its own."""

    per_host = 1


class HostsOfTwo(Arrangement):
    """Ranks 0 and 1 on a host, 2 and 3 on the next one, and so on."""

    per_host = 2

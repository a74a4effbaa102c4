"""Two engines at once for the contract suite, which gives an engine a wiring and no hosts: here they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tianji_transports.composite import CompositeTransport, both
from tianji_transports.core import Capabilities, EngineOptions
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.wiring import Wiring
from tianji_transports.zmq.transport import ZmqTransport

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

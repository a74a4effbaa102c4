"""The contract of every transport engine: push by the sender, probe by the receiver.

A sender asks for memory (``loan``), fills it and pushes it; ``push`` never waits and never
drops. A receiver probes; a hit is a *claim* that only it holds. The claim confirms the push; the
return of a library call does not. ``loan`` answers FULL to a sender with ``Channel.window``
unconfirmed pushes; there is no other back-pressure.

This module knows no engine and no reinforcement learning. ``testing`` holds the contract as tests.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal, Self

from tianji_transports.errors import TransportClosedError, TransportError
from tianji_transports.wiring import Wiring

ANY: Final = -1
"""Probe source: any sender."""


class Full(enum.Enum):
    """Type of ``FULL``: the answer of ``loan`` when the window of unclaimed pushes is used up."""

    FULL = "FULL"

    def __bool__(self) -> Literal[False]:
        return False


FULL: Final = Full.FULL


@dataclass(frozen=True)
class Capabilities:
    """The abilities of an engine, for the plan and the contract suite.

    Attributes:
        cross_host: endpoints may be on different hosts.
        lends: ``Claim.view`` borrows the sender's memory, or the receiver's, without a copy.
        max_borrowed: claims a receiver may hold at once (0: no limit of the engine's).
        peer_restart: a killed peer may come back under its rank with a higher incarnation.
        max_bytes: largest message the engine moves.
        cross_process: endpoints may be in different processes.
        rings: another engine's endpoint can sleep for this one, at the descriptors of ``Endpoint.bells``.
        progresses: a pushed message arrives even if its sender never calls the endpoint again.
    """

    cross_host: bool
    lends: bool
    max_borrowed: int
    peer_restart: bool
    max_bytes: int
    cross_process: bool = True
    rings: bool = False
    progresses: bool = True


@dataclass
class Counters:
    """Counts of an endpoint's calls and messages; every engine counts alike.

    ``first_rejection`` is the reason for the first of the ``rejected`` frames; ``refusals`` counts answers of
    FULL.
    """

    pushes: int = 0
    pushed_bytes: int = 0
    refusals: int = 0
    claims: int = 0
    claimed_bytes: int = 0
    misses: int = 0
    publishes: int = 0
    rejected: int = 0
    first_rejection: str = ""

    def reject(self, reason: str) -> None:
        """Count a frame or a connection that does not belong to the job."""
        self.rejected += 1
        self.first_rejection = self.first_rejection or reason


@dataclass(frozen=True)
class CloseReport:
    """Messages that were left when an endpoint closed.

    Attributes:
        unconfirmed: pushes that no receiver had claimed, by (dest rank, channel).
        unclaimed: messages that had arrived and were never claimed, by (source rank, channel),
            as far as the engine can see them.
    """

    unconfirmed: Mapping[tuple[int, str], int]
    unclaimed: Mapping[tuple[int, str], int]
    counters: Counters


class Loan(ABC):
    """Memory to fill and push. Exactly one of ``Transport.push`` and ``abandon`` ends it."""

    __slots__ = ()

    memory: memoryview
    """Writable bytes, exactly as many as were asked for; aligned to 64 bytes where the engine can."""

    @abstractmethod
    def abandon(self) -> None:
        """Give the memory back unsent."""


class Claim(ABC):
    """A message that only this receiver holds, from a claim until ``release``.

    Attributes:
        source: rank that sent it.
        nbytes: size of the payload.
        version: version of a slot's value; 0 for a message of a channel.
    """

    __slots__ = ()

    source: int
    nbytes: int
    version: int

    @abstractmethod
    def view(self) -> memoryview:
        """Borrow the payload, read-only, until ``release``. Costs a copy where the engine cannot lend."""

    @abstractmethod
    def take(self, into: memoryview) -> int:
        """Copy the payload once into the caller's memory and release it.

        Returns:
            The number of bytes written.

        Raises:
            MessageTooLargeError: ``into`` is too small; the claim is still held.
        """

    @abstractmethod
    def release(self) -> None:
        """Give the memory back; views of it are dead from here on. Harmless when repeated."""


@dataclass
class EngineOptions:
    """Settings of engines that reach other hosts; shm and inproc ignore them.

    Attributes:
        host: interface that the engine listens on.
        public_key: CURVE public key of the job (Z85), empty on loopback.
        secret_key: CURVE secret key of the job (Z85), empty on loopback.
        extra: engine-specific settings, by name.
    """

    host: str = "127.0.0.1"
    public_key: str = ""
    secret_key: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)


class Transport(ABC):
    """One endpoint of a job, owned by one thread. FIFO per (source, channel).

    Args:
        wiring: the channels and slots of the job; the endpoint opens those its rank is part of.
        incarnation: 0 at first, one more each time the rank is restarted after a death.
    """

    capabilities: ClassVar[Capabilities]

    def __init__(
        self, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
    ) -> None:
        self.wiring = wiring
        self.rank = rank
        self.incarnation = incarnation
        self.options = options or EngineOptions()
        self.counters = Counters()
        self._report: CloseReport | None = None

    @classmethod
    def libraries(cls) -> dict[str, str]:
        """Versions of the libraries that the engine uses, by name, for the head of a measurement."""
        return {}

    @property
    def address(self) -> str:
        """Where peers reach this endpoint; empty for engines that find one another by the job's id."""
        return ""

    def connect(self, addresses: Mapping[int, str]) -> None:  # noqa: B027 - engines without addresses need nothing
        """Connect to peers: rank -> their ``address``. Repeated when a peer was restarted."""

    @abstractmethod
    def loan(self, dest: int, channel: str, nbytes: int) -> Loan | Full:
        """Ask for memory to fill.

        Returns:
            A loan, or FULL while ``window`` pushes to this receiver are unclaimed or it is not there yet.

        Raises:
            MessageTooLargeError: ``nbytes`` exceeds the channel's ``max_bytes``.
            PeerLostError: ``peer_lost`` was called for the receiver.
        """

    @abstractmethod
    def push(self, loan: Loan) -> None:
        """Send a filled loan. Never waits, never drops: the loan had the credit for it."""

    @abstractmethod
    def probe(self, channel: str, source: int = ANY) -> Claim | None:
        """Claim the next message of a channel this rank receives, if there is one. Never waits."""

    @abstractmethod
    def publish(self, slot: str, payload: memoryview, version: int) -> None:
        """Replace a slot's value; copies ``payload`` before it returns. Versions must increase."""

    @abstractmethod
    def latest(self, slot: str, newer_than: int = -1) -> Claim | None:
        """Claim a slot's newest value if its version is above ``newer_than``; never a torn value."""

    @abstractmethod
    def wait(self, timeout_s: float, also: Sequence[int] = ()) -> bool:
        """Sleep until a message, a slot's value or a credit arrives or a descriptor in ``also`` is readable.

        May wake early (callers probe and wait again), never sleeps past something that arrived
        before the call, and burns no core while nothing comes.

        Returns:
            False if the time-out passed with nothing to report.
        """

    def peer_lost(self, rank: int) -> None:  # noqa: B027 - optional: engines that keep no state per peer
        """Handle the death of a peer, reported by the caller: pushes to it raise, its credit is void."""

    def unconfirmed(self, dest: int, channel: str) -> int:
        """Count the pushes to a receiver that it has not claimed yet."""
        raise NotImplementedError

    def undisturbed(self) -> AbstractContextManager[None]:
        """Keep strangers' connections from taking descriptors while the caller opens files."""
        return nullcontext()

    @abstractmethod
    def close(self, drain_s: float = 0.0) -> CloseReport:
        """Wait at most ``drain_s`` for unconfirmed pushes to be claimed, then free everything.

        Harmless when repeated (the same report is returned).
        """

    def _error(self, reason: str) -> TransportError:
        """Build the error of a wrong call: closed, or ``reason``."""
        if self._report is not None:
            return TransportClosedError(f"the endpoint of rank {self.rank} is closed")
        return TransportError(f"{reason} in job {self.wiring.job!r}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

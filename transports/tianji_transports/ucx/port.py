"""Workers of UCX: addresses, endpoints to other workers, small messages, and how they sleep.

Knows UCX; knows nothing of channels, credits and versions.

Inside a host, all senders to a worker share one queue in its memory, and a sender that is killed while
writing there blocks that queue for all. So a receiver has a worker for each life of a sender (a lane), and
closes it when that life is over; only small messages go through the worker that all ranks know.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import select
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from tianji_transports.errors import TransportError
from tianji_transports.ucx.frames import JOB_MASK
from tianji_transports.ucx.library import Array, libucxx, new_context, translated

SHORT_SLEEP_S: Final = 0.001
"""Seconds of the first sleep while something is in flight: over TCP, UCX misses wake-ups then."""
LONGEST_SLEEP_S: Final = 0.05
"""Sleeps double up to this while something stays in flight and nothing moves."""
FLUSH_S: Final = 0.2
"""Seconds that a closing endpoint waits for its last small messages to leave."""
SMALL: Final = 8192
"""Maximum bytes of a small message: a number and a worker's address."""

SEAL: Final = 8
"""Bytes of the checksum before an address."""

Tag = libucxx.UCXXTag
ANY_TAG: Final = libucxx.UCXXTagMask(0)


def sealed(worker_address: bytes) -> bytes:
    """Put a checksum before an address: UCX crashes on bytes that are no address."""
    return hashlib.sha256(worker_address).digest()[:SEAL] + worker_address


class Lane:
    """One worker: its address, its arriving messages, and the memory that UCX may still write to.

    Attributes:
        worker: UCX's, to probe and receive with; None when closed.
        address: bytes by which other workers find this one.
    """

    def __init__(self, context: Any) -> None:
        with translated("UCX cannot open a worker"):
            self.worker: Any = libucxx.UCXWorker(context)
            self.worker.init_blocking_progress_mode()
            self.address = sealed(bytes(self.worker.address))
            self.descriptor = int(self.worker.epoll_file_descriptor)
        self._abandoned: list[tuple[Any, Any]] = []

    def abandon(self, requests: Iterable[tuple[Any, Any]]) -> None:
        """Keep requests that may never complete, and their memory, until UCX is done with them."""
        kept = [*self._abandoned, *requests]
        self._abandoned = [(request, memory) for request, memory in kept if not request.completed]

    def drop(self, probe: Any) -> None:
        """Receive an unwanted message into memory that is not read."""
        scratch = Array(memoryview(bytearray(max(1, probe.length))))
        self.abandon([(self.worker.tag_recv_with_handle(scratch, probe), scratch)])

    def drop_foreign(self, ours: Any) -> int:
        """Drop other jobs' messages until the next in the queue is this job's; returns the number dropped."""
        dropped = 0
        while (probe := self.worker.tag_probe(ours, ANY_TAG, False)).matched:
            tag = probe.sender_tag
            if tag.value & JOB_MASK == ours.value:
                break
            # One byte is too little: UCX frees its own memory and reports that the message was truncated.
            scratch = Array(memoryview(bytearray(1)))
            self.abandon([(self.worker.tag_recv(scratch, tag), scratch)])
            dropped += 1
        return dropped

    def close(self, requests: Iterable[tuple[Any, Any]] = ()) -> None:
        """Close the worker; its endpoints must be gone.

        Args:
            requests: incomplete requests, with their memory.
        """
        # ucxx receives the rest of the queue when the worker ends, and would wait for it forever.
        while (probe := self.worker.tag_probe(Tag(0), ANY_TAG, True)).matched:
            self.drop(probe)
        self.abandon(requests)
        # UCX may write to this memory until the worker has ended, which it does with its last request.
        memory = [memory for _, memory in self._abandoned]
        self._abandoned.clear()
        del requests, probe
        self.worker = None
        memory.clear()


class Port:
    """Owns the lobby (the worker that all ranks know), the lanes, and endpoints to other workers.

    Args:
        job: the bits that the tags of the job have in common.

    Attributes:
        lobby: sends everything, receives small messages and values.
        lanes: the lobby, and one worker for each life of a sender.
    """

    def __init__(self, job: int) -> None:
        self._context = new_context()
        self.ours, self.mask = Tag(job), libucxx.UCXXTagMask(JOB_MASK)
        self._poller = select.poll()
        self.lanes: tuple[Lane, ...] = ()
        self.lobby = self.open_lane()
        self._endpoints: dict[tuple[int, int], Any] = {}
        self._closing: list[tuple[Any, Any]] = []
        self._free: list[tuple[memoryview, dict[int, Any]]] = []
        self._flying: deque[tuple[Any, tuple[memoryview, dict[int, Any]]]] = deque()
        self._pause_s = SHORT_SLEEP_S

    # -- workers ---------------------------------------------------------------------------------------

    def open_lane(self) -> Lane:
        """Open a worker to receive with."""
        lane = Lane(self._context)
        self.lanes = (*self.lanes, lane)
        self._poller.register(lane.descriptor, select.POLLIN)
        return lane

    def close_lane(self, lane: Lane, requests: Iterable[tuple[Any, Any]] = ()) -> None:
        """Close a worker; ``requests`` will never complete."""
        self.lanes = tuple(other for other in self.lanes if other is not lane)
        self._poller.unregister(lane.descriptor)
        lane.close(requests)

    def endpoint(self, rank: int, session: int, address: bytes) -> Any:
        """Find the endpoint to the lobby of a life of a rank, or make it."""
        found = self._endpoints.get((rank, session))
        if found is None:
            found = self._endpoints[rank, session] = self.reach(rank, address)
        return found

    def reach(self, rank: int, address: bytes) -> Any:
        """Make an endpoint to another worker.

        Raises:
            TransportError: no worker can be reached there, or none any more.
        """
        worker_address = address[SEAL:]
        if sealed(worker_address) != address:
            raise TransportError(f"what came for the address of rank {rank} is none")
        with translated(f"UCX cannot reach rank {rank}"):
            remote = libucxx.UCXAddress.create_from_buffer(worker_address)
            return libucxx.UCXEndpoint.create_from_worker_address(self.lobby.worker, remote, False)

    def forget(self, rank: int, session: int | None = None) -> None:
        """Close the endpoints to all lives of a rank but ``session``."""
        for key in [key for key in self._endpoints if key[0] == rank and key[1] != session]:
            self.bury(self._endpoints.pop(key))

    def bury(self, endpoint: Any) -> None:
        """Close an endpoint, without waiting for a peer that may be dead."""
        self._closing = [(request, closing) for request, closing in self._closing if not request.completed]
        if endpoint is not None:
            # ucxx waits for the peer when an endpoint that was not asked to close is deleted.
            self._closing.append((endpoint.close(), endpoint))

    # -- messages --------------------------------------------------------------------------------------

    def send_small(self, endpoint: Any, tag: Any, message: bytes) -> None:
        """Send a small message."""
        while self._flying and self._flying[0][0].completed:
            self._free.append(self._flying.popleft()[1])
        memory, arrays = self._free.pop() if self._free else (memoryview(bytearray(SMALL)), {})
        nbytes = len(message)
        memory[:nbytes] = message
        array = arrays.get(nbytes)
        if array is None:
            array = arrays[nbytes] = Array(memory[:nbytes])
        with translated("UCX cannot send"):
            self._flying.append((endpoint.tag_send(array, tag), (memory, arrays)))

    # -- sleeping --------------------------------------------------------------------------------------

    def sleep(self, timeout_s: float, also: Sequence[int], in_flight: bool) -> bool:
        """Sleep until UCX has work or one of ``also`` is readable; returns whether one of ``also`` is.

        Does not sleep if UCX has work already.

        Args:
            in_flight: whether a send or a receive is incomplete.
        """
        if not all(lane.worker.arm() for lane in self.lanes):
            timeout_s = 0.0
        elif in_flight or (self._flying and not self._flying[-1][0].completed):
            timeout_s = min(timeout_s, self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_SLEEP_S)
        for descriptor in also:
            self._poller.register(descriptor, select.POLLIN)
        try:
            ready = {descriptor for descriptor, _ in self._poller.poll(timeout_s * 1000)}
        finally:
            for descriptor in also:
                self._poller.unregister(descriptor)
        return any(descriptor in ready for descriptor in also)

    def moved(self) -> None:
        """Shorten the next sleep again, since something arrived."""
        self._pause_s = SHORT_SLEEP_S

    # -- the end ---------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish sends within ``FLUSH_S`` as far as possible, and free everything."""
        lobby, deadline = self.lobby, time.monotonic() + FLUSH_S
        for key in list(self._endpoints):
            self.bury(self._endpoints.pop(key))
        while self._flying or self._closing:
            if not lobby.worker.progress_once():
                if time.monotonic() > deadline:
                    break
                select.select([], [], [], SHORT_SLEEP_S)
            while self._flying and self._flying[0][0].completed:
                self._flying.popleft()
            self.bury(None)
        lobby.abandon(self._flying)
        self._flying.clear()
        self._closing.clear()
        for lane in self.lanes:
            self.close_lane(lane)
        del self.lobby, self._context


def address_text(session: int, address: bytes) -> str:
    """Format an address as text."""
    return f"ucx:{session}:{base64.b64encode(address).decode()}"


def parse_address(text: str, rank: int) -> tuple[int, bytes]:
    """Parse an address of ``address_text`` into session and worker address.

    Raises:
        TransportError: the text is no such address.
    """
    scheme, _, rest = text.partition(":")
    session, _, address = rest.partition(":")
    try:
        if scheme == "ucx":
            return int(session), base64.b64decode(address, validate=True)
    except (ValueError, binascii.Error) as error:
        raise TransportError(f"{text!r} is no address of rank {rank}") from error
    raise TransportError(f"{text!r} is no address of rank {rank}")

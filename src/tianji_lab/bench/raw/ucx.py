"""A raw loop over ucxx's synchronous core: tagged sends in a window, polling, an ack for every half window.

Messages are eager, like the engine's: that was two to four times as fast as ucxx's own setting, a rendezvous
from 8 KiB on.
"""

from __future__ import annotations

import base64
import mmap
import time
from collections import deque
from typing import Any, Final

from tianji_lab.bench.experiment import LEAD, Trial
from tianji_lab.bench.raw.loop import RawEnd, fill
from tianji_transports.core import EngineOptions
from tianji_transports.errors import TransportError
from tianji_transports.ucx.library import Array, libucxx, new_context, translated
from tianji_transports.ucx.port import SEAL, Lane, sealed

MESSAGE: Final = libucxx.UCXXTag(1)
ACK: Final = libucxx.UCXXTag(2)
EXACT: Final = libucxx.UCXXTagMask((1 << 64) - 1)
CLOSE_S: Final = 0.2
"""Maximum seconds in which UCX closes the endpoint to the other end."""
DIRECT_BYTES: Final = 8192
"""Message size from which UCX receives into the caller's memory; below, copying costs less than wrapping."""


class TagEnd(RawEnd):
    """One end: a UCX worker of its own, and an endpoint to the peer's worker."""

    def __init__(self, trial: Trial, rank: int, options: EngineOptions) -> None:
        del options
        self._lane = Lane(new_context())
        self._worker: Any = self._lane.worker
        self._endpoint: Any = None
        self.address = base64.b64encode(self._lane.address).decode()
        self._window = trial.window
        self._batch = max(1, trial.window // 2)
        buffers = 1 if rank == LEAD else 2 * trial.window
        ring = [memoryview(mmap.mmap(-1, trial.nbytes)) for _ in range(buffers)]
        self._ring = [(memory, Array(memory)) for memory in ring]
        self._ack = Array(memoryview(bytearray(8)))
        self._direct = trial.nbytes >= DIRECT_BYTES
        self._sent = self._received = 0
        self._credit = trial.window
        self._flying: deque[Any] = deque()
        self._coming: tuple[Any, Any] | None = None

    def connect(self, peer: str) -> None:
        """Make the endpoint to the other worker."""
        address = base64.b64decode(peer)
        if sealed(address[SEAL:]) != address:
            raise TransportError(f"{peer!r} is no address of UCX")
        with translated("UCX cannot reach the other end"):
            remote = libucxx.UCXAddress.create_from_buffer(address[SEAL:])
            self._endpoint = libucxx.UCXEndpoint.create_from_worker_address(self._worker, remote, False)

    def send(self, word: int) -> bool:
        """Fill and send the next buffer of the ring, if there is credit for it."""
        if self._credit == 0:
            found = self._worker.tag_probe(ACK, EXACT, True)
            if not found.matched:
                self._worker.progress_once()
                return False
            request = self._worker.tag_recv_with_handle(self._ack, found)
            while not request.completed:  # One small packet, which has arrived.
                self._worker.progress_once()
            self._credit += self._batch
        flying, ring = self._flying, self._ring
        while flying and flying[0].completed:
            flying.popleft()
        if len(flying) == len(ring):
            self._worker.progress_once()
            return False
        memory, array = ring[self._sent % len(ring)]
        fill(memory, word)
        flying.append(self._endpoint.tag_send(array, MESSAGE))
        self._sent += 1
        self._credit -= 1
        return True

    def receive(self, into: memoryview | None) -> memoryview | None:
        """Match a message, and have UCX receive it into ``into`` or the end's own memory."""
        memory, array = self._ring[0]
        if self._coming is None:
            found = self._worker.tag_probe(MESSAGE, EXACT, True)
            if not found.matched:
                self._worker.progress_once()
                return None
            if into is not None and self._direct:
                array = Array(into)
            self._coming = self._worker.tag_recv_with_handle(array, found), array
        if not self._coming[0].completed:
            self._worker.progress_once()
            return None
        self._coming = None
        self._received += 1
        if self._received % self._batch == 0:
            self._acknowledge()
        if into is None:
            return memory
        if not self._direct:
            into[:] = memory
        return into

    def _acknowledge(self) -> None:
        flying = self._flying
        flying.append(self._endpoint.tag_send(self._ack, ACK))
        while flying and flying[0].completed:
            flying.popleft()

    def flush(self) -> bool:
        """Progress UCX once; returns whether it needs none of the memory any more."""
        flying = self._flying
        while flying and flying[0].completed:
            flying.popleft()
        if flying:
            self._worker.progress_once()
        return not flying

    def close(self) -> None:
        """Close the endpoint to the other end, and end the worker."""
        if self._endpoint is not None:
            deadline = time.monotonic() + CLOSE_S
            # Deleting an endpoint that was not closed would wait for the peer.
            parting = self._endpoint.close()
            while not parting.completed and time.monotonic() < deadline:
                self._worker.progress_once()
            del parting
        requests = [(request, self._ring) for request in self._flying]
        if self._coming is not None:
            requests.append(self._coming)
        # Each of these references would keep the worker alive.
        self._endpoint = self._worker = self._coming = None
        self._flying.clear()
        self._lane.close(requests)

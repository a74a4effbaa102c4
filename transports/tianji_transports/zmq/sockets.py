"""The sockets of one ``zmq`` endpoint: their addresses, their connections, and the peers that may use them.

Knows ZMQ's options and CURVE; knows nothing of channels, credits and versions.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import struct
import time
from collections.abc import Sequence

import zmq

from tianji_transports.core import EngineOptions
from tianji_transports.errors import TransportError
from tianji_transports.wiring import Channel, Slot, Wiring
from tianji_transports.zmq.door import POLLIN, ByteSocket, Curve, Door, Password
from tianji_transports.zmq.frames import LINE, password

LINGER_MS = 200
"""Milliseconds that a closing endpoint waits for its last credits to leave."""
DOOR_EVERY_S = 0.001
"""Seconds between two looks at requests to connect: one costs as much as a small message."""
CONTROL_FRAMES = 1000
"""Room in a queue beside the window of pushes; one credit for each claim is the most."""
WAITING_REQUESTS = 16
"""HELLOs and JOINs that one connection may have unread beside its windows; further ones wait in TCP."""
MORE, RCVMORE = int(zmq.SNDMORE), int(zmq.RCVMORE)
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of ``mallopt``, in glibc's malloc.h."""
MOST_MMAP_THRESHOLD = 32 * 1024 * 1024
"""Largest mmap threshold that glibc takes, in bytes."""
HANDSHAKE_BYTES = 4096
"""Bytes for ZMQ's handshake and CURVE's part of a frame, which count towards a message's size limit."""


def readable(socket: ByteSocket) -> bool:
    """Whether a socket has something to receive."""
    return bool(zmq.zmq_poll([(socket, POLLIN)], 0))


def keep_freed_memory(nbytes: int) -> None:
    """Make the C library keep the memory of received frames for the next ones.

    libzmq allocates every frame. glibc would give a large frame's memory back to the kernel when it is
    freed and have every page of the next one faulted in anew, which costs as much as moving it.
    """
    with contextlib.suppress(AttributeError):  # a C library without mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, min(nbytes, 2**31 - 1))
        mallopt(M_MMAP_THRESHOLD, MOST_MMAP_THRESHOLD)


class Sockets:
    """Every socket of an endpoint, in a context of its own.

    Attributes:
        router: ROUTER at which senders and readers reach this endpoint.
        dealers: DEALER to each connected rank, by rank.
        publishers: PUB of each slot that this endpoint writes, by slot index.
        subscribers: SUB of each slot that it reads, by slot index.
        door: decides which peers may connect.
        address: all bound addresses: ``tcp://host:router,pub,pub...``, slots in the wiring's order.
    """

    def __init__(
        self, wiring: Wiring, rank: int, session: int, options: EngineOptions, written: Sequence[int]
    ) -> None:
        self._wiring = wiring
        self._options = options
        self._windows = sum(channel.window for channel in wiring.channels)
        self._identity = struct.pack("<BIQ", 1, rank, session)
        self._looked_at = 0.0
        self._context = zmq.Context()
        self.dealers: dict[int, ByteSocket] = {}
        self.publishers: dict[int, ByteSocket] = {}
        self.subscribers: dict[int, ByteSocket] = {}
        self._polled: list[tuple[ByteSocket | int, int]] = []
        received = sum(
            channel.max_bytes * (channel.window * len(channel.senders) + channel.borrow)
            for channel in wiring.channels
            if channel.receiver == rank
        )
        if received:
            keep_freed_memory(received)
        try:
            self.door = Door(self._context, self._key(""))
            self.router = self._socket(zmq.ROUTER)
            # A sender that floods this endpoint fills no more memory than one that keeps to its windows.
            self.router.rcvhwm = self._windows + WAITING_REQUESTS
            self.router.router_mandatory = True
            self._polled.append((self.router, POLLIN))
            ports = [self._bind(self.router)]
            for index in written:
                self.publishers[index] = self._socket(zmq.PUB)
                self.publishers[index].conflate = True
                ports.append(self._bind(self.publishers[index]))
        except zmq.ZMQError as error:
            self.close()
            raise TransportError(f"ZMQ cannot listen on {options.host!r}: {error}") from error
        self.address = f"tcp://{options.host}:{','.join(map(str, ports))}"
        self.door.key = self._key(self.address)
        self._polled += [(socket, POLLIN) for socket in self.door.sockets]

    def _key(self, address: str) -> Curve | Password:
        """Key of the endpoint at an address."""
        if self._options.public_key:
            return Curve(self._options.public_key, self._options.secret_key)
        return Password(password(self._wiring, address))

    def _socket(self, kind: int) -> ByteSocket:
        socket = self._context.socket(kind)
        socket.linger = LINGER_MS
        streams: list[Channel | Slot] = [*self._wiring.channels, *self._wiring.slots]
        largest = max((stream.max_bytes for stream in streams), default=0)
        socket.maxmsgsize = LINE + largest + HANDSHAKE_BYTES
        # ZMQ notes departures from a queue in steps of half its limit: up to half may count as still there.
        socket.sndhwm = socket.rcvhwm = 2 * (self._windows + CONTROL_FRAMES)
        return socket

    def _bind(self, socket: ByteSocket) -> int:
        self.door.guard(socket)
        return socket.bind_to_random_port(f"tcp://{self._options.host}")

    def connect(self, rank: int, address: str, read: Sequence[int]) -> None:
        """Connect to a rank and the slots ``read`` of it, in place of its earlier address."""
        base, _, ports = address.rpartition(":")
        numbers = ports.split(",")
        slots = [index for index, slot in enumerate(self._wiring.slots) if slot.writer == rank]
        if not base.startswith("tcp://") or len(numbers) != 1 + len(slots):
            raise TransportError(f"{address!r} is no address of rank {rank} in this wiring")
        if rank in self.dealers:
            self._drop(self.dealers.pop(rank))
        self.dealers[rank] = self._socket(zmq.DEALER)
        self.dealers[rank].routing_id = self._identity
        key = self._key(address)
        self._join(self.dealers[rank], f"{base}:{numbers[0]}", key)
        for index, port in zip(slots, numbers[1:], strict=True):
            if index in read:
                if index in self.subscribers:
                    self._drop(self.subscribers.pop(index))
                subscriber = self.subscribers[index] = self._socket(zmq.SUB)
                subscriber.conflate = True
                subscriber.subscribe(b"")
                self._join(subscriber, f"{base}:{port}", key)

    def _join(self, socket: ByteSocket, address: str, key: Curve | Password) -> None:
        key.show(socket)
        try:
            socket.connect(address)
        except zmq.ZMQError as error:
            raise TransportError(f"ZMQ cannot connect to {address!r}: {error}") from error
        self._polled.append((socket, POLLIN))

    def _drop(self, socket: ByteSocket) -> None:
        self._polled.remove((socket, POLLIN))
        socket.close(linger=0)

    def rejected(self) -> list[str]:
        """Answer requests to connect, unless it did so just now; returns reasons for rejections."""
        now = time.monotonic()
        if now < self._looked_at + DOOR_EVERY_S:
            return []
        self._looked_at = now
        return self.door.look()

    def sleep(self, timeout_s: float, also: Sequence[int]) -> bool:
        """Sleep until a socket or one of ``also`` is readable; returns whether one of ``also`` is."""
        polled = [*self._polled, *((descriptor, POLLIN) for descriptor in also)] if also else self._polled
        self._looked_at = 0.0  # A connection may wake this endpoint.
        ready = zmq.zmq_poll(polled, math.ceil(timeout_s * 1000))
        return bool(also) and any(found in also for found, _ in ready)

    def close(self) -> None:
        """Close every socket; waits at most ``LINGER_MS`` for unsent messages."""
        self._context.destroy()

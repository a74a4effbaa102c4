"""The control channel: ZMQ ROUTER at the root, a DEALER in every worker and node, CURVE on all.

It carries registration, addresses, reports and stop, and no samples. Each job has a key of its own in a
file that only its owner can read; a process without the key cannot speak to the root.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from tianji_cli.wire.address import LOOPBACK, JobKey, RootAddress
from tianji_cli.wire.messages import (
    Arrive,
    FromRoot,
    MalformedMessageError,
    Register,
    ToRoot,
    decode_from_root,
    decode_to_root,
    encode,
)
from tianji_transports.zmq.door import Curve, Door, all_shut

MAX_MESSAGE_BYTES: Final = 16 << 20
"""Maximum bytes of a control message; the socket refuses larger ones. Reports have a few kilobytes."""

MOST_AT_ONCE: Final = 1000
"""Messages that one look handles: a flood of them must not keep the root from the rest of its work."""

MOST_WAITING: Final = 100
"""Messages of one member that may wait here for the root to take them; more wait at the member."""

Peer = int | str
"""A worker by its rank, or a node by its name."""


class ControlServer:
    """The root's end: receives from all, and sends to each worker and node agent.

    Args:
        port: port to listen at; 0 takes any that is free.

    Attributes:
        ranks: processes of the job; a message in the name of another rank is malformed.
        rejected: number of rejected messages and connections.
        last_rejection: reason of the last rejection.

    Raises:
        OSError: the server cannot listen there.
    """

    def __init__(self, key: JobKey, host: str = LOOPBACK, port: int = 0) -> None:
        self.ranks = 0
        self.rejected = 0
        self.last_rejection = ""
        self._identities: dict[Peer, bytes] = {}
        self._incarnations: dict[int, int] = {}
        self._context = zmq.Context()
        try:
            self._door = Door(self._context, Curve(key.public, key.secret))
            self._router = self._context.socket(zmq.ROUTER)
            self._router.linger = 500
            self._router.rcvhwm = MOST_WAITING
            self._router.sndhwm = 0  # Pings pile up for a rank that is at work and listens as a worker.
            self._router.maxmsgsize = MAX_MESSAGE_BYTES
            self._router.router_mandatory = True
            self._router.router_handover = True  # A member that connects again is still the same.
            self._door.guard(self._router)
            self._router.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as cause:
            self.close()
            raise OSError(cause.errno, f"cannot listen on tcp://{host}:{port}: {cause.strerror}") from cause
        self.address = RootAddress(_endpoint(self._router), key)

    @property
    def sockets(self) -> tuple[zmq.Socket[bytes], ...]:
        """Sockets to poll: ``receive`` has something to do when one is readable."""
        return (self._router, *self._door.sockets)

    @property
    def descriptors(self) -> list[int]:
        """Descriptors, readable when ``receive`` may have work; edge-triggered: check ``is_ready`` first."""
        return [int(socket.fd) for socket in self.sockets]

    @property
    def is_ready(self) -> bool:
        """Whether ``receive`` has something to do."""
        return any(socket.poll(0) for socket in self.sockets)

    def wait(self, timeout_s: float, also: Sequence[int] = ()) -> None:
        """Sleep until ``receive`` has something to do, or one of some descriptors is readable."""
        _poll((*self.sockets, *also), timeout_s)

    def receive(self) -> list[ToRoot]:
        """Take the messages that have arrived; counts and drops those that are not of the protocol."""
        for rejection in self._door.look():
            self.reject(f"a control connection {rejection} was refused")
        messages: list[ToRoot] = []
        for _ in range(MOST_AT_ONCE):
            try:
                identity, *frames = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                if len(frames) != 1:
                    raise MalformedMessageError(f"it has {len(frames)} parts")
                message = decode_to_root(frames[0], self.ranks)
                self._bind(message, identity)
            except MalformedMessageError as cause:
                self.reject(f"a control message was malformed and dropped: {cause}")
                continue
            messages.append(message)
        return messages

    def _bind(self, message: ToRoot, identity: bytes) -> None:
        """Remember the identity of a worker or a node; an earlier incarnation does not get its rank back."""
        if isinstance(message, Register):
            if message.incarnation >= self._incarnations.get(message.rank, 0):
                self._incarnations[message.rank] = message.incarnation
                self._identities[message.rank] = identity
        elif isinstance(message, Arrive) and self._identities.setdefault(message.node, identity) != identity:
            raise MalformedMessageError("it arrives under the name of another node")

    def reject(self, why: str) -> None:
        """Count a rejected message or connection."""
        self.rejected += 1
        self.last_rejection = why

    def send(self, peer: Peer, message: FromRoot) -> bool:
        """Send to a worker or node; False if it is not connected: not yet, or no more."""
        identity = self._identities.get(peer)
        if identity is None:
            return False
        try:
            self._router.send_multipart([identity, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as cause:
            if cause.errno in {zmq.EHOSTUNREACH, zmq.EAGAIN}:
                return False
            raise
        return True

    def undisturbed(self) -> contextlib.AbstractContextManager[None]:
        """Keep strangers' connections from taking descriptors while the root opens files."""
        return all_shut()

    def close(self) -> None:
        """Send queued messages, within half a second, and free the sockets."""
        self._context.destroy()


class ControlClient(contextlib.AbstractContextManager["ControlClient"]):
    """The end of a worker or a node.

    Args:
        watched: follow the connection, for ``severed`` and ``turned_away``.

    Attributes:
        malformed: mistake in the last message that was not of the protocol; empty if there was none.
    """

    def __init__(self, root: RootAddress, *, watched: bool = False) -> None:
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.routing_id = b"\1" + os.urandom(15)
        self._dealer.linger = 1000
        # A few small messages a second: those that a slow root, or a rank at work, has not read may pile up.
        self._dealer.sndhwm = self._dealer.rcvhwm = 0
        self._dealer.maxmsgsize = MAX_MESSAGE_BYTES
        Curve(root.key.public, root.key.secret).show(self._dealer)
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        self._monitor = self._dealer.get_monitor_socket(events) if watched else None
        self.malformed = ""
        self._connected = False
        self._severed = False
        self._turned_away = False
        self._dealer.connect(root.address)

    @property
    def descriptor(self) -> int:
        """Descriptor, readable when ``receive`` may have work; edge-triggered, so drain it by ``receive``."""
        return int(self._dealer.fd)

    @property
    def severed(self) -> bool:
        """Whether the connection to the root was there and is lost: ZMQ tries again, but the root is gone."""
        self._check_monitor()
        return self._severed

    @property
    def turned_away(self) -> bool:
        """Whether the process that answers there does not know the key."""
        self._check_monitor()
        return self._turned_away

    def send(self, message: ToRoot) -> None:
        """Queue a message for the root. Never waits."""
        self._dealer.send(encode(message), zmq.NOBLOCK)

    def receive(self) -> list[FromRoot]:
        """Take everything that has arrived."""
        messages: list[FromRoot] = []
        while True:
            try:
                frames = self._dealer.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            try:
                messages.append(decode_from_root(b"".join(frames)))
            except MalformedMessageError as cause:  # A bad message must not end the worker.
                self.malformed = str(cause)

    def wait(self, timeout_s: float, also: tuple[int, ...] = ()) -> None:
        """Sleep until a message comes, the connection is lost, or a descriptor is readable."""
        monitor = () if self._monitor is None else (self._monitor,)
        _poll((self._dealer, *monitor, *also), timeout_s)

    def _check_monitor(self) -> None:
        while self._monitor is not None and self._monitor.poll(0):
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected, self._turned_away = True, False
            elif self._connected:
                self._severed = True
            else:
                self._turned_away = True

    def close(self) -> None:
        """Send queued messages, within a second, and free the sockets."""
        if self._monitor is not None:
            self._dealer.disable_monitor()
            self._monitor.close(linger=0)
        self._dealer.close()
        self._context.term()

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _poll(sources: Sequence[zmq.Socket[bytes] | int], timeout_s: float) -> None:
    """Sleep until one of some sockets and descriptors is readable."""
    poller = zmq.Poller()
    for source in sources:
        poller.register(source, zmq.POLLIN)
    poller.poll(int(timeout_s * 1000) + 1)


def _endpoint(socket: zmq.Socket[bytes]) -> str:
    """Ask a bound socket for its address."""
    endpoint = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(endpoint, bytes)
    return endpoint.rstrip(b"\0").decode()

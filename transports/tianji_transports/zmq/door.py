"""Access control for the listening sockets of a ZMQ context, and a limit on strangers' connections.

libzmq accepts every connection, keeps one that says nothing for half a minute, and stops at nothing but the
process's last descriptor, which a checkpoint then lacks. A ``Door`` lets members stay: peers with the job's
key, or inside a host with a password made from data that only the job's processes know. Any other peer is a
stranger, and the stranger that has waited longest is disconnected when descriptors run short.

libzmq stops accepting while its ``EVENTS`` are unread: between two looks it lets in a thousand
connections at most. Where there are no thousand descriptors to spare, files are opened behind a shut door;
since all doors draw on the same descriptors, a door that shuts looks at the thread's others meanwhile,
and the root shuts all of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import zmq
from zmq.utils import z85

from tianji_transports.endpoint import readable

NOBLOCK, POLLIN = int(zmq.NOBLOCK), int(zmq.POLLIN)
"""Flags of pyzmq as plain integers: an operation on a flag costs more than the call that it is for."""
ZAP_ADDRESS: Final = "inproc://zeromq.zap.01"
"""Address at which libzmq asks whether a peer's credentials are welcome (ZeroMQ RFC 27)."""
MEMBER: Final = b"member"
"""The user name that goes with a password."""
MOST_AT_ONCE: Final = 1000
"""Questions and events that one look takes: strangers must not keep an endpoint from the rest of its work."""
STRANGERS_SHARE: Final = 4
"""Strangers may hold one in so many of the process's descriptors; members, too, are strangers at first."""
MOST_STRANGERS: Final = 4096
"""Connections that may wait to be let in, however many descriptors there are: each takes memory, too."""
BACKLOG: Final = 4096
"""Connections that the kernel keeps until libzmq takes them: all workers of a job may come at once."""
GREETING, WELCOME, ERROR = 64, 170, 12
"""Bytes that libzmq sends to a peer that it does not let in: greeting, CURVE's WELCOME, ERROR, at most."""
BYTES_SENT: Final = 200
"""Offset of ``tcpi_bytes_sent`` in Linux's ``struct tcp_info``, with ``tcpi_bytes_retrans`` after it."""
# When two protocols differ, chance decides which side hangs up first, and so which event comes.
FAILED: Final = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
ACCEPTED, LISTENING = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_LISTENING)
EVENTS: Final = FAILED | ACCEPTED | LISTENING | int(zmq.EVENT_DISCONNECTED)
SPARE: Final = 32
"""Descriptors that are free before the door counts as shut: a checkpoint needs a handful."""
SHUT_LIMIT_S: Final = 5.0
"""Maximum seconds to wait for free descriptors: a busy machine needs two for five thousand strangers, and
strangers cannot prolong it. A learner that stops saves first, and has twice as long."""

KEYLESS: Final = "without the job's key"
HANDSHAKE_INCOMPLETE: Final = "that did not come as far as to show a key"

ByteSocket = zmq.Socket[bytes]


@dataclass(frozen=True)
class Curve:
    """A job's CURVE key pair (Z85): peers that have it are members; it encrypts all messages."""

    public: str
    secret: str
    most_to_strangers: ClassVar[int] = GREETING + WELCOME + ERROR

    def guard(self, listening: ByteSocket) -> None:
        """Set a listening socket to admit members only."""
        listening.curve_server = True
        listening.curve_publickey, listening.curve_secretkey = self.public.encode(), self.secret.encode()

    def show(self, connecting: ByteSocket) -> None:
        """Set a connecting socket to present the credentials of a member."""
        connecting.curve_serverkey = self.public.encode()
        connecting.curve_publickey, connecting.curve_secretkey = self.public.encode(), self.secret.encode()

    def opens(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        """Whether these are the credentials of a member."""
        return mechanism == b"CURVE" and list(credentials) == [z85.decode(self.public)]


@dataclass(frozen=True)
class Password:
    """A password, for sockets inside a host: it keeps strangers out and encrypts nothing."""

    word: str
    most_to_strangers: ClassVar[int] = GREETING + ERROR

    def guard(self, listening: ByteSocket) -> None:
        """Set a listening socket to admit members only."""
        listening.plain_server = True

    def show(self, connecting: ByteSocket) -> None:
        """Set a connecting socket to present the credentials of a member."""
        connecting.plain_username, connecting.plain_password = MEMBER, self.word.encode()

    def opens(self, mechanism: bytes, credentials: Sequence[bytes]) -> bool:
        """Whether these are the credentials of a member."""
        return mechanism == b"PLAIN" and list(credentials) == [MEMBER, self.word.encode()]


class Door:
    """Decides which peers may connect to the listening sockets of a context; owned by their thread.

    Attributes:
        key: may be replaced until the first look.
        sockets: readable when ``look`` has something to do.
    """

    def __init__(self, context: zmq.Context[ByteSocket], key: Curve | Password) -> None:
        self.key = key
        # libzmq asks here at every handshake, and goes on without an answer meanwhile: no thread is needed.
        self._gate = context.socket(zmq.REP)
        self._gate.linger = 0
        self._gate.bind(ZAP_ADDRESS)
        self.sockets = [self._gate]
        self._listening: list[int] = []
        self._waiting: dict[tuple[int, int], None] = {}
        self._rejected: list[str] = []
        self._times_shut = 0
        _made().add(self)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        few = limit != resource.RLIM_INFINITY
        self._allowed = min(MOST_STRANGERS, limit // STRANGERS_SHARE) if few else MOST_STRANGERS

    def guard(self, listening: ByteSocket) -> None:
        """Let only members into a socket; the caller binds the socket afterwards."""
        self.key.guard(listening)
        listening.backlog = BACKLOG
        address = f"inproc://door-{len(self.sockets)}"
        listening.monitor(address, EVENTS)
        monitor = listening.context.socket(zmq.PAIR)
        monitor.linger, monitor.rcvhwm = 0, 1
        monitor.connect(address)
        self.sockets.append(monitor)

    def look(self) -> list[str]:
        """Answer requests to connect, and disconnect strangers if there are too many.

        Returns:
            The reason for each connection that was rejected, or that ended before it was let in.
        """
        ready = {found for found, _ in zmq.zmq_poll([(found, POLLIN) for found in self.sockets], 0)}
        if self._gate in ready:
            self._answer()
        for monitor in self.sockets[1:]:
            if monitor in ready:
                self._read_events(monitor)
        rejected, self._rejected = self._rejected, []
        return rejected

    def look_again(self) -> None:
        """Look, and keep the reasons for the next ``look``."""
        self._rejected = self.look()

    def keep_out(self) -> None:
        """Let no connection in until ``let_in`` has been called as often as this."""
        self.look_again()  # It says which sockets listen, too.
        self._times_shut += 1
        for descriptor in self._listening:
            keep_out(descriptor)

    def let_in(self) -> None:
        """Undo one ``keep_out``."""
        self._times_shut -= 1
        if not self._times_shut:
            for descriptor in self._listening:
                let_in(descriptor)

    @property
    def has_callers(self) -> bool:
        """Whether connections are there that libzmq has not accepted yet."""
        return bool(readable(self._listening, 0.0))

    def shut(self) -> contextlib.AbstractContextManager[None]:
        """Let no connection in during a context, which begins with descriptors to spare.

        Peers that connect meanwhile get an answer a second later, when TCP tries again.
        """
        return _shut([self])

    def _answer(self) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                version, request, _, _, _, mechanism, *credentials = self._gate.recv_multipart(NOBLOCK)
            except zmq.Again:
                return
            welcome = self.key.opens(mechanism, credentials)
            verdict = (b"200", b"OK") if welcome else (b"400", b"not a member of this job")
            self._gate.send_multipart([version, request, *verdict, b"", b""], NOBLOCK)
            if not welcome:
                self._rejected.append(KEYLESS)

    def _read_events(self, monitor: ByteSocket) -> None:
        for _ in range(MOST_AT_ONCE):
            try:
                packed, endpoint = monitor.recv_multipart(NOBLOCK)
            except zmq.Again:
                return
            event, value = struct.unpack("=hi", packed)
            if event & FAILED:
                self._rejected.append(HANDSHAKE_INCOMPLETE)
                continue
            if event == LISTENING:
                self._listening.append(value)
                continue
            # A reused descriptor may be reported here before another monitor reports its end.
            connection = value, int(endpoint.rpartition(b":")[2])
            self._waiting.pop(connection, None)
            if event == ACCEPTED:
                self._waiting[connection] = None
                while len(self._waiting) > self._allowed:
                    longest = next(iter(self._waiting))
                    del self._waiting[longest]
                    self._put_out(*longest)

    def _put_out(self, descriptor: int, port: int) -> None:
        """Shut a connection of libzmq's down, unless it is a member's; libzmq then closes it.

        libzmq's thread closes connections without waiting for us, so the descriptor may be another file's by
        now: this touches only a connection to the port whose peer was sent no more than strangers are.
        """
        with contextlib.suppress(OSError, struct.error), borrowed(descriptor) as connection:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT + 16)
            sent, again = struct.unpack_from("=QQ", info, BYTES_SENT)
            if connection.getsockname()[1] == port and sent - again <= self.key.most_to_strangers:
                connection.shutdown(socket.SHUT_RDWR)


def all_shut() -> contextlib.AbstractContextManager[None]:
    """Shut all doors of this thread, so that strangers at none of them take the others' spare descriptors."""
    return _shut(_doors_of_thread())


@contextlib.contextmanager
def _shut(doors: Sequence[Door]) -> Iterator[None]:
    looked_at = _doors_of_thread()
    sockets = [(found, POLLIN) for door in looked_at for found in door.sockets]
    for door in doors:
        door.keep_out()
    deadline = time.monotonic() + SHUT_LIMIT_S
    try:
        while not _are_quiet(doors) and time.monotonic() < deadline:
            zmq.zmq_poll(sockets, 1)
            for door in looked_at:
                door.look_again()
        yield
    finally:
        for door in doors:
            door.let_in()


def _are_quiet(doors: Sequence[Door]) -> bool:
    """Whether libzmq has accepted all connections, and has closed enough of those that the doors put out."""
    if any(door.has_callers for door in doors):
        return False
    free: list[int] = []
    try:
        free.extend(os.dup(0) for _ in range(SPARE))
    except OSError:
        return False
    finally:
        for descriptor in free:
            os.close(descriptor)
    return True


_here = threading.local()


def _doors_of_thread() -> list[Door]:
    """All doors that this thread has made and not closed."""
    return [door for door in _made() if not door._gate.closed]


def _made() -> weakref.WeakSet[Door]:
    if not hasattr(_here, "doors"):
        _here.doors = weakref.WeakSet()
    found: weakref.WeakSet[Door] = _here.doors
    return found


SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
_DROP: Final = ctypes.create_string_buffer(struct.pack("@HBBI", 0x06, 0, 0, 0))
"""The program "return 0", which keeps nothing of any packet."""


def listening() -> set[int]:
    """Find the descriptors of this process's sockets that listen for connections over a network."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), borrowed(int(name)) as candidate:
            if candidate.family in {socket.AF_INET, socket.AF_INET6} and candidate.getsockopt(
                socket.SOL_SOCKET, socket.SO_ACCEPTCONN
            ):
                found.add(int(name))
    return found


def keep_out(descriptor: int) -> None:
    """Admit no connection to a listening socket from now on. Does nothing on a system that cannot."""
    _set(descriptor, SO_ATTACH_FILTER, struct.pack("@HP", 1, ctypes.addressof(_DROP)))


def let_in(descriptor: int) -> None:
    """Admit connections again after ``keep_out``."""
    _set(descriptor, SO_DETACH_FILTER, struct.pack("@i", 0))


def _set(descriptor: int, option: int, value: bytes) -> None:
    with contextlib.suppress(OSError), borrowed(descriptor) as listener:
        listener.setsockopt(socket.SOL_SOCKET, option, value)


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Wrap a descriptor in a socket object, and leave it open."""
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()

"""Exchanges the addresses of a job's endpoints, for programs that start their processes themselves.

An endpoint introduces itself by one line of text. ``meet`` brings the lines of all ranks together, in a file,
over TCP or by MPI, or takes those that the starter of the process has left in an environment variable, and
connects. A line of another wiring is an error, and so is a rank that comes twice.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import json
import math
import os
import re
import socket
import stat
import time
from typing import Final

import zmq
from zmq.utils import z85

from tianji_transports.core import Transport
from tianji_transports.errors import TransportError
from tianji_transports.registry import load
from tianji_transports.wiring import digest
from tianji_transports.zmq.door import ByteSocket, Curve, Door

LOOK_S: Final = 0.05
"""Seconds between two looks at what rings no bell: a file, which may be another host's, and MPI."""
LINGER_MS: Final = 2000
"""Maximum milliseconds in which the last answers leave over TCP."""
LINE_BYTES: Final = 1 << 14
"""Maximum bytes of a line; with UCX's addresses, the longest, it has one or two thousand."""
MOST_BYTES: Final = 1 << 24
"""Maximum bytes of all lines."""


def introduction(endpoint: Transport) -> str:
    """Make the line that introduces an endpoint to its peers: hash of the wiring, rank and address.

    Raises:
        TransportError: the address is too long.
    """
    line = json.dumps([digest(endpoint.wiring), endpoint.rank, endpoint.address]) + "\n"
    if len(line) > LINE_BYTES:
        raise TransportError(f"rank {endpoint.rank} has an address of over {LINE_BYTES} bytes")
    return line


def meet(endpoint: Transport, at: str, timeout_s: float = 60.0) -> None:
    """Exchange addresses with the other ranks of the job, and connect an endpoint to them.

    Does nothing for an engine whose endpoints find one another by the job's id (``shm``, ``inproc``).

    Args:
        endpoint: of this process.
        at: ``"file:PATH"``, a new file in each run, which may be on a file system of several hosts;
            ``"tcp://HOST:PORT"``, where the lowest rank listens (off loopback ``EngineOptions`` need a key);
            ``"mpi"``, if every process of an MPI job has one endpoint; or ``"env:NAME"``, a variable with the
            introductions of those peers that this endpoint sends to or reads from.
        timeout_s: maximum seconds until all ranks are there.

    Raises:
        TransportError: a rank has not come in time, has another wiring or comes twice, or the place is none
            to meet at.
    """
    if not endpoint.address:
        return
    scheme, _, place = at.partition(":")
    deadline = time.monotonic() + timeout_s
    try:
        if scheme == "file" and place:
            lines = _by_file(endpoint, place, deadline)
        elif scheme == "tcp" and (match := re.fullmatch(r"//([^:/*\s]+):(\d{1,5})", place)):
            lines = _by_tcp(endpoint, socket.gethostbyname(match[1]), int(match[2]), deadline)
        elif at == "mpi":
            lines = _by_mpi(endpoint, deadline)
        elif scheme == "env" and place in os.environ:
            lines = os.environ[place]
        else:
            right = "file:PATH, tcp://HOST:PORT, mpi, or env:NAME of a variable that is set"
            raise TransportError(f"nobody can meet at {at!r}; write {right}")
        found = _read(lines, endpoint)
        if scheme != "env" and (absent := endpoint.wiring.ranks - found.keys()):
            why = endpoint.counters.first_rejection
            names = ", ".join(map(str, sorted(absent)))
            raise TimeoutError(f"rank {names} has not come" + (why and f"; one was rejected because {why}"))
    except TimeoutError as cause:
        raise TransportError(f"rank {endpoint.rank} waited {timeout_s:g} s at {at}: {cause}") from cause
    except (OSError, zmq.ZMQError) as cause:
        raise TransportError(f"rank {endpoint.rank} cannot meet others at {at}: {cause.strerror}") from cause
    endpoint.connect({rank: address for rank, address in found.items() if rank != endpoint.rank})


def _read(lines: str, endpoint: Transport) -> dict[int, str]:
    """Read introductions: addresses by rank.

    Raises:
        TransportError: one is malformed, of another wiring, or of a rank that is there already.
    """
    found: dict[int, str] = {}
    right = (digest(endpoint.wiring), int, str)
    for line in lines.splitlines():
        try:
            wiring, rank, address = json.loads(line)
        except (ValueError, TypeError, RecursionError) as cause:
            raise TransportError(f"{line[:80]!r} introduces no endpoint") from cause
        if (wiring, type(rank), type(address)) != right or rank not in endpoint.wiring.ranks:
            raise TransportError(f"rank {rank!r:.20} has another wiring than rank {endpoint.rank}")
        if rank in found:
            raise TransportError(f"two endpoints of rank {rank} have come")
        found[rank] = address
    return found


def _by_file(endpoint: Transport, path: str, deadline: float) -> str:
    """Append a line to a file, and wait for the others'. All looks lock: network file systems need it."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(path, flags, 0o600), "r+b", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise TransportError(f"{path} is no file of yours that others cannot write to; take a new one")
        own = introduction(endpoint).encode()
        while True:
            fcntl.lockf(file, fcntl.LOCK_EX)
            lines = os.pread(file.fileno(), MOST_BYTES, 0).decode(errors="replace")
            found = _read(lines, endpoint)
            if own and endpoint.rank in found:
                raise TransportError(f"rank {endpoint.rank} has met others in {path} before; take a new file")
            file.write(own)
            own = b""
            fcntl.lockf(file, fcntl.LOCK_UN)
            if found.keys() == endpoint.wiring.ranks or time.monotonic() > deadline:
                return lines
            endpoint.wait(LOOK_S)


def _by_mpi(endpoint: Transport, deadline: float) -> str:
    """Gather the lines of all processes of the MPI job."""
    load("mpi")  # If it is not installed, the error is the pip command.
    from tianji_transports.mpi.world import MPI, initialise, leave  # noqa: PLC0415 - an extra

    world = initialise()
    own = bytearray(introduction(endpoint).encode().rjust(LINE_BYTES))
    all_lines = bytearray(LINE_BYTES * world.Get_size())
    request = world.Iallgather([own, MPI.BYTE], [all_lines, MPI.BYTE])
    while not request.Test():
        if time.monotonic() > deadline:
            leave(request, (own, all_lines))
            raise TimeoutError("a process of the MPI job has not come")
        endpoint.wait(LOOK_S)
    return all_lines.decode(errors="replace")


def _by_tcp(endpoint: Transport, host: str, port: int, deadline: float) -> str:
    """Collect all lines if this rank is the lowest; else send it one, and receive all."""
    lowest = min(endpoint.wiring.ranks)
    public, secret = endpoint.options.public_key, endpoint.options.secret_key
    if not public:
        if not ipaddress.ip_address(host).is_loopback:
            right = "EngineOptions(public_key=..., secret_key=...), both of zmq.curve_keypair()"
            raise TransportError(f"other hosts reach {host}: all ranks need a key, {right}")
        # Who knows the job's id gets in, as with the zmq engine.
        secret = z85.encode(hashlib.sha256(f"rendezvous {endpoint.wiring!r}".encode()).digest()).decode()
        public = zmq.curve_public(secret.encode()).decode()
    key, at = Curve(public, secret), f"tcp://{host}:{port}"
    context: zmq.Context[ByteSocket] = zmq.Context()
    try:
        own = context.socket(zmq.ROUTER if endpoint.rank == lowest else zmq.DEALER)
        if endpoint.rank == lowest:
            door = Door(context, key)  # Held here, as `own` is, until the context has sent all.
            return _collect(endpoint, own, at, door, deadline)
        own.maxmsgsize = MOST_BYTES
        key.show(own)
        own.connect(at)
        own.send(introduction(endpoint).encode())
        if not own.poll(math.ceil(1000 * max(0.0, deadline - time.monotonic()))):
            raise TimeoutError(f"rank {lowest} has not answered; is it there, with this key and wiring?")
        return own.recv().decode(errors="replace")
    finally:
        context.destroy(LINGER_MS if endpoint.rank == lowest else 0)


def _collect(endpoint: Transport, router: ByteSocket, at: str, door: Door, deadline: float) -> str:
    """Receive the lines of all ranks, and send all lines to each rank that has come."""
    router.maxmsgsize = LINE_BYTES
    door.guard(router)
    router.bind(at)
    lines, peers = introduction(endpoint), list[bytes]()
    polled = [(found, int(zmq.POLLIN)) for found in (router, *door.sockets)]
    try:
        while _read(lines, endpoint).keys() != endpoint.wiring.ranks and (now := time.monotonic()) < deadline:
            ready = dict(zmq.zmq_poll(polled, math.ceil(1000 * (deadline - now))))
            for reason in door.look():
                endpoint.counters.reject(f"of a connection {reason}")
            if router in ready:
                peer, *frames = router.recv_multipart()
                peers.append(peer)
                lines += b"".join(frames).decode(errors="replace")
    finally:  # After an error, too: so its peers learn of it.
        for peer in peers:
            router.send_multipart([peer, lines.encode()])
    return lines

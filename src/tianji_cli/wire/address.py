"""Addresses at which members of a job reach its root, and the job's key, which proves membership.

A process that has the key is a member, and can receive from the job and send to it; no other can.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import re
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import psutil
import zmq

from tianji_cli.errors import UsageError, os_errors_as
from tianji_cli.files.regular import open_regular
from tianji_transports.core import EngineOptions

LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(r"tcp://(?P<host>[^:/\s]+):(?P<port>\d{1,5})")
_PROBE_PORT: Final = 9
"""Any port does: connecting a datagram socket sends nothing, it only looks up the route."""


def parse_address(address: str) -> tuple[str, int]:
    """Take ``tcp://HOST:PORT`` apart.

    Raises:
        UsageError: the text is no address, or names no host that others could reach.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise UsageError(f"{address!r} is no address; write tcp://HOST:PORT, such as tcp://10.0.0.1:5555")
    host = match["host"]
    if host in {"*", "0.0.0.0"}:  # noqa: S104 - refused, not bound to
        raise UsageError(f"{address!r} says nothing to other hosts; name the address that they reach")
    return host, int(match["port"])


def resolve(host: str) -> str:
    """Find the IPv4 address of a host by its name.

    Raises:
        UsageError: the host has none.
    """
    with os_errors_as(UsageError, f"there is no address for host {host!r}"):
        return socket.gethostbyname(host)


def address_towards(host: str) -> str:
    """Find the address of this host by which another host reaches it.

    Raises:
        UsageError: there is no route.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with os_errors_as(UsageError, f"there is no route to {host}"):
            probe.connect((host, _PROBE_PORT))
        return str(probe.getsockname()[0])


def free_port(address: str) -> int:
    """Find a free TCP port at an address of this host.

    Raises:
        UsageError: it is no address of this host.
    """
    with socket.socket() as free:
        with os_errors_as(UsageError, f"{address} is no address of this host"):
            free.bind((address, 0))
        return int(free.getsockname()[1])


def own_address() -> str:
    """Find an address that other hosts may reach.

    Returns the address of this host's name if an interface has it, else the first of an interface that is
    up, else loopback.
    """
    states = psutil.net_if_stats()
    addresses = [
        str(entry.address)
        for name, entries in psutil.net_if_addrs().items()
        for entry in entries
        if entry.family == socket.AF_INET and name in states and states[name].isup
    ]
    with contextlib.suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
        if named in addresses and not is_loopback(named):
            return named
    return next((address for address in addresses if not is_loopback(address)), LOOPBACK)


def link_mb_per_s(address: str) -> float | None:
    """Ask the driver of an address's interface for the speed of its link, in MB (1e6 bytes) per second.

    Returns None if the driver does not say; the number of a virtual interface means nothing.
    """
    states = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in entries) and name in states:
            return states[name].speed / 8 or None
    return None


def is_loopback(host: str) -> bool:
    """Whether an address stays inside this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


MOST_BYTES: Final = 4096
"""Maximum bytes of a key file; a job's key takes a hundred."""


@dataclass(frozen=True)
class JobKey:
    """A CURVE key pair (Z85) that all members of a job share, on the control channel and on ZMQ's data path.

    Attributes:
        public: identifies the job to its members.
        secret: proves membership; never leaves the processes and the file of the job.
    """

    public: str
    secret: str

    @classmethod
    def new(cls) -> Self:
        """Make a key for one job."""
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def write(self, path: Path) -> None:
        """Write a file that only its owner can read.

        Raises:
            FileExistsError: there is one already; it may be another job's.
        """
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a key file.

        Raises:
            UsageError: the file is not there, is no key, is another user's, or others can read it too.
        """
        try:
            with open(open_regular(path.resolve()), "rb") as file:
                status = os.fstat(file.fileno())
                if status.st_mode & 0o077:
                    raise UsageError(
                        f"others can read the key in {path}: chmod 600 {path}, or make a new job"
                    )
                if status.st_uid not in {0, os.geteuid()}:
                    raise UsageError(f"the key in {path} is neither yours nor root's: use a copy of your own")
                content = file.read(MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise ValueError(f"it has more than {MOST_BYTES} bytes")
            key = cls(**json.loads(content))
            if zmq.curve_public(key.secret.encode()).decode() != key.public:
                raise ValueError("its halves do not belong together")
        except OSError as cause:
            raise UsageError(f"cannot read the job's key in {path}: {cause.strerror}") from cause
        except (ValueError, TypeError, AttributeError, RecursionError) as cause:
            raise UsageError(f"{path} holds no key of a job: {cause}") from cause
        return key


@dataclass(frozen=True)
class RootAddress:
    """Address of a root, ``tcp://HOST:PORT``, and the job's key, which a member needs as well."""

    address: str
    key: JobKey


def write_new_key(path: Path) -> JobKey:
    """Make a key for a job that begins later, and write it."""
    key = JobKey.new()
    key.write(path)
    return key


def engine_options(interface: str, key: JobKey) -> EngineOptions:
    """Engine options of an endpoint at an interface. Off loopback, nothing gets in without the job's key."""
    if is_loopback(interface):
        return EngineOptions(interface)
    return EngineOptions(interface, key.public, key.secret)

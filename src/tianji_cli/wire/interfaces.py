"""Which address of this host others reach it by, and how the root's is written on the command line."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from typing import Final

import psutil

from tianji_cli.errors import UsageError

LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(r"tcp://(?P<host>[^:/\s]+):(?P<port>\d{1,5})")
_PROBE_PORT: Final = 9
"""Any port does: connecting a datagram socket sends nothing, it only looks up the route."""


def parse_address(address: str) -> tuple[str, int]:
    """Take ``tcp://HOST:PORT`` apart.

    Raises:
        UsageError: it is none, or names no host that others could reach.
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
        UsageError: it has none.
    """
    try:
        return socket.gethostbyname(host)
    except OSError as cause:
        raise UsageError(f"there is no address for host {host!r}: {cause.strerror}") from cause


def address_towards(host: str) -> str:
    """Find this host's own address on the way to another host: where that one reaches it.

    Raises:
        UsageError: there is no way.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, _PROBE_PORT))
        except OSError as cause:
            raise UsageError(f"there is no route to {host}: {cause.strerror}") from cause
        return str(probe.getsockname()[0])


def own_address() -> str:
    """Find an address that other hosts may reach.

    The one this host's name stands for if it is an interface's, else the first of an interface that is up,
    else loopback.
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
    """Ask the driver of the interface with an address what its link carries, in MB (1e6 bytes) per second.

    None if it does not say; virtual interfaces name a number that means nothing.
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

"""Two hosts with 1 Gbit/s Ethernet between them: network namespaces, a veth pair and a token bucket.

Names carry the pid of their maker, and who makes a pair first removes those of makers that are dead.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from beds.unavailable import BedUnavailableError, attempt, require_programs, require_root

ADDRESSES: Final = ("10.77.0.1", "10.77.0.2")
LINK_BYTES_PER_S: Final = 125e6
SHAPING: Final = ("tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms")
PREFIX: Final = "tianji-"
NAMED: Final = Path("/run/netns")
PORT: Final = "eth0"
UP_S: Final = 30.0
FAR: Final = Path(__file__).with_name("far.py")

_pairs = itertools.count()


class Host:
    """One of the two ends.

    Attributes:
        address: its IPv4 address on the wire.
        namespace: name of its network namespace.
    """

    def __init__(self, namespace: str, address: str) -> None:
        self.namespace = namespace
        self.address = address

    def command(self, *command: str | Path) -> list[str]:
        """Say how to run a command on this host."""
        return ["ip", "netns", "exec", self.namespace, *map(str, command)]

    def run(self, *command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end; options are those of ``subprocess.run``."""
        return subprocess.run(self.command(*command), capture_output=True, text=True, check=False, **options)

    def processes(self) -> dict[int, str]:
        """Return the processes on this host, with their titles."""
        found = {}
        shown = subprocess.run(
            ["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False
        )
        for pid in map(int, shown.stdout.split()):
            with contextlib.suppress(OSError):  # It has ended meanwhile.
                title = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                found[pid] = title.decode(errors="replace").strip()
        return found

    @property
    def sent_bytes(self) -> int:
        """Bytes that left this host over the wire so far, with their headers."""
        return self._counter("tx_bytes")

    @property
    def received_bytes(self) -> int:
        """Bytes that reached this host over the wire so far, with their headers."""
        return self._counter("rx_bytes")

    def pids(self, title: str) -> list[int]:
        """Find the processes on this host whose title begins so."""
        return [pid for pid in _pids(self.namespace) if _title(pid).startswith(title)]

    def wait_until_up(self) -> None:
        """Wait until the kernel says that the link runs; until then UCX would not use it.

        Raises:
            BedUnavailableError: it does not within ``UP_S``.
        """
        deadline = time.monotonic() + UP_S
        while self.run("cat", f"/sys/class/net/{PORT}/operstate", timeout=60).stdout.strip() != "up":
            if time.monotonic() > deadline:
                raise BedUnavailableError(f"the link of {self.namespace} is not up within {UP_S:g} s")
            time.sleep(0.02)

    def _counter(self, name: str) -> int:
        # A namespace's sysfs is mounted by `ip netns exec`.
        shown = self.run("cat", f"/sys/class/net/{PORT}/statistics/{name}", timeout=60)
        return int(shown.stdout)


class Wire:
    """Two hosts and the shaped link between them; enter it to have them, leave it to remove them.

    Attributes:
        hosts: both ends.
    """

    def __init__(self) -> None:
        require_root("network namespaces")
        require_programs(("ip", "tc"), "iproute2")
        _remove_stale()
        stem = f"{PREFIX}{os.getpid()}-{next(_pairs)}"
        self.hosts = (Host(f"{stem}-a", ADDRESSES[0]), Host(f"{stem}-b", ADDRESSES[1]))
        self._far: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def cut(self, sender: Host, receiver: Host) -> None:
        """Lose all that one host sends the other from now on: it has a wrong hardware address for it."""
        wrong = ("lladdr", "02:00:00:00:00:01", "dev", PORT, "nud", "permanent")
        attempt("ip", "-n", sender.namespace, "neigh", "replace", receiver.address, *wrong)

    def set_link(self, *, up: bool) -> None:
        """Take the link of both hosts down, or up again."""
        for host in self.hosts:
            attempt("ip", "-n", host.namespace, "link", "set", PORT, "up" if up else "down")

    def slow_down(self, delay_s: float, loss: float) -> None:
        """Delay each packet from now on, and lose some, as over a link around the world."""
        here, there = self.hosts
        self._far = subprocess.Popen(
            here.command(sys.executable, FAR, there.namespace, str(delay_s), str(loss)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._far.stdout is not None
        if self._far.stdout.readline() != b"ready\n":
            raise BedUnavailableError("no link that delays packets: /dev/net/tun is wanted")
        for host in self.hosts:
            within, address = ("ip", "-n", host.namespace), f"{host.address}/24"
            attempt(*within, "link", "set", "far0", "up")
            attempt(*within, "address", "del", address, "dev", PORT)
            attempt(*within, "address", "add", address, "dev", "far0")

    def _make(self) -> None:
        first, second = self.hosts
        for host in self.hosts:
            attempt("ip", "netns", "add", host.namespace)
        # Made inside the first namespace: no name of theirs is ever seen outside.
        pair = ("type", "veth", "peer", "name", PORT, "netns", second.namespace)
        attempt("ip", "-n", first.namespace, "link", "add", PORT, *pair)
        for host in self.hosts:
            within = ("ip", "-n", host.namespace)
            attempt(*within, "address", "add", f"{host.address}/24", "dev", PORT)
            attempt(*within, "link", "set", "lo", "up")
            attempt(*within, "link", "set", PORT, "up")
            attempt("tc", "-n", host.namespace, "qdisc", "add", "dev", PORT, "root", *SHAPING)
        for host in self.hosts:
            host.wait_until_up()

    def _remove(self) -> None:
        """Remove the namespaces, and the link with them, after ending whatever still runs there."""
        if self._far is not None:
            self._far.communicate()
        for host in self.hosts:
            _remove_namespace(host.namespace)


def _remove_namespace(name: str) -> None:
    for pid in _pids(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _pids(namespace: str) -> list[int]:
    command = ["ip", "netns", "pids", namespace]
    return list(map(int, subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()))


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:  # It has ended since.
        return ""


def _remove_stale() -> None:
    """Remove the namespaces of makers that were killed."""
    for name in _named():
        maker = name.removeprefix(PREFIX).partition("-")[0]
        if not Path(f"/proc/{maker}").exists():
            _remove_namespace(name)


def _named() -> Sequence[str]:
    return [place.name for place in NAMED.glob(f"{PREFIX}*")]

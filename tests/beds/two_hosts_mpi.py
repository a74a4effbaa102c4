"""The two hosts of ``namespaces`` under one ``mpiexec``: its ranks talk across the wire and nowhere else.

MPICH's process manager starts what runs on another host through a remote shell. Ours enters that host's
network namespace and gives it a name of its own, since hosts are told apart by name; on demand it also enters
a namespace of time, whose monotonic clock is ahead by as much as that of a host that has been up for longer.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from beds.namespaces import Host, Wire
from beds.unavailable import BedUnavailableError, attempt, require_programs

NAMES: Final = ("first", "second")
SETTINGS: Final[Mapping[str, str]] = {"UCX_TLS": "tcp,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}
"""UCX takes both for one host and would go through shared memory, under MPICH as by itself."""
MPIEXEC: Final = Path(sys.executable).with_name("mpiexec")

REMOTE_SHELL: Final = """\
#!/bin/sh
while [ "$1" = -x ]; do shift; done
case "$1" in
{cases}
*) echo "no host $1 here" >&2; exit 1;;
esac
shift
exec $enter sh -c "hostname $name && $*"
"""
"""Called like ssh: options, a host, and a command for a shell there."""


@dataclass(frozen=True)
class TwoHosts:
    """Where ranks run.

    Attributes:
        wire: between the hosts.
        environment: what ranks need, besides ours.
        shell: the remote shell.
    """

    wire: Wire
    environment: Mapping[str, str]
    shell: Path

    def mpiexec(self, ranks: Sequence[int], *command: str | Path) -> list[str]:
        """Say how to run a command in ranks on both hosts.

        Args:
            ranks: how many on the first host, and how many on the second; they are numbered in that order.
            command: of each rank.
        """
        first, second = self.wire.hosts
        places = [f"{host.address}:{count}" for host, count in zip((first, second), ranks, strict=True)]
        launch = [MPIEXEC, "-launcher", "ssh", "-launcher-exec", self.shell, "-hosts", ",".join(places)]
        within = first.command("unshare", "--uts", "sh", "-c", f'hostname {NAMES[0]} && exec "$@"', "sh")
        return [*within, *map(str, launch), "-n", str(sum(ranks)), *map(str, command)]


@contextmanager
def two_hosts(*, second_clock_ahead_s: int = 0) -> Iterator[TwoHosts]:
    """Make two hosts whose processes one ``mpiexec`` can start.

    Args:
        second_clock_ahead_s: what the second host's monotonic clock is ahead of the first's.

    Raises:
        BedUnavailableError: this machine cannot carry it.
    """
    if not MPIEXEC.exists():
        raise BedUnavailableError("no mpiexec beside this Python: pip install 'tianji[mpi]'")
    require_programs(("unshare",), "util-linux")
    attempt("unshare", *_namespaces(second_clock_ahead_s), "true")
    with Wire() as wire, tempfile.TemporaryDirectory(prefix="tianji-hosts-") as place:
        shell = Path(place) / "shell"
        cases = "\n".join(
            _case(host, name, ahead_s)
            for host, name, ahead_s in zip(wire.hosts, NAMES, (0, second_clock_ahead_s), strict=True)
        )
        shell.write_text(REMOTE_SHELL.format(cases=cases))
        shell.chmod(0o700)
        yield TwoHosts(wire, SETTINGS, shell)


def _case(host: Host, name: str, ahead_s: int) -> str:
    enter = shlex.join(host.command("unshare", *_namespaces(ahead_s)))
    return f"{host.address}) name={name}; enter='{enter}';;"


def _namespaces(ahead_s: int) -> list[str]:
    if not ahead_s:
        return ["--uts"]
    # A process enters a namespace of time with its children only.
    return ["--uts", "--time", "--monotonic", str(ahead_s), "--fork", "--kill-child"]

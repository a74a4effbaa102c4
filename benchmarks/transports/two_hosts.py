"""Figures 5c and 5d of the paper across 1 Gbit/s Ethernet: `tianji bench comm` under one mpiexec. As root.

Two network namespaces with a shaped link between them, which carries 125 MB/s at most, stand for two hosts.
All engines use TCP across it: UCX, and the MPI that is built on it, would otherwise take both for one host.
A command counts only if the link's own counters saw at least as much as the measured messages from the other
host.

Figure 5d: one sender on the other host, 1 KB to 8 MB. Figure 5c: actors evenly on both hosts; those of the
buffer's own host do not need the wire, all others share it. Further arguments are handed on. The link lets
256 KiB through at once, which shows where all messages of a run are not much more (`--messages` makes it so).

    python benchmarks/transports/two_hosts.py [--figure 5c|5d] [--out DIR] [ARGUMENT...]

"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from beds.namespaces import LINK_BYTES_PER_S
from beds.two_hosts_mpi import TwoHosts, two_hosts
from beds.unavailable import BedUnavailableError

TIANJI = Path(sys.executable).with_name("tianji")
BACKENDS = ("zmq", "mpi", "ucx")
KB = 1024
MB = 1e6
FIGURES = {
    "5c": ("--actors", "1", "--actors", "2", "--actors", "4", "--messages", "1000"),
    "5d": ("--messages", "200"),
}
"""What makes each last minutes, not hours: 200 messages of 8 MB take the link 13 s."""
RANKS = {"5c": (3, 2), "5d": (1, 1)}
"""Of the first host, whose first rank is the buffer, and of the second."""


def measure(hosts: TwoHosts, figure: str, out: Path, more: Sequence[str]) -> None:
    """Measure a figure, and make sure that it was measured across the wire.

    Raises:
        SystemExit: there are no figures, or messages have gone another way.
    """
    link = ("--link-mb", f"{LINK_BYTES_PER_S / MB:g}")
    command: list[str | Path] = [TIANJI, "bench", "comm", "--figure", figure, *link]
    command += [word for name in BACKENDS for word in ("--backend", name)]
    command += [*FIGURES[figure], "--out", out, *more]
    second = hosts.wire.hosts[1]
    before = second.sent_bytes
    done = subprocess.run(
        hosts.mpiexec(RANKS[figure], *command), check=False, env=os.environ | hosts.environment
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    crossed = second.sent_bytes - before
    rows = json.loads((out / f"figure-{figure}.json").read_text())["rows"]
    measured = sum(_least_crossing(row) for row in rows)
    print(
        f"# figure {figure}: {crossed / MB:.0f} MB crossed the wire, the figures need {measured / MB:.0f} MB"
    )
    if crossed < measured:
        raise SystemExit(f"figure {figure}: not all messages went over the wire")


def _least_crossing(row: dict[str, Any]) -> float:
    """Bytes that crossed in a row's runs if anything did: of several actors, those at hand may send most."""
    if row["actors"] > 1:
        return 0.0
    # The run that checks every byte, and the timed ones.
    return float((1 + row["repeats"]) * row["messages"] * row["msg_kb"] * KB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--figure", choices=FIGURES, action="append")
    parser.add_argument("--out", type=Path, help="directory for CSV, JSON and PNG files")
    options, more = parser.parse_known_args()
    try:
        with tempfile.TemporaryDirectory() as scratch, two_hosts() as hosts:
            for figure in options.figure or FIGURES:
                measure(hosts, figure, (options.out or Path(scratch)).resolve(), more)
    except BedUnavailableError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()

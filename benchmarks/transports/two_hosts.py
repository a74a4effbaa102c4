"""Measures figures 5c and 5d of the paper across 1 Gbit/s Ethernet: `tianji bench comm` under one mpiexec.

Needs root. Two network namespaces with a shaped link between them, which carries 125 MB/s at most, stand for
two hosts. All engines use TCP across the link: UCX, and the MPI that is built on it, would otherwise take
both for one host. A command counts only if the link's own counters saw at least as many bytes from the other
host as the measured messages have.

Figure 5d: one sender on the other host, 1 KB to 8 MB. Figure 5c: actors evenly on both hosts; actors on the
buffer's host do not need the wire, and all others share it. `tianji bench comm` gets further arguments. The
link lets 256 KiB through at once, which distorts runs whose messages are not much more in all (`--messages`).

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
"""Options with which a figure takes minutes, not hours: 200 messages of 8 MB take the link 13 s."""
RANKS = {"5c": (3, 2), "5d": (1, 1)}
"""Number of ranks on the first host, whose first rank is the buffer, and on the second."""


def measure(hosts: TwoHosts, figure: str, out: Path, more: Sequence[str]) -> None:
    """Measure a figure, and check that its messages crossed the wire.

    Raises:
        SystemExit: the command failed, or messages have gone another way.
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
    """Least bytes that cross in a row's runs; 0 with several actors, as those at hand may send most."""
    if row["actors"] > 1:
        return 0.0
    # One run checks every byte, and then come the timed runs.
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

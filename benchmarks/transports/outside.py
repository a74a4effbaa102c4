"""Compares `tianji bench bandwidth` with other benchmarks: mpi4py's ping-pong and UCX's own `ucx_perftest`.

    python benchmarks/transports/outside.py --msg-kb 512

The three take turns. They do not measure the same: a ping-pong has one message under way, `ucx_perftest`
sends from and into the same memory again and again, and `tianji` copies each message out (`--store copy`), or
reads it in place.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Final

BIN: Final = Path(sys.executable).parent
LIMIT_S: Final = 120.0
LOOPS: Final = ("loop", "loop-large", "loop-huge")


def measure_tianji(backend: str, store: str, kb: float, messages: int) -> float:
    """Measure one engine with `tianji bench bandwidth`, in MB/s."""
    words = ["--backend", backend, "--store", store, "--msg-kb", f"{kb:g}", "--messages", str(messages)]
    command = [str(BIN / "tianji"), "bench", "bandwidth", *words, "--repeats", "1", "--quiet", "--json", "-"]
    (row,) = json.loads(_said(command))["rows"]
    return float(row["mb_per_s"])


def measure_mpi4py(kb: float, messages: int) -> float:
    """Measure MPI with `mpi4py.bench pingpong`, in MB/s."""
    size = round(1024 * kb)
    # Large sizes have their own options for the number of repeats.
    loops = [word for option in LOOPS for word in (f"--{option}", str(messages))]
    sizes = ["--min-size", str(size), "--max-size", str(size + 1), "--no-header"]
    command = [str(BIN / "mpiexec"), "-n", "2", sys.executable, "-m", "mpi4py.bench", "pingpong"]
    return float(_said([*command, *sizes, *loops]).split()[1])


def measure_ucx(kb: float, messages: int) -> float:
    """Measure UCX with `ucx_perftest -t tag_bw`, in MB/s."""
    found = importlib.util.find_spec("libucx")
    if found is None or found.origin is None:
        raise SystemExit("ucx_perftest comes with the extra ucx: pip install 'tianji[ucx]'")
    root = Path(found.origin).parent
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = [str(root / "bin" / "ucx_perftest"), "-p", port]
    environment = os.environ | {"LD_LIBRARY_PATH": str(root / "lib")}
    with subprocess.Popen(program, stdout=subprocess.DEVNULL, env=environment) as server:
        try:
            _wait_for(int(port), server)
            sized = ["-t", "tag_bw", "-s", str(round(1024 * kb)), "-n", str(messages)]
            said = _said([*program, "127.0.0.1", *sized], environment)
        finally:
            server.kill()
    final = next(line for line in said.splitlines() if line.startswith("Final:"))
    # Columns: messages, three overheads, MB/s of the last interval and of all (1 MB = 1024 * 1024 bytes).
    return float(final.split()[6]) * 1.048576


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server listens on a TCP port, without connecting: it serves only the first client."""
    hexadecimal = f":{port:04X}"
    deadline = time.monotonic() + LIMIT_S
    while not any(
        line.split()[1].endswith(hexadecimal) and line.split()[3] == "0A"
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for line in Path(table).read_text().splitlines()[1:]
    ):
        if time.monotonic() > deadline or server.poll() is not None:
            raise SystemExit("ucx_perftest does not listen")
        time.sleep(0.01)


def _said(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=environment
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def main() -> None:
    """Measure all in turns, and print medians with the least and the most."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--msg-kb", type=float, default=512.0, help="size of a message in KB of 1024 bytes")
    parser.add_argument("--messages", type=int, default=2000, help="of each run")
    parser.add_argument("--repeats", type=int, default=5, help="rounds in which all take their turns")
    given = parser.parse_args()
    if given.msg_kb * 1024 not in {2**power for power in range(31)}:
        parser.error("mpi4py.bench measures powers of two: --msg-kb 512, for one")
    found = defaultdict(list)
    for _ in range(given.repeats):
        for backend in ("mpi", "ucx"):
            for store in ("copy", "inplace"):
                rate = measure_tianji(backend, store, given.msg_kb, given.messages)
                found[f"tianji {backend}, {store}"].append(rate)
        found["mpi4py.bench pingpong"].append(measure_mpi4py(given.msg_kb, given.messages))
        found["ucx_perftest tag_bw"].append(measure_ucx(given.msg_kb, given.messages))
    for name, rates in sorted(found.items()):
        print(f"{name:24} {statistics.median(rates):7.0f} MB/s ({min(rates):.0f} to {max(rates):.0f})")


if __name__ == "__main__":
    main()

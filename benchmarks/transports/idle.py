"""Measures the share of a core that a receiver takes while it sleeps in `wait` and nothing comes, by engine.

Three processes: a receiver, and two senders that send nothing (for `shm+zmq`, one is on the receiver's host
and one on another). The receiver waits for a channel and a slot, like a learner or an actor. All threads of
the receiver's process count, also those of libraries; so does every `wait` that returns early.

    python benchmarks/transports/idle.py [--engines NAME ...] [--seconds S] [--rounds R] [--json PATH]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tianji_transports import registry
from tianji_transports.composite import open_endpoint
from tianji_transports.wiring import Channel, Slot, Wiring

HOSTS = {0: "here", 1: "here", 2: "there"}
RECEIVER = 0
MOST = 0.03
MOST_OF = {"mpi": 0.05}
"""Maximum share of a core for engines that have nothing to sleep on."""
SETTLE_S = 1.0
WAIT_S = 1.0
PATIENCE_S = 60.0
POLL_S = 0.05


def write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


def read(path: Path) -> str:
    deadline = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"no {path.name} within {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    return path.read_text()


def serve(engines: str, rank: int, seconds: float, folder: Path) -> None:
    """Run one rank; ranks exchange addresses and the result as files."""
    channels = (Channel("f", RECEIVER, (1, 2), 1000),)
    slots = (Slot("p", 1, (RECEIVER, 2), 1000),)
    local, _, remote = engines.partition("+")
    wiring = Wiring(folder.name, channels, slots)
    with open_endpoint(
        local, remote or local, HOSTS if remote else dict.fromkeys(HOSTS, ""), wiring, rank
    ) as e:
        write(folder / f"address-{rank}", e.address)
        e.connect({other: read(folder / f"address-{other}") for other in HOSTS if other != rank})
        if rank != RECEIVER:
            while not (folder / "result").exists():
                e.wait(POLL_S)
            return
        settled = time.monotonic() + SETTLE_S
        while (left := settled - time.monotonic()) > 0:
            e.wait(left)
        began, cpu, waits = time.monotonic(), time.process_time(), 0
        while (left := began + seconds - time.monotonic()) > 0:
            e.wait(min(WAIT_S, left))
            waits += 1
            assert e.probe("f") is None
        share = (time.process_time() - cpu) / (time.monotonic() - began)
        write(folder / "result", json.dumps({"share": share, "waits_per_s": waits / seconds}))


def measure(engines: str, seconds: float) -> dict[str, float]:
    """Run all ranks once; returns the receiver's result."""
    folder = Path(tempfile.mkdtemp(prefix="tianji-idle-"))
    command = [sys.executable, __file__, "--seconds", str(seconds), "--engines", engines]
    commands = [[*command, "--serve", str(rank), str(folder)] for rank in HOSTS]
    if engines == "mpi":
        ranks = [
            part for one in commands for part in ([":"] if one is not commands[0] else []) + ["-n", "1", *one]
        ]
        here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        commands = [[shutil.which("mpiexec", path=here) or "mpiexec", *ranks]]
    running = [subprocess.Popen(one) for one in commands]
    try:
        for process in running:
            if process.wait(seconds + 2 * PATIENCE_S):
                raise SystemExit(f"{engines}: a rank failed")
        return dict(json.loads((folder / "result").read_text()))
    finally:
        for process in running:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


def main() -> None:
    # Names only, without loading: the libraries of two engines may not work together in one process.
    registered = [name for name in registry.names() if name != "inproc"]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--engines", nargs="+", default=[*registered, "shm+zmq"])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        rank, folder = options.serve
        serve(options.engines[0], int(rank), options.seconds, Path(folder))
        return
    environment = {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
    }
    for key, value in environment.items():
        print(f"# {key}: {value}")
    print(f"{'engine':10} {'% of a core':>12} {'min':>6} {'max':>6} {'target':>7} {'waits/s':>8}")
    rows = []
    for engines in options.engines:
        runs = [measure(engines, options.seconds) for _ in range(options.rounds)]
        shares = [100 * run["share"] for run in runs]
        row = {
            "engine": engines,
            "percent": statistics.median(shares),
            "min_percent": min(shares),
            "max_percent": max(shares),
            "target_percent": 100 * MOST_OF.get(engines, MOST),
            "waits_per_s": statistics.median(run["waits_per_s"] for run in runs),
        }
        rows.append(row)
        print(
            f"{engines:10} {row['percent']:12.2f} {row['min_percent']:6.2f} {row['max_percent']:6.2f}"
            f" {row['target_percent']:7.0f} {row['waits_per_s']:8.1f}",
            flush=True,
        )
    if options.json:
        text = json.dumps({"environment": environment, "rows": rows}, indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The `mpi` engine beside the plainest loop over mpi4py, in one MPI job.

Two processes, one sender and one receiver, started under mpiexec by this script itself. The sender writes
every byte of every message; the receiver has each message moved into memory of its own, the same for all,
and checks the number at head and tail (all bytes in a run of its own that is not timed). Loops take turns and
are repeated; medians are compared.

    python benchmarks/transports/raw_mpi.py [--nbytes N...] [--rounds R] [--seconds S] [--json PATH]

The raw loops never sleep and know no credit: the sender fills a ring of `window` buffers and sends the next
one with `Isend` (or `Issend`), and `Test`s the oldest request until its buffer may be written again; the
receiver calls `Improbe` until there is a message and `Recv`s it. The engine waits in `wait`, as roles do
(`mpi`), or never (`mpi polling`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from raw_loops import MB, PATIENCE_S, Row, head_and_tail_are, is_whole, write

from tianji_transports.mpi import MpiTransport
from tianji_transports.mpi_ends import pages
from tianji_transports.mpi_world import MPI, initialise
from tianji_transports.wiring import Channel, Wiring

TAG, WORD, RATE = 1, 2, 3
MOST_MESSAGES = 50_000
LOOPS = ("raw Isend", "raw Issend", "mpi", "mpi polling")
BASE = "raw Isend"
INSIDE = "TIANJI_BENCH_INSIDE"


@contextmanager
def raw(send_one: str, sends: bool, nbytes: int, window: int) -> Iterator[Any]:
    """mpi4py and nothing else."""
    world = MPI.COMM_WORLD
    if sends:
        start = getattr(world, send_one)
        ring = [pages(nbytes) for _ in range(window)]
        flying: deque[MPI.Request] = deque()

        def send(number: int) -> None:
            if len(flying) == window:
                test = flying.popleft().Test
                while not test():
                    pass
            memory = ring[number % window]
            write(memory, number)
            flying.append(start(memory, 1, TAG))

        yield send
        while flying:
            flying.popleft().Wait()
    else:
        memory = pages(nbytes)
        improbe = world.Improbe

        def receive() -> memoryview:
            while (message := improbe(0, TAG)) is None:
                pass
            message.Recv(memory)
            return memory

        yield receive


@contextmanager
def engine(sends: bool, nbytes: int, window: int, job: str, polling: bool) -> Iterator[Any]:
    """The engine through the contract."""
    endpoint = MpiTransport(Wiring(job, (Channel("f", 1, (0,), nbytes, window),)), 0 if sends else 1)
    endpoint.connect({0: "mpi:0", 1: "mpi:1"})
    if sends:

        def send(number: int) -> None:
            while not (loan := endpoint.loan(1, "f", nbytes)):
                if not polling:
                    endpoint.wait(1.0)
            write(loan.memory, number)
            endpoint.push(loan)

        yield send
        endpoint.close(PATIENCE_S)
    else:
        memory = pages(nbytes)

        def receive() -> memoryview:
            while (claim := endpoint.probe("f")) is None:
                if not polling:
                    endpoint.wait(1.0)
            claim.take(memory)
            return memory

        yield receive
        endpoint.close()


def open_loop(loop: str, sends: bool, nbytes: int, window: int, job: str) -> Any:
    if loop.startswith("raw"):
        return raw(loop.split()[1], sends, nbytes, window)
    return engine(sends, nbytes, window, job, loop.endswith("polling"))


def run(loop: str, nbytes: int, window: int, seconds: float, job: str) -> float:
    """Verify, warm up, time; messages per second in both processes."""
    world = MPI.COMM_WORLD
    sends = world.rank == 0
    with open_loop(loop, sends, nbytes, window, job) as verb:

        def move(count: int, right: Callable[[memoryview, int], bool]) -> float:
            world.Barrier()
            began = 0.0
            for number in range(count):
                if sends:
                    verb(number)
                elif not right(verb(), number):
                    raise SystemExit(f"{loop}: message {number} of {nbytes} bytes is wrong")
                if number == 0:
                    began = time.perf_counter()
            rate = (count - 1) / (time.perf_counter() - began)
            return float(world.bcast(rate, 1))

        move(100, is_whole)
        count = int(move(300, head_and_tail_are) * seconds)
        return move(min(max(50, count), MOST_MESSAGES), head_and_tail_are)


def environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "mpi4py": version("mpi4py"),
        "mpi": " ".join(MPI.Get_library_version().split("\n")[0].split()),
    }


def report(rows: list[Row], path: str | None) -> None:
    medians = {(row.loop, row.nbytes): row.median for row in rows}
    table = [
        {
            "loop": row.loop,
            "nbytes": row.nbytes,
            "window": row.window,
            "msgs_per_s": row.median,
            "mb_per_s": row.median * row.nbytes / MB,
            "min_mb_per_s": min(row.msgs_per_s) * row.nbytes / MB,
            "max_mb_per_s": max(row.msgs_per_s) * row.nbytes / MB,
            "raw_ratio": row.median / medians[BASE, row.nbytes],
            "median_round_ratio": statistics.median(
                one / other
                for one, other in zip(
                    row.msgs_per_s,
                    next(r.msgs_per_s for r in rows if (r.loop, r.nbytes) == (BASE, row.nbytes)),
                    strict=True,
                )
            ),
        }
        for row in rows
    ]
    if path:
        text = json.dumps({"environment": environment(), "rows": table}, indent=1)
        if path == "-":
            print(text)
            return
        Path(path).write_text(text + "\n", encoding="utf-8")
    for key, value in environment().items():
        print(f"# {key}: {value}")
    names = ("bytes", "msgs/s", "MB/s", "min", "max", "of raw", "by round")
    print(f"{'loop':12}" + "".join(f"{name:>10}" for name in names))
    for entry in table:
        print(
            f"{entry['loop']:12}{entry['nbytes']:10}{entry['msgs_per_s']:10.0f}{entry['mb_per_s']:10.1f}"
            f"{entry['min_mb_per_s']:10.1f}{entry['max_mb_per_s']:10.1f}{entry['raw_ratio']:10.2f}"
            f"{entry['median_round_ratio']:10.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nbytes", type=int, nargs="+", default=[512 * 1024, 64])
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each timed run")
    parser.add_argument("--loops", nargs="+", choices=LOOPS[1:], default=list(LOOPS[1:]))
    parser.add_argument("--json")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        mpiexec = Path(sys.executable).with_name("mpiexec")
        command = [str(mpiexec) if mpiexec.exists() else "mpiexec", "-n", "2", sys.executable, *sys.argv]
        raise SystemExit(subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode)
    world = initialise()
    rows = []
    for nbytes in options.nbytes:
        group = [Row(loop, nbytes, options.window, []) for loop in (BASE, *options.loops)]
        for turn in range(options.rounds):
            for row in group:
                job = f"bench-{row.loop}-{nbytes}-{turn}"
                row.msgs_per_s.append(run(row.loop, nbytes, options.window, options.seconds, job))
        rows += group
    if world.rank == 0:
        report(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())

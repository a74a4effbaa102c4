"""The `zmq` and `ucx` engines across 1 Gbit/s Ethernet, beside raw loops over their libraries. As root.

Two network namespaces with a shaped link between them stand for two hosts, whose link carries 125 MB/s
at most. `zmq encrypted` runs CURVE, as every job does off loopback. One sender, one receiver; the sender
writes every byte in place, the receiver checks the number at head and tail of each message (all bytes in
a run of its own that is not timed). Engines sleep in `wait`, as roles do; the raw UCX loop polls. Loops
take turns and are repeated; medians are compared. A figure is kept only if the link's own counters saw
all its bytes.

    python benchmarks/transports/wire.py [--nbytes N...] [--rounds R] [--seconds S] [--json PATH]

"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

# UCX takes both namespaces for one host and would go through shared memory.
os.environ |= {"UCX_TLS": "tcp,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}

import numpy as np
import zmq
from beds.namespaces import LINK_BYTES_PER_S, Host, Wire
from beds.unavailable import BedUnavailableError
from raw_loops import MB, PATIENCE_S, environment, head_and_tail_are, is_whole, write

LOOPS = ("raw zmq", "zmq", "zmq encrypted", "raw ucx", "ucx")
KEYS = "BENCH_CURVE_KEYS"
TARGET_MB_PER_S = 115.0
MOST_MESSAGES = 2_000


@contextmanager
def raw_zmq(sends: bool, nbytes: int, window: int, own: str, peer: Connection) -> Iterator[Any]:
    """PUSH and PULL, zero-copy both ways, a ring of buffers on the sender's side."""
    context = zmq.Context()
    port = context.socket(zmq.PUSH if sends else zmq.PULL)
    port.sndhwm = port.rcvhwm = window
    if sends:
        port.connect(peer.recv())
        ring = [memoryview(bytearray(nbytes)) for _ in range(4 * window)]

        def send(number: int) -> None:
            memory = ring[number % len(ring)]
            write(memory, number)
            port.send(memory, copy=False)

        yield send, lambda: peer.poll(None)
    else:
        peer.send(f"tcp://{own}:{port.bind_to_random_port(f'tcp://{own}')}")

        def receive() -> memoryview:
            return port.recv(copy=False).buffer

        yield receive
    port.close()
    context.term()


@contextmanager
def raw_ucx(sends: bool, nbytes: int, window: int, _own: str, peer: Connection) -> Iterator[Any]:
    """Tagged sends and receives, both sides polling, a window of each in flight."""
    from ucxx._lib import libucxx  # noqa: PLC0415
    from ucxx._lib.arr import Array  # noqa: PLC0415

    worker = libucxx.UCXWorker(libucxx.UCXContext({}, (libucxx.Feature.TAG,)))
    peer.send(bytes(memoryview(libucxx.UCXAddress.create_from_worker(worker))))
    address = libucxx.UCXAddress.create_from_buffer(peer.recv())
    endpoint = libucxx.UCXEndpoint.create_from_worker_address(worker, address, False)
    tag = libucxx.UCXXTag(1)
    ring = [np.zeros(nbytes, np.uint8) for _ in range(window)]
    arrays = [Array(memory) for memory in ring]
    flying: list[Any] = [None] * window

    def complete(index: int) -> None:
        while not flying[index].completed:
            worker.progress()
        flying[index].check_error()

    if sends:

        def send(number: int) -> None:
            index = number % window
            if flying[index] is not None:
                complete(index)
            write(memoryview(ring[index]), number)
            flying[index] = endpoint.tag_send(arrays[index], tag)

        yield send, worker.progress
        for index in range(window):
            if flying[index] is not None:
                complete(index)
    else:
        flying = [worker.tag_recv(array, tag) for array in arrays]
        taken = [0]

        def receive() -> memoryview:
            if taken[0]:
                before = (taken[0] - 1) % window
                flying[before] = worker.tag_recv(arrays[before], tag)
            index = taken[0] % window
            complete(index)
            taken[0] += 1
            return memoryview(ring[index])

        yield receive


@contextmanager
def engine(
    name: str, job: str, sends: bool, nbytes: int, window: int, own: str, peer: Connection
) -> Iterator[Any]:
    """The engine through the contract."""
    from tianji_transports import registry  # noqa: PLC0415
    from tianji_transports.core import EngineOptions  # noqa: PLC0415
    from tianji_transports.wiring import Channel, Wiring  # noqa: PLC0415

    wiring = Wiring(job, (Channel("f", 0, (1,), nbytes, window),))
    name, _, encrypted = name.partition(" ")
    options = EngineOptions(own, *(os.environ[KEYS].split() if encrypted else ()))
    endpoint = registry.create(name, wiring, int(sends), options=options)
    peer.send(endpoint.address)
    endpoint.connect({int(not sends): peer.recv()})
    if sends:

        def send(number: int) -> None:
            while not (loan := endpoint.loan(0, "f", nbytes)):
                endpoint.wait(1.0)
            write(loan.memory, number)
            endpoint.push(loan)

        yield send, lambda: endpoint.wait(1.0, (peer.fileno(),))
        endpoint.close(PATIENCE_S)
    else:
        held: list[Any] = [None]

        def receive() -> memoryview:
            if held[0] is not None:
                held[0].release()
            while (claim := endpoint.probe("f")) is None:
                endpoint.wait(1.0)
            held[0] = claim
            return claim.view()

        yield receive
        held[0].release()
        endpoint.close(PATIENCE_S)


def open_loop(loop: str, sends: bool, options: argparse.Namespace, peer: Connection) -> Any:
    (nbytes,) = options.nbytes
    if loop in RAW:
        return RAW[loop](sends, nbytes, options.window, options.own, peer)
    return engine(loop, options.job, sends, nbytes, options.window, options.own, peer)


RAW = {"raw zmq": raw_zmq, "raw ucx": raw_ucx}


# -- one side, in its namespace ---------------------------------------------------------------------------


def when_told(peer: Connection, idle: Callable[[], object]) -> Any:
    """Wait for the next count; UCX moves what was sent only while somebody is inside it."""
    while not peer.poll():
        idle()
    return peer.recv()


def send_all(options: argparse.Namespace, peer: Connection) -> None:
    with open_loop(options.loop, True, options, peer) as (send, idle):
        while (count := when_told(peer, idle)) is not None:
            for number in range(count):
                send(number)
        peer.send("closing")


def receive_all(options: argparse.Namespace, peer: Connection, result: Connection) -> None:
    """Verify, warm up, time; send messages per second and how many there were."""
    taken = 0
    with open_loop(options.loop, False, options, peer) as receive:

        def take(count: int, right: Callable[[memoryview, int], bool]) -> float:
            nonlocal taken
            peer.send(count)
            began = 0.0
            for number in range(count):
                if not right(receive(), number):
                    raise SystemExit(f"message {number} is wrong")
                if number == 0:
                    began = time.perf_counter()
            taken += count
            return (count - 1) / (time.perf_counter() - began)

        take(20, is_whole)
        rate = take(30, head_and_tail_are)
        # Long enough that the token bucket's burst does not count.
        rate = take(min(max(50, int(rate * options.seconds)), MOST_MESSAGES), head_and_tail_are)
        peer.send(None)
        peer.recv()
    result.send((rate, taken))


# -- running them -----------------------------------------------------------------------------------------


def run(wire: Wire, loop: str, nbytes: int, options: argparse.Namespace) -> float:
    """One pair of processes; messages per second."""
    job = f"bench-{uuid.uuid4().hex[:12]}"
    first, second = wire.hosts
    peers, (result, results) = Pipe(), Pipe()
    sent_before = first.sent_bytes

    def start(role: str, host: Host, *connections: Connection) -> subprocess.Popen[bytes]:
        descriptors = [connection.fileno() for connection in connections]
        settings = {"role": role, "loop": loop, "job": job, "own": host.address, "nbytes": nbytes}
        settings |= {"window": options.window, "seconds": options.seconds}
        command = [sys.executable, __file__]
        command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        command += ["--descriptors", *map(str, descriptors)]
        return subprocess.Popen(host.command(*command), pass_fds=descriptors)

    pair = (start("send", first, peers[0]), start("receive", second, peers[1], results))
    for connection in (*peers, results):
        connection.close()
    try:
        if not result.poll(PATIENCE_S + 2 * options.seconds):
            raise SystemExit(f"{loop}: nothing within {PATIENCE_S} s")
        try:
            rate, taken = result.recv()
        except EOFError:
            raise SystemExit(f"{loop}: no result") from None
        for process in pair:
            process.wait(PATIENCE_S)
    finally:
        for process in pair:
            process.kill()
            process.wait()
    if first.sent_bytes - sent_before < taken * nbytes:
        raise SystemExit(f"{loop}: {taken} messages of {nbytes} bytes did not all cross the wire")
    return float(rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nbytes", type=int, nargs="+", default=[512 << 10, 1 << 20, 4 << 20])
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timed run")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--json")
    for own in ("--role", "--loop", "--job", "--own"):
        parser.add_argument(own, help=argparse.SUPPRESS)
    parser.add_argument("--descriptors", type=int, nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        connections = [Connection(descriptor) for descriptor in options.descriptors]
        {"send": send_all, "receive": receive_all}[options.role](options, *connections)
        return
    os.environ[KEYS] = b" ".join(zmq.curve_keypair()).decode()
    rates: dict[tuple[str, int], list[float]] = {
        (loop, nbytes): [] for nbytes in options.nbytes for loop in options.loops
    }
    try:
        with Wire() as wire:
            for _ in range(options.rounds):
                for (loop, nbytes), measured in rates.items():
                    measured.append(run(wire, loop, nbytes, options) * nbytes / MB)
    except BedUnavailableError as error:
        raise SystemExit(str(error)) from None
    report(rates, options.json)


def report(rates: dict[tuple[str, int], list[float]], path: str | None) -> None:
    medians = {key: statistics.median(measured) for key, measured in rates.items()}
    rows = [
        {
            "loop": loop,
            "nbytes": nbytes,
            "mb_per_s": median,
            "min_mb_per_s": min(rates[loop, nbytes]),
            "max_mb_per_s": max(rates[loop, nbytes]),
            "raw_ratio": median / raw if (raw := medians.get((f"raw {loop.split()[0]}", nbytes))) else None,
            "reached": median >= TARGET_MB_PER_S,
        }
        for (loop, nbytes), median in medians.items()
    ]
    about = environment() | {
        "link": f"1 Gbit/s, {LINK_BYTES_PER_S / MB:g} MB/s; target {TARGET_MB_PER_S:g} MB/s"
    }
    if path:
        text = json.dumps({"environment": about, "rows": rows}, indent=1) + "\n"
        if path == "-":
            sys.stdout.write(text)
            return
        Path(path).write_text(text, encoding="utf-8")
    for key, value in about.items():
        print(f"# {key}: {value}")
    print(f"{'loop':13} {'bytes':>8} {'MB/s':>7} {'min':>7} {'max':>7} {'of raw':>7}")
    for row in rows:
        ratio = f"{row['raw_ratio']:7.2f}" if row["raw_ratio"] else ""
        print(
            f"{row['loop']:13} {row['nbytes']:8} {row['mb_per_s']:7.1f} {row['min_mb_per_s']:7.1f}"
            f" {row['max_mb_per_s']:7.1f} {ratio}"
        )


if __name__ == "__main__":
    sys.exit(main())

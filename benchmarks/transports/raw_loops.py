"""The `shm`, `zmq` and `ucx` engines beside the plainest loops over their libraries, in one go.

Two processes, one sender and one receiver. The sender writes every byte of every message in place; the
receiver reads in place and checks the number at head and tail of each message (all bytes in a run of its
own that is not timed). Loops are interleaved and repeated; medians are compared.

    python benchmarks/transports/raw_loops.py [--nbytes N ...] [--rounds R] [--seconds S] [--json PATH]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import multiprocessing
import os
import platform
import shutil
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import iceoryx2
import numpy as np
import zmq
from raw_ucx import raw_ucxx

from tianji_transports import registry
from tianji_transports.wiring import Channel, Wiring

STAMP = 8
"""Bytes of the number at head and tail."""
PATIENCE_S = 30.0
MOST_MESSAGES = 20_000
MB = 1e6

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["iceoryx2", "numpy", "zmq", "tianji_transports.registry"])

Send = Callable[[int], None]
Receive = Callable[[], memoryview]


def write(memory: memoryview, number: int) -> None:
    """Write every byte of a message in place."""
    if memory.nbytes > 2 * STAMP:
        np.frombuffer(memory, np.uint8).fill(number & 0xFF)
    stamp = number.to_bytes(STAMP, "little")
    memory[:STAMP] = stamp
    memory[-STAMP:] = stamp


def head_and_tail_are(memory: memoryview, number: int) -> bool:
    stamp = number.to_bytes(STAMP, "little")
    return memory[:STAMP] == stamp and memory[-STAMP:] == stamp


def is_whole(memory: memoryview, number: int) -> bool:
    body = np.frombuffer(memory, np.uint8)[STAMP:-STAMP]
    return head_and_tail_are(memory, number) and bool((body == number & 0xFF).all())


# -- the loops: each gives what sends one message and what receives one, lent until the next call ----------


@contextmanager
def raw_iceoryx2(role: str, job: str, nbytes: int, window: int, peer: Connection) -> Iterator[Any]:
    """iceoryx2's publish-subscribe, both sides polling; an acknowledgement for every half window.

    Letting iceoryx2 block the sender instead is slower: it sleeps once a buffer is full.
    """
    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    config = iceoryx2.config.default()
    config.global_cfg.root_path = iceoryx2.Path.new(f"/dev/shm/{job}.d/")
    config.global_cfg.prefix = iceoryx2.FileName.new(f"{job}.")
    node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)

    def service(name: str, payload: Any) -> Any:
        builder = node.service_builder(iceoryx2.ServiceName.new(name)).publish_subscribe(payload)
        builder = builder.enable_safe_overflow(False).history_size(0).subscriber_max_buffer_size(window)
        return builder.subscriber_max_borrowed_samples(1).open_or_create()

    messages, acks = service("messages", iceoryx2.Slice[ctypes.c_uint8]), service("acks", ctypes.c_uint64)
    batch = max(1, window // 2)
    if role == "send":
        publisher = messages.publisher_builder().initial_max_slice_len(nbytes).create()
        acked = acks.subscriber_builder().create()
        credit = [window]
        peer.recv()

        def send(number: int) -> None:
            while credit[0] == 0:
                while (ack := acked.receive()) is not None:
                    ack.delete()
                    credit[0] += batch
            credit[0] -= 1
            sample = publisher.loan_slice_uninit(nbytes)
            write(sample.payload().as_memory_view().cast("B"), number)
            sample.assume_init().send()

        yield send
        ports = (publisher, acked)
    else:
        subscriber = messages.subscriber_builder().create()
        acking = acks.publisher_builder().create()
        held: list[Any] = [None]
        claimed = [0]
        peer.send("subscribed")

        def receive() -> memoryview:
            if held[0] is not None:
                held[0].delete()
            while (sample := subscriber.receive()) is None:
                pass
            held[0] = sample
            claimed[0] += 1
            if claimed[0] % batch == 0:
                acking.send_copy(ctypes.c_uint64(batch))
            return sample.payload().as_memory_view().cast("B")  # type: ignore[no-any-return]

        yield receive
        ports = (held[0], subscriber, acking)
    for port in ports:
        port.delete()


@contextmanager
def raw_zmq(kinds: tuple[int, int], role: str, nbytes: int, window: int, peer: Connection) -> Iterator[Any]:
    """Plain sockets over TCP, zero-copy both ways, a ring of buffers on the sender's side."""
    context = zmq.Context()
    socket = context.socket(kinds[role == "receive"])
    socket.sndhwm = socket.rcvhwm = window
    if role == "send":
        socket.connect(peer.recv())
        ring = [memoryview(mmap.mmap(-1, nbytes)) for _ in range(4 * window)]

        def send(number: int) -> None:
            memory = ring[number % len(ring)]
            write(memory, number)
            socket.send(memory, copy=False)

        yield send
    else:
        peer.send(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}")
        if kinds[1] == zmq.ROUTER:

            def receive() -> memoryview:
                socket.recv(copy=False)
                return socket.recv(copy=False).buffer

        else:

            def receive() -> memoryview:
                return socket.recv(copy=False).buffer

        yield receive
    socket.close()
    context.term()


@contextmanager
def raw_push_pull(role: str, _job: str, nbytes: int, window: int, peer: Connection) -> Iterator[Any]:
    with raw_zmq((zmq.PUSH, zmq.PULL), role, nbytes, window, peer) as verb:
        yield verb


@contextmanager
def raw_dealer_router(role: str, _job: str, nbytes: int, window: int, peer: Connection) -> Iterator[Any]:
    with raw_zmq((zmq.DEALER, zmq.ROUTER), role, nbytes, window, peer) as verb:
        yield verb


@contextmanager
def engine(name: str, role: str, job: str, nbytes: int, window: int, peer: Connection) -> Iterator[Any]:
    """The engine through the contract, asleep in ``wait`` as roles are; ``polling`` never sleeps."""
    name, _, polling = name.partition(" ")
    wiring = Wiring(job, (Channel("f", 0, (1,), nbytes, window),))
    endpoint = registry.create(name, wiring, 0 if role == "receive" else 1)
    peer.send(endpoint.address)
    endpoint.connect({1 if role == "receive" else 0: peer.recv()})
    if role == "send":

        def send(number: int) -> None:
            while not (loan := endpoint.loan(0, "f", nbytes)):
                if not polling:
                    endpoint.wait(1.0)
            write(loan.memory, number)
            endpoint.push(loan)

        if name == "ucx":
            send.rest = lambda: endpoint.wait(1.0, also=[peer.fileno()])  # type: ignore[attr-defined]
        yield send
        endpoint.close(PATIENCE_S)
    else:
        held: list[Any] = [None]

        def receive() -> memoryview:
            if held[0] is not None:
                held[0].release()
            while (claim := endpoint.probe("f")) is None:
                if not polling:
                    endpoint.wait(1.0)
            held[0] = claim
            return claim.view()

        yield receive
        held[0].release()
        # The sender's drain ends with the last credit, which is sent before this.
        endpoint.close()


def open_loop(loop: str, role: str, job: str, nbytes: int, window: int, peer: Connection) -> Any:
    if loop == "raw ucxx":
        return raw_ucxx(role, nbytes, window, peer, write)
    raw = {
        "raw iceoryx2": raw_iceoryx2,
        "raw push-pull": raw_push_pull,
        "raw dealer-router": raw_dealer_router,
    }
    if loop in raw:
        return raw[loop](role, job, nbytes, window, peer)
    return engine(loop, role, job, nbytes, window, peer)


# -- running them -----------------------------------------------------------------------------------------


def send_all(loop: str, job: str, nbytes: int, window: int, peer: Connection) -> None:
    with open_loop(loop, "send", job, nbytes, window, peer) as send:
        while (count := peer.recv()) is not None:
            for number in range(count):
                send(number)
            # UCX moves what its queue had no room for only while somebody is inside it.
            while (rest := getattr(send, "rest", None)) is not None and not peer.poll():
                rest()
        peer.send("closing")


def receive_all(
    loop: str, job: str, nbytes: int, window: int, peer: Connection, seconds: float, result: Connection
) -> None:
    """Verify, warm up, time; send messages per second, or what was wrong."""
    with open_loop(loop, "receive", job, nbytes, window, peer) as receive:

        def take(count: int, right: Callable[[memoryview, int], bool]) -> float:
            peer.send(count)
            began = 0.0
            for number in range(count):
                if not right(receive(), number):
                    result.send(f"message {number} is wrong")
                    raise SystemExit(1)
                if number == 0:
                    began = time.perf_counter()
            return (count - 1) / (time.perf_counter() - began)

        take(100, is_whole)
        count = int(take(300, head_and_tail_are) * seconds)
        rate = take(min(max(50, count), MOST_MESSAGES), head_and_tail_are)
        peer.send(None)
        peer.recv()
    result.send(rate)


@dataclass
class Row:
    loop: str
    nbytes: int
    window: int
    msgs_per_s: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.msgs_per_s)


def run(loop: str, nbytes: int, window: int, seconds: float) -> float:
    """One pair of processes; messages per second."""
    job = f"bench-{uuid.uuid4().hex[:12]}"
    ours, theirs = multiprocessing.Pipe()
    result, results = multiprocessing.Pipe()
    pair = (
        PROCESSES.Process(target=receive_all, args=(loop, job, nbytes, window, ours, seconds, results)),
        PROCESSES.Process(target=send_all, args=(loop, job, nbytes, window, theirs)),
    )
    try:
        for process in pair:
            process.start()
        if not result.poll(PATIENCE_S):
            raise SystemExit(f"{loop}: nothing within {PATIENCE_S} s")
        rate = result.recv()
        if isinstance(rate, str):
            raise SystemExit(f"{loop}: {rate}")
        return float(rate)
    finally:
        for process in pair:
            process.join(1.0)
            process.kill()
            process.join()
        for path in Path("/dev/shm").glob(f"{job}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "iceoryx2": version("iceoryx2"),
        "ucxx": version("ucxx-cu12"),
        "pyzmq": f"{version('pyzmq')} (libzmq {zmq.zmq_version()})",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nbytes", type=int, nargs="+", default=[512 * 1024])
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each timed run")
    parser.add_argument("--loops", nargs="+", choices=LOOPS, default=list(LOOPS))
    parser.add_argument("--json")
    options = parser.parse_args()
    rows = []
    for nbytes in options.nbytes:
        group = [Row(loop, nbytes, options.window, []) for loop in options.loops]
        for _ in range(options.rounds):
            for row in group:
                row.msgs_per_s.append(run(row.loop, nbytes, options.window, options.seconds))
        rows += group
    report(rows, options.json)


LOOPS = {
    "raw iceoryx2": "raw iceoryx2",
    "shm": "raw iceoryx2",
    "shm polling": "raw iceoryx2",
    "raw push-pull": "raw push-pull",
    "raw dealer-router": "raw dealer-router",
    "zmq": "raw dealer-router",
    "raw ucxx": "raw ucxx",
    "ucx": "raw ucxx",
    "ucx polling": "raw ucxx",
}
"""Every loop, and the raw one that it is compared with."""


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
            "raw_ratio": row.median / raw if (raw := medians.get((LOOPS[row.loop], row.nbytes))) else None,
        }
        for row in rows
    ]
    if path:
        text = json.dumps({"environment": environment(), "rows": table}, indent=1)
        if path == "-":
            print(text)
            return
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    for key, value in environment().items():
        print(f"# {key}: {value}")
    print(f"{'loop':18} {'bytes':>8} {'msgs/s':>9} {'MB/s':>9} {'min':>9} {'max':>9} {'of raw':>7}")
    for entry in table:
        ratio = f"{entry['raw_ratio']:7.2f}" if entry["raw_ratio"] else ""
        print(
            f"{entry['loop']:18} {entry['nbytes']:8} {entry['msgs_per_s']:9.0f} {entry['mb_per_s']:9.1f}"
            f" {entry['min_mb_per_s']:9.1f} {entry['max_mb_per_s']:9.1f} {ratio}"
        )


if __name__ == "__main__":
    sys.exit(main())

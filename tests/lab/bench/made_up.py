"""Records nobody has measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tianji_lab.bench.record import Record

COMM = Record(
    experiment="comm",
    backend="shm",
    msg_kb=512.0,
    actors=1,
    hosts=1,
    sample_time_s=0.0,
    work="sleep",
    store="copy",
    messages=10_000,
    window=8,
    repeats=3,
    collection_s=1.0,
    collection_min_s=0.95,
    collection_max_s=1.05,
    msgs_per_s=10_000.0,
    mb_per_s=5242.88,
    send_s=61e-6,
    receive_s=97e-6,
    predicted_s=1.1,
    p50_us=310.0,
    p95_us=420.0,
    p99_us=990.0,
    cpu_s=1.9,
    receiver_cpu_s=1.0,
    senders_cpu_s=0.9,
    refused=0,
    verified=True,
)


def record(**changes: Any) -> Record:
    return replace(COMM, **changes)


def sweep(experiment: str, backends: tuple[str, ...] = ("shm", "zmq"), **changes: Any) -> list[Record]:
    """Eight sizes of each engine, zmq half as fast as shm."""
    return [
        record(
            experiment=experiment,
            backend=backend,
            msg_kb=float(2**power),
            mb_per_s=None if experiment == "latency" else 100.0 * 2**power / place,
            **changes,
        )
        for power in range(8)
        for place, backend in enumerate(backends, start=1)
    ]

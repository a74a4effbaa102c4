"""Averages arrays over several processes, as learners that share a batch will average their gradients."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Final

import torch
from torch import distributed

from tianji_cli.profiling.protocol import Average, Averaged

FIRST: Final = 3
"""Rounds that do not count: connections are made, memory is touched."""


def average(step: Average) -> Averaged:
    """Take part in averaging over loopback.

    Raises:
        RuntimeError: another process did not take part.
    """
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # It would look for an interface of the host's name.
    timeout = timedelta(seconds=step.timeout_s)
    store = distributed.FileStore(step.store, step.size)  # type: ignore[attr-defined]
    store.set_timeout(timeout)
    distributed.init_process_group("gloo", store=store, rank=step.rank, world_size=step.size, timeout=timeout)
    try:
        values = torch.zeros(step.values)
        return Averaged(seconds=tuple(_seconds(values, step)))
    finally:
        distributed.destroy_process_group()


def _seconds(values: torch.Tensor, step: Average) -> list[float]:
    """Time each round that counts."""
    taken = []
    for _ in range(FIRST + step.rounds):
        began = time.perf_counter()
        distributed.all_reduce(values)
        values /= step.size
        taken.append(time.perf_counter() - began)
    return taken[FIRST:]

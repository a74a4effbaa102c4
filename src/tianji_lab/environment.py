"""Conditions of a measurement: the head of every result, and warnings of a busy machine or of noise."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable, Sequence
from importlib import metadata
from typing import Final

import psutil

from tianji_cli.quantities import several, share
from tianji_cli.telemetry.machine import GIB, cores, cpu_model
from tianji_transports import registry

LOOK_S: Final = 0.5
"""Seconds in which the other load of this machine is measured."""
BUSY: Final = 0.10
"""Share of the cores at work with something else above which a measurement is disturbed."""
NOISY: Final = 0.25
"""Range of repeated runs, as a share of their median, above which they say little."""
MAX_NAMED: Final = 3
SETTINGS: Final = re.compile(r"(UCX|MPICH|OMPI|MPIR_CVAR|FI)_.+|SLURM_JOB_ID|SLURM_NNODES")
"""Variables that decide how the libraries below the engines send."""


def describe(
    backends: Sequence[str], busy: float, *, hosts: Sequence[str] = (), clock_error_us: float | None = None
) -> dict[str, str]:
    """Describe this machine, the libraries and their settings.

    Args:
        backends: engines to describe, or pairs of engines: ``shm+zmq``.
        busy: the ``busy_share`` of this machine before the measurement.
        hosts: that took part; () for this one alone.
        clock_error_us: error of the other hosts' clocks; None without other hosts.

    Returns:
        Descriptions by subject, in the order to be shown.
    """
    memory = psutil.virtual_memory()
    described = {
        "tianji": metadata.version("tianji"),
        "python": platform.python_version(),
        "kernel": platform.platform(),
        "CPU": cpu_model(),
        "cores": cores(),
        "memory": f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}",
        "load": f"{share(busy)} of the cores at work with something else before the first run, "
        f"load average {os.getloadavg()[0]:.2f} after the last",
    }
    engines = {engine for backend in backends for engine in backend.split("+")}
    for engine in sorted(engines):
        described |= registry.load(engine).libraries()
    described["settings"] = _settings() or "none"
    names = list(dict.fromkeys(hosts))
    described["hosts"] = f"{len(names)}: {', '.join(names)}" if len(names) > 1 else "1"
    if clock_error_us is not None:
        described["clocks"] = f"offset measured and removed, +- {clock_error_us:.0f} us"
    return described


def busy_share() -> float:
    """Measure the share of the usable cores that is at work before the measurement begins.

    Takes half a second.
    """
    percents = psutil.cpu_percent(interval=LOOK_S, percpu=True)
    # Containers may count their own cores from 0 and still name the affinity by the machine's.
    usable = [percents[core] for core in os.sched_getaffinity(0) if core < len(percents)] or percents
    return float(sum(usable) / len(usable) / 100)


def in_short(busy: float) -> str:
    """Describe this machine in a line, with its ``busy_share`` beforehand."""
    return f"{platform.platform()}, {len(os.sched_getaffinity(0))} cores, {busy:.0%} of them busy before"


def warnings(busy: float) -> list[str]:
    """List warnings against figures that are measured on a machine with this ``busy_share``."""
    if busy <= BUSY:
        return []
    return [
        f"this machine is too busy to measure: {share(busy)} of its cores were at work with something else"
    ]


def warnings_of_noise(spreads: Iterable[tuple[float, str]], unit: str) -> list[str]:
    """List the figures that are too noisy: the worst in words, and the number of the others.

    Args:
        spreads: of each figure, the spread of its repeats as a share of their median, and a sentence for it.
    """
    noisy = sorted((found for found in spreads if found[0] > NOISY), key=lambda found: -found[0])
    lines = [f"too noisy: {words}" for _, words in noisy[:MAX_NAMED]]
    if (more := len(noisy) - MAX_NAMED) > 0:
        lines.append(f"too noisy: {several(more, f'more {unit}')}, each above {share(NOISY)}")
    return lines


def _settings() -> str:
    return " ".join(
        f"{name}={value}" for name, value in sorted(os.environ.items()) if SETTINGS.fullmatch(name)
    )

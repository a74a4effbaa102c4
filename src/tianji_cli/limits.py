"""Cores and control groups of this process: the part of a machine that a container or its admin grants."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")
"""Directory of the kernel's files about control groups, of version 2 or 1."""
NUMA_NODES: Final = Path("/sys/devices/system/node")


def control_groups(
    controller: str, proc: Path = PROC, cgroups: Path = CGROUPS
) -> Iterator[tuple[Path, bool]]:
    """List the directories of this process's control group and of the groups around it, innermost first.

    Yields:
        A directory, and whether it is of version 2. In a container the directory may not exist.
    """
    for line in lines_of(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = cgroups / controller if controllers else cgroups
        group = root / path.strip("/")
        yield group, not controllers
        while group not in {root, group.parent}:
            group = group.parent
            yield group, not controllers


def lines_of(path: Path) -> list[str]:
    """Read the lines of a kernel's file; empty if the file does not exist."""
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def numbers_of(path: Path) -> dict[str, int]:
    """Read a kernel's file whose lines are a name and a number."""
    rows = (line.split() for line in lines_of(path))
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdecimal()}


@dataclass(frozen=True)
class CpuLimit:
    """The least CPU quota of a process's control groups.

    Attributes:
        cores: that all processes of the group may use together, such as 0.5.
        periods: so far in which a process of the group wanted to run.
        throttled: periods in which the kernel stopped the group, since its quota was used up.
    """

    cores: float
    periods: int
    throttled: int

    def throttled_since(self, earlier: CpuLimit | None) -> float:
        """Share of the periods after an earlier moment in which the quota was used up, 0 to 1."""
        if earlier is None or self.periods <= earlier.periods:
            return 0.0
        return (self.throttled - earlier.throttled) / (self.periods - earlier.periods)


def cpu_limit(proc: Path = PROC, cgroups: Path = CGROUPS) -> CpuLimit | None:
    """Read the least CPU quota of this process's control groups; None if there is none."""
    found = []
    for group, unified in control_groups("cpu", proc, cgroups):
        names = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = [word for name in names for line in lines_of(group / name) for word in line.split()]
        if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
            counted = numbers_of(group / "cpu.stat")
            periods, throttled = counted.get("nr_periods", 0), counted.get("nr_throttled", 0)
            found.append(CpuLimit(int(words[0]) / int(words[1]), periods, throttled))
    return min(found, key=lambda limit: limit.cores, default=None)


def cores_granted() -> float:
    """Count the cores that affinity and CPU quota allow this process; may be a fraction."""
    allowed, limit = len(os.sched_getaffinity(0)), cpu_limit()
    return allowed if limit is None else min(allowed, limit.cores)


def usable_cores(nodes: Path = NUMA_NODES) -> tuple[int, ...]:
    """Numbers of the cores to plan with, NUMA node by NUMA node; a fraction of one granted counts as one."""
    node_of: dict[int, int] = {}
    for node in nodes.glob("node[0-9]*"):
        for line in filter(None, lines_of(node / "cpulist")):  # A node may have memory alone.
            node_of |= dict.fromkeys(core_list(line), int(node.name[4:]))
    by_node = sorted(os.sched_getaffinity(0), key=lambda core: (node_of.get(core, 0), core))
    return tuple(by_node[: ceil(cores_granted())])


def core_list(text: str) -> tuple[int, ...]:
    """Read a list of cores such as ``2-9,12``, as the kernel and ``taskset`` write it; sorted.

    Raises:
        ValueError: the text is no such list.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if re.fullmatch(r"\d{1,4}(-\d{1,4})?", part.strip()) is None or int(first) > int(last or first):
            raise ValueError(f'{text!r} is neither a number nor a list of cores such as "2-9,12"')
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def pin(cores: Collection[int], thread: int = 0) -> bool:
    """Tie this process, or one of its threads, to cores; returns False if the system refuses."""
    try:
        os.sched_setaffinity(thread, cores)
    except PermissionError:  # A hardened container refuses; a job works without, only less evenly.
        return False
    return True


NOT_PINNED: Final = "processes cannot be tied to cores of their own: sched_setaffinity is refused"


def can_pin() -> bool:
    """Whether this process may choose its cores."""
    return pin(os.sched_getaffinity(0))


def pins_by_default() -> bool:
    """Whether to tie processes to cores by default.

    It does not help with a quota, which any core may use up; and containers that share a machine would all
    take its first cores.
    """
    return cores_granted() == len(os.sched_getaffinity(0)) and can_pin()

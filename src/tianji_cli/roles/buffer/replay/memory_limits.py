"""How much memory and disk there is for a replay, and whether it fits: asked before anything starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tianji_cli.errors import TianjiError

USABLE: Final = 0.9
"""Part of the available memory that a replay may take: processes and page tables need some, too."""

PROC: Final = Path("/proc")
CGROUPS: Final = Path("/sys/fs/cgroup")


class ReplayMemoryError(TianjiError):
    """The memory of a replay cannot be had; the message says what would be right."""


def available_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> int:
    """Memory that a new array could fill without swapping, within the limits of the process's control groups.

    Args:
        proc: where the kernel tells about memory and processes.
        cgroups: where it tells about control groups, of version 2 or 1.
    """
    meminfo = _numbers(proc / "meminfo")
    available = [meminfo.get("MemAvailable:", meminfo.get("MemFree:", 0)) * 1024]
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            available += _left(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            available += _left(cgroups / "memory", path, *names)
    return max(0, min(available))


def place_for(
    memory: str, in_ram: int, in_file: int, capacity: int, directory: Path | None, replays: int = 1
) -> Path | None:
    """Decide where a replay's fragments lie.

    Args:
        memory: ``ram``, ``mmap``, or ``auto``: RAM if it suffices.
        in_ram: bytes it takes if all of it lies in RAM.
        in_file: how many of them may lie in a file instead.
        capacity: env steps it holds, for the message.
        directory: where the file would lie, if there is a place.
        replays: how many replays take so much together.

    Returns:
        The directory for the file, or None: RAM.

    Raises:
        ReplayMemoryError: it fits nowhere.
    """
    ram, bookkeeping = int(available_bytes() * USABLE), in_ram - in_file
    if memory == "mmap" and directory is None:
        raise ReplayMemoryError('memory = "mmap" needs a directory for the replay\'s file')
    if memory != "mmap" and in_ram <= ram:
        return None
    what = f"a replay of {capacity} env steps takes"
    if replays > 1:
        what = f"{replays} replays of {capacity} env steps take"
    if memory == "ram" or directory is None:
        otherwise = ', or memory = "mmap",' if memory == "ram" else ""
        raise _too_large(what, capacity, in_ram, ram, "of memory are", otherwise)
    if bookkeeping > ram:
        raise _too_large(what, capacity, bookkeeping, ram, "of memory are")
    disk = _disk_room(directory)
    if in_file > disk:
        raise _too_large(what, capacity, in_file, disk, f"on the disk of {directory} are")
    return directory


def in_units(nbytes: int) -> str:
    """A size for people: MB or GB, of 1e6 and 1e9 bytes."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


def _too_large(
    what: str, capacity: int, needed: int, there: int, where: str, otherwise: str = ""
) -> ReplayMemoryError:
    return ReplayMemoryError(
        f"distribution.buffer.capacity: {what} {in_units(needed)}, but {in_units(there)} {where} free: "
        f"a capacity of at most {int(capacity * there / needed)}{otherwise} would do"
    )


def _disk_room(directory: Path) -> int:
    try:
        disk = os.statvfs(directory)
    except OSError as cause:
        raise ReplayMemoryError(
            f"there is no directory {directory} for the replay's file: {cause.strerror}"
        ) from cause
    return disk.f_bavail * disk.f_frsize


def _left(root: Path, path: str, limit: str, usage: str, reclaimable: str) -> list[int]:
    """What a group and each of those around it leave; one that sets no limit says nothing."""
    groups = [root / path.strip("/")]
    while groups[-1] != root and groups[-1] != groups[-1].parent:
        groups.append(groups[-1].parent)
    left = []
    for group in groups:
        most, used = _number(group / limit), _number(group / usage)
        if most is not None and used is not None:
            # Pages of files that nobody has used lately are counted as used, but given up at once.
            left.append(most - used + _numbers(group / "memory.stat").get(reclaimable, 0))
    return left


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []


def _number(path: Path) -> int | None:
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else None


def _numbers(path: Path) -> dict[str, int]:
    rows = (line.split() for line in _lines(path))
    return {row[0]: int(row[1]) for row in rows if len(row) >= 2 and row[1].isdecimal()}

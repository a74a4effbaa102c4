"""What a run is made with: the machine and the versions of each of its sessions, in ``sessions.jsonl``.

A line is appended when a session begins: a run that was resumed elsewhere, or with other versions, says so.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from tianji_cli.errors import os_errors_as, printable
from tianji_cli.files.modules import digests, read_modules
from tianji_cli.files.regular import MOST_DOCUMENT_BYTES, read_regular
from tianji_cli.files.rundir import RunDirectory, RunDirectoryError, write_whole
from tianji_cli.limits import cores_granted, cpu_limit
from tianji_cli.plan.plan import this_host
from tianji_cli.quantities import ranges

GIB: Final = 1 << 30
CPU_INFO: Final = Path("/proc/cpuinfo")
GPUS: Final = Path("/proc/driver/nvidia/gpus")
"""NVIDIA's driver has a directory in here for each GPU. To ask torch would be to import it."""

PACKAGES: Final = (
    *("tianji", "torch", "numpy", "gymnasium", "iceoryx2", "pyzmq", "mpi4py", "ucxx-cu12"),
    *("ale-py", "box2d", "envpool", "jaxmarl", "minatar", "minigrid", "mpe2", "mujoco", "pettingzoo"),
)
"""What computes, what carries data, and what is played in; those of them that are installed are noted."""


class Session(BaseModel):
    """A session of a run.

    Attributes:
        begun: when, in ISO 8601.
        env_steps: that it went on from.
        machine: of its root, descriptions by subject.
        versions: by the names of the packages, Python's among them.
        code: digests of the user's modules, by name.
        number: from 1 on, whether or not the sessions before have saved anything; 0 where an earlier version
            did not number them.
    """

    model_config = ConfigDict(frozen=True)

    begun: datetime
    env_steps: int
    machine: dict[str, str]
    versions: dict[str, str]
    code: dict[str, str] = {}
    number: int = 0


def note_session(
    run: RunDirectory, env_steps: int, code: Mapping[str, str] | None = None, number: int = 0
) -> None:
    """Append what is known of a session that begins.

    Raises:
        RunDirectoryError: it cannot be written; the sessions before are still there.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    about = {"machine": describe_machine(), "versions": versions(), "code": dict(code or {})}
    session = Session(begun=now, env_steps=env_steps, number=number, **about)
    with os_errors_as(RunDirectoryError, f"cannot write {run.sessions}"):
        before = read_regular(run.sessions, MOST_DOCUMENT_BYTES) if run.sessions.exists() else b""
        whole = before + b"\n" * (before[-1:] not in {b"", b"\n"})  # A line may be torn.
        write_whole(run.sessions, whole + session.model_dump_json().encode() + b"\n")


def read_sessions(run: RunDirectory) -> list[Session]:
    """Read what is known of a run's sessions; a damaged line is left out, and earlier versions wrote none.

    Raises:
        OSError: they cannot be read.
    """
    try:
        lines = read_regular(run.sessions, MOST_DOCUMENT_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return list(_readable(lines))


def last_session(run: RunDirectory) -> int:
    """Return the number of the newest session; 0 where none is known.

    Raises:
        OSError: what is known of them cannot be read.
    """
    return max((session.number or i for i, session in enumerate(read_sessions(run), 1)), default=0)


def changed_code(run: RunDirectory, now: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Name the user's modules that are others than in a run's last session; empty if none is, or is known.

    Args:
        now: their digests; None: of those that are known, as they would be imported now.
    """
    try:
        before = next((session.code for session in reversed(read_sessions(run)) if session.code), {})
    except OSError:
        return ()
    now = {**before, **digests(read_modules(before))} if now is None else now
    names = [name for name in sorted(before.keys() | now.keys()) if before.get(name) != now.get(name)]
    return (f"the code of {', '.join(names)} changed",) if before and names else ()


def _readable(lines: list[str]) -> Iterator[Session]:
    for line in lines:
        try:
            yield Session.model_validate_json(line)
        except ValidationError:  # Torn by a full disk, or of another version.
            continue


def describe_machine() -> dict[str, str]:
    """Describe this machine by subject, in the order to be shown."""
    described = {
        "host": this_host().name,
        "kernel": platform.platform(),
        "CPU": cpu_model(),
        "cores": cores(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIB:.1f} GiB",
    }
    return described | ({"GPUs": ", ".join(found)} if (found := gpus()) else {})


def cores() -> str:
    """Say how many cores this process may use, and which."""
    allowed, limit = sorted(os.sched_getaffinity(0)), cpu_limit()
    quota = "" if limit is None else f", CPU limit {limit.cores:g}"
    return f"{cores_granted():g} usable of {os.cpu_count()} (affinity {ranges(allowed)}{quota})"


def cpu_model(info: Path = CPU_INFO) -> str:
    """Name the processor, or its architecture where Linux knows no more (ARM)."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def gpus(place: Path = GPUS) -> list[str]:
    """Name the GPUs that NVIDIA's driver knows of."""
    named = []
    for about in sorted(place.glob("*/information")):
        try:
            found = re.search(r"^Model:\s*(.+)$", about.read_text(), re.MULTILINE)
        except OSError:  # A container may hide it.
            continue
        named += [printable(found[1].strip())] if found else []
    return named


def versions() -> dict[str, str]:
    """Give the versions of Python and of the packages of ``PACKAGES`` that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found

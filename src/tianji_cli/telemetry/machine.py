"""Machine and package versions of each session of a run, in ``sessions.jsonl``.

A session appends a line when it begins, so the file shows whether a run was resumed elsewhere, or with other
versions.
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
"""NVIDIA's driver has a directory in here for each GPU. Asking torch would import it."""

PACKAGES: Final = (
    *("tianji", "torch", "numpy", "gymnasium", "iceoryx2", "pyzmq", "mpi4py", "ucxx-cu12"),
    *("ale-py", "box2d", "envpool", "jaxmarl", "minatar", "minigrid", "mpe2", "mujoco", "pettingzoo"),
)
"""Packages that compute, carry data, or are played in; installed ones are noted with their versions."""


class Session(BaseModel):
    """A session of a run.

    Attributes:
        begun: time of its beginning, in ISO 8601.
        env_steps: environment steps that it continued from.
        machine: descriptions of the root's machine, by subject.
        versions: versions by package name, Python's among them.
        code: digests of the user's modules, by name.
        number: counts sessions from 1 on, also those that have saved nothing; 0 where an earlier version did
            not number them.
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
    """Append the line of a session that begins.

    Raises:
        RunDirectoryError: the line cannot be written; the sessions before are still there.
    """
    now = datetime.now(UTC).replace(microsecond=0)
    about = {"machine": describe_machine(), "versions": versions(), "code": dict(code or {})}
    session = Session(begun=now, env_steps=env_steps, number=number, **about)
    with os_errors_as(RunDirectoryError, f"cannot write {run.sessions}"):
        before = read_regular(run.sessions, MOST_DOCUMENT_BYTES) if run.sessions.exists() else b""
        whole = before + b"\n" * (before[-1:] not in {b"", b"\n"})  # A line may be torn.
        write_whole(run.sessions, whole + session.model_dump_json().encode() + b"\n")


def read_sessions(run: RunDirectory) -> list[Session]:
    """Read a run's sessions; damaged lines are left out, and earlier versions wrote none.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        lines = read_regular(run.sessions, MOST_DOCUMENT_BYTES).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return list(_readable(lines))


def last_session(run: RunDirectory) -> int:
    """Return the number of the newest session; 0 if there is none.

    Raises:
        OSError: the sessions cannot be read.
    """
    return max((session.number or i for i, session in enumerate(read_sessions(run), 1)), default=0)


def changed_code(run: RunDirectory, now: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Name the user's modules that have changed since a run's last session; empty if no digest is known.

    Args:
        now: their present digests; None computes those of the known modules as they would be imported now.
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
    """Describe this machine by subject, in the order of display."""
    described = {
        "host": this_host().name,
        "kernel": platform.platform(),
        "CPU": cpu_model(),
        "cores": cores(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / GIB:.1f} GiB",
    }
    return described | ({"GPUs": ", ".join(found)} if (found := gpus()) else {})


def cores() -> str:
    """Describe the number of cores that this process may use, and their numbers."""
    allowed, limit = sorted(os.sched_getaffinity(0)), cpu_limit()
    quota = "" if limit is None else f", CPU limit {limit.cores:g}"
    return f"{cores_granted():g} usable of {os.cpu_count()} (affinity {ranges(allowed)}{quota})"


def cpu_model(info: Path = CPU_INFO) -> str:
    """Return the name of the processor, or its architecture where Linux gives no name (ARM)."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.machine()


def gpus(place: Path = GPUS) -> list[str]:
    """Return the names of the GPUs that NVIDIA's driver lists."""
    named = []
    for about in sorted(place.glob("*/information")):
        try:
            found = re.search(r"^Model:\s*(.+)$", about.read_text(), re.MULTILINE)
        except OSError:  # A container may hide it.
            continue
        named += [printable(found[1].strip())] if found else []
    return named


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages of ``PACKAGES``."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found

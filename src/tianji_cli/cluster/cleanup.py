"""Removes what a SIGKILL of everything left behind on this host. Cheap, and safe beside live jobs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

from tianji_cli.cluster.occupation import is_occupied

SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - not a place for files of ours
BEING_OPENED_S: Final = 60.0
"""A younger file may be one that its job's other ranks are about to map."""
HOST_DIRECTORY: Final = "tianji-host-"
"""Begins the name of the temporary directory of a host that has joined a job."""


def remove_stale() -> list[str]:
    """Remove shared memory and directories of jobs whose processes are all dead.

    Returns:
        What was removed, by name.
    """
    # Of the engine only what names its files: a broken engine must not keep anybody from cleaning up.
    from tianji_transports.shm_page import remove_stale as remove_stale_shared_memory  # noqa: PLC0415

    return [*_remove_host_directories(), *_remove_mpich_memory(), *remove_stale_shared_memory()]


def _remove_host_directories() -> list[str]:
    removed = []
    for place in Path(tempfile.gettempdir()).glob(f"{HOST_DIRECTORY}*"):
        if place.stat().st_uid == os.getuid() and not is_occupied(place):
            shutil.rmtree(place, ignore_errors=True)
            removed.append(str(place))
    return removed


def _remove_mpich_memory() -> list[str]:
    """Remove what MPICH's ranks leave when they are killed: it has no cleaning of its own."""
    now, found = time.time(), []
    for place in SHARED_MEMORY.glob("mpich_shm_*"):
        with contextlib.suppress(FileNotFoundError):
            status = place.stat()
            if status.st_uid == os.getuid() and now - status.st_mtime > BEING_OPENED_S:
                found.append(place)
    mapped = _mapped_files() if found else ""
    removed = [place for place in found if str(place) not in mapped]
    for place in removed:
        place.unlink(missing_ok=True)
    return [str(place) for place in removed]


def _mapped_files() -> str:
    """What all processes of this user have mapped, as the kernel writes it."""
    maps = []
    for place in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps.append(place.read_text(errors="replace"))
    return "".join(maps)

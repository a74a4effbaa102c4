"""Removes what a SIGKILL of everything left behind on this host. Cheap, and safe beside live jobs."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from tianji_cli.cluster.occupation import is_occupied

HOST_DIRECTORY: Final = "tianji-host-"
"""Begins the name of the temporary directory of a host that has joined a job."""


def remove_stale() -> list[str]:
    """Remove shared memory and directories of jobs whose processes are all dead.

    Returns:
        What was removed, by name.
    """
    # Of the engine only what names its files: a broken engine must not keep anybody from cleaning up.
    from tianji_transports.shm_page import remove_stale as remove_stale_shared_memory  # noqa: PLC0415

    return [*_remove_host_directories(), *remove_stale_shared_memory()]


def _remove_host_directories() -> list[str]:
    removed = []
    for place in Path(tempfile.gettempdir()).glob(f"{HOST_DIRECTORY}*"):
        if place.stat().st_uid == os.getuid() and not is_occupied(place):
            shutil.rmtree(place, ignore_errors=True)
            removed.append(str(place))
    return removed

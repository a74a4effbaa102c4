"""Removes what a SIGKILL of everything left behind on this host. Cheap, and safe beside live jobs.

Names in shared directories may be anybody's: what is not a plain entry of this user's is left alone, and
what cannot be looked at or removed is no reason to fail.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tianji_cli.files.occupation import is_occupied

HOST_DIRECTORY: Final = "tianji-host-"
"""Begins the name of the temporary directory of a host that has joined a job."""


def remove_stale() -> list[str]:
    """Remove shared memory and directories of this user's jobs whose processes are all dead.

    Returns:
        What was removed, by name.
    """
    # Of the engine only what names its files: a broken engine must not keep anybody from cleaning up.
    from tianji_transports.shm_page import remove_stale as remove_stale_shared_memory  # noqa: PLC0415

    return [*_remove_host_directories(), *remove_stale_shared_memory()]


def _remove_host_directories() -> Iterator[str]:
    with contextlib.suppress(OSError):
        for place in Path(tempfile.gettempdir()).glob(f"{HOST_DIRECTORY}*"):
            with contextlib.suppress(OSError):
                status = place.lstat()
                own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
                if own and not is_occupied(place):
                    shutil.rmtree(place)
                    yield str(place)

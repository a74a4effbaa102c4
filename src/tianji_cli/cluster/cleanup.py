"""Removes what a SIGKILL of everything left behind on this host. Cheap, and safe beside live jobs."""

from __future__ import annotations


def remove_stale() -> list[str]:
    """Remove shared memory of jobs whose processes are all dead.

    Returns:
        What was removed, by name.
    """
    # Of the engine only what names its files: a broken engine must not keep anybody from cleaning up.
    from tianji_transports.shm_page import remove_stale as remove_stale_shared_memory  # noqa: PLC0415

    return remove_stale_shared_memory()

"""The lock of what processes share, on one host or on several that see one directory.

It is a file that only one process can make: that works on NFS from version 3 on, which need not have locks. A
process that is killed leaves it, and others remove it when it has lain there for half a minute. Those on the
same machine know at once: all of a machine lock a second file before, which the kernel frees. For one of the
same machine that is asleep they wait twice as long.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import Final

from optuna.storages.journal import JournalFileOpenLock

from tianji_cli.files.regular import open_regular
from tianji_cli.runs.sweep.leases import this_machine

GRACE_S: Final = 30
"""After so long the file of an owner who does nothing is no lock any more."""
LOOK_S: Final = 0.005
"""Between two looks at the lock of this machine."""


class SharedLock:
    """Lets one process go on at a time, and of that one thread. Journals of Optuna take it for theirs.

    Optuna's usual lock, a link, is never taken from a dead owner if its path is relative, or another one on
    the host that looks.

    Args:
        path: of what it is for; its files lie beside that.
    """

    def __init__(self, path: Path) -> None:
        self._file = JournalFileOpenLock(str(path), GRACE_S)
        self._owner = Path(f"{path}.lock")
        self._here = Path(f"{path}.here")
        self._descriptor = -1
        self._signature = ""

    def acquire(self) -> bool:
        """Wait for it.

        Raises:
            OSError: its files cannot be written.
        """
        descriptor = open_regular(self._here, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            alone_here = self._wait_for_this_machine(descriptor)
            if alone_here and self._signed().startswith(f"{this_machine()} "):
                self._owner.unlink(missing_ok=True)
            self._file.acquire()
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        if alone_here:
            # A full disk has no room for it: a lock without a signature is a lock all the same.
            with contextlib.suppress(OSError):
                self._owner.write_text(f"{this_machine()} {secrets.token_hex(8)}", encoding="utf-8")
        self._signature = self._signed()
        return True

    def release(self) -> None:
        """Let the next one go on; one that was asleep for half a minute may have lost it to that before."""
        try:
            if self._signed() == self._signature:
                with contextlib.suppress(RuntimeError):
                    self._file.release()
        finally:
            os.close(self._descriptor)

    def _wait_for_this_machine(self, descriptor: int) -> bool:
        """Be the only one on this machine; False if that cannot be known, or another one is asleep in it."""
        until = time.monotonic() + GRACE_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(LOOK_S)
            except OSError:
                return False  # This file system has no locks.
            else:
                return True

    def _signed(self) -> str:
        """Read the machine and a number of its owner's; empty if that could not write, or there is none."""
        try:
            return self._owner.read_text(encoding="utf-8")
        except (OSError, ValueError):
            return ""

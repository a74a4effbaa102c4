"""A lock between processes, on one host or on several that share a directory.

The lock is a file that only one process can create: that works on NFS from version 3 on, even without NFS
locks. A killed process leaves the file, and others take it over when it has lain there for half a minute.
Processes on the same machine notice at once: all of a machine first lock a second file, which the kernel
frees. For a suspended process on the same machine they wait twice as long.

A process that takes the lock over replaces the file with its own. Several hosts may do so at once, each from
the same dead owner: the last one has the lock, and each checks after a while whether it is the last. A
process that was delayed between its check and its replacement waits like all others: it may have replaced a
living owner's file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from pathlib import Path
from typing import Final

from tianji_cli.files.regular import open_regular
from tianji_cli.runs.sweep.leases import this_machine

GRACE_S: Final = 30
"""Seconds after which the file of an inactive owner is no lock any more."""
SETTLE_S: Final = 2.0
"""Seconds after a take-over in which other hosts that found the owner dead may replace the file."""
LOOK_S: Final = 0.005
"""Seconds between two looks at the lock of this machine, and between the first two at the file."""
MOST_S: Final = 1.0
"""Most seconds between two looks at the file; each pause is twice as long as the last."""


class SharedLock:
    """Lets one process at a time go on, and one thread of it; replaces the own lock of Optuna's journals.

    Optuna's own locks take over from a dead owner by removing the file, whosever it is by then: of two
    waiting hosts one may remove the other's lock.

    Args:
        path: path of the thing to be locked; the lock's files lie beside it.
    """

    def __init__(self, path: Path) -> None:
        self._owner = Path(f"{path}.lock")
        self._here = Path(f"{path}.here")
        self._descriptor = -1
        self._signature = ""

    def acquire(self) -> bool:
        """Wait for the lock.

        Raises:
            OSError: its files cannot be read or written.
        """
        descriptor = open_regular(self._here, os.O_RDWR | os.O_CREAT)
        try:
            # The signature names the machine, so that the next process there recognises a dead owner's lock.
            machine = this_machine() if self._wait_for_this_machine(descriptor) else ""
            self._signature = self._wait_for_others(f"{machine} {secrets.token_hex(8)}", machine)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock; a process that was suspended for half a minute may have lost it already."""
        try:
            if self._signed()[0] == self._signature:
                self._owner.unlink()
        except OSError:
            pass  # Others take a file that cannot be removed for a dead owner's.
        finally:
            os.close(self._descriptor)

    def _wait_for_this_machine(self, descriptor: int) -> bool:
        """Become the only process on this machine; False without locks, or if the holder is suspended."""
        waited_s = 0.0
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if waited_s > GRACE_S:
                    return False
                time.sleep(LOOK_S)
                waited_s += LOOK_S
            except OSError:
                return False  # This file system has no locks.
            else:
                return True

    def _wait_for_others(self, signature: str, machine: str) -> str:
        """Wait until the file names this process as the owner; returns the contents of the file.

        Args:
            machine: this machine, if no other process on it can be the owner.
        """
        seen, waited_s, pause_s = self._signed(), 0.0, LOOK_S
        while (signed := self._make(signature)) is None:
            owner = self._signed()
            if owner != seen:
                seen, waited_s = owner, 0.0
            is_dead = machine and owner[0].startswith(f"{machine} ") and owner[0] != signature
            if (is_dead or waited_s > GRACE_S) and self._take_over(signature, owner):
                return signature
            time.sleep(pause_s)
            waited_s += pause_s  # The clock would count time in which both are suspended.
            pause_s = min(2 * pause_s, MOST_S)
        return signed

    def _make(self, signature: str) -> str | None:
        """Create the file; returns its contents, or None if it exists."""
        try:
            descriptor = os.open(self._owner, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except OSError as cause:
            # SFTP has no error for an existing file, and sshfs reports EPERM.
            if cause.errno in {errno.EEXIST, errno.EPERM}:
                return None
            raise
        # A full disk may cut the signature short; the file is a lock all the same.
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(signature.encode())
        contents = self._signed()[0]
        return contents if signature.startswith(contents) else None

    def _take_over(self, signature: str, dead: tuple[str, int]) -> bool:
        """Take the lock from a dead owner; False if another process did, or may have done so."""
        mine = self._owner.with_name(f"{self._owner.name}-{signature.rpartition(' ')[2]}")
        try:
            mine.write_text(signature, encoding="utf-8")
            looked_s = time.monotonic()
            if self._signed() != dead:
                return False
            mine.replace(self._owner)
        finally:
            mine.unlink(missing_ok=True)
        if time.monotonic() - looked_s > SETTLE_S / 2:
            return False
        time.sleep(SETTLE_S)
        return self._signed()[0] == signature

    def _signed(self) -> tuple[str, int]:
        """Return the owner's signature and the file's time; empty and 0 if there is no file.

        The file is opened for that, because NFS may have cached the attributes of a mere name.

        Raises:
            OSError: the file exists and cannot be read.
        """
        try:
            with self._owner.open("rb") as file:
                return file.read().decode(errors="replace"), os.fstat(file.fileno()).st_mtime_ns
        except OSError as cause:
            if cause.errno in {errno.ENOENT, errno.ESTALE}:
                return "", 0
            raise

"""The lock of what processes share, on one host or on several that see one directory.

It is a file that only one process can make: that works on NFS from version 3 on, which need not have locks.
A process that is killed leaves it, and others take it over when it has lain there for half a minute. Those on
the same machine know at once: all of a machine lock a second file before, which the kernel frees. For one of
the same machine that is asleep they wait twice as long.

A process that takes it over puts a file of its own in its place. Several may do so at once, on as many hosts,
each from the same dead owner: the last has it, and each looks after a while whether it is the last. One that
was held up between its look and its file waits like all others: it may have replaced a living owner's.
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
"""After so long the file of an owner who does nothing is no lock any more."""
SETTLE_S: Final = 2.0
"""After a take-over, in which other hosts that found the owner dead may replace the file, too."""
LOOK_S: Final = 0.005
"""Between two looks at the lock of this machine, and between the first two at the file."""
MOST_S: Final = 1.0
"""Between two looks at the file at most: each is twice as long after the last as that one was."""


class SharedLock:
    """Lets one process go on at a time, and of that one thread. Journals of Optuna take it for theirs.

    Optuna's own locks are taken from a dead owner by removing the file, whosever it is by then: of two hosts
    that wait one may remove the other's.

    Args:
        path: of what it is for; its files lie beside that.
    """

    def __init__(self, path: Path) -> None:
        self._owner = Path(f"{path}.lock")
        self._here = Path(f"{path}.here")
        self._descriptor = -1
        self._signature = ""

    def acquire(self) -> bool:
        """Wait for it.

        Raises:
            OSError: its files cannot be read or written.
        """
        descriptor = open_regular(self._here, os.O_RDWR | os.O_CREAT)
        try:
            # Signed by its machine: the next process that is alone there knows a dead owner's lock by it.
            machine = this_machine() if self._wait_for_this_machine(descriptor) else ""
            self._signature = self._wait_for_others(f"{machine} {secrets.token_hex(8)}", machine)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let the next one go on; one that was asleep for half a minute may have lost it to that before."""
        try:
            if self._signed()[0] == self._signature:
                self._owner.unlink()
        except OSError:
            pass  # What cannot be removed is a dead owner's.
        finally:
            os.close(self._descriptor)

    def _wait_for_this_machine(self, descriptor: int) -> bool:
        """Be the only one on this machine; False if that cannot be known, or another one is asleep in it."""
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
        """Have the file say that this process is the owner; returns what it says.

        Args:
            machine: this one, if no other process on it can be the owner.
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
            waited_s += pause_s  # The clock goes on while this process is suspended, as the owner may be.
            pause_s = min(2 * pause_s, MOST_S)
        return signed

    def _make(self, signature: str) -> str | None:
        """Make the file; returns what it says, or None if there is one."""
        try:
            descriptor = os.open(self._owner, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except OSError as cause:
            # SFTP has no word for a file that is there, and sshfs says that it is not permitted.
            if cause.errno in {errno.EEXIST, errno.EPERM}:
                return None
            raise
        # A full disk has no room for all of it: a file that says less is a lock all the same.
        with contextlib.suppress(OSError), os.fdopen(descriptor, "wb", buffering=0) as file:
            file.write(signature.encode())
        said = self._signed()[0]
        return said if signature.startswith(said) else None

    def _take_over(self, signature: str, dead: tuple[str, int]) -> bool:
        """Take it from an owner that is dead; False if another one did, or may have done so."""
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

        It is opened for that: NFS may have kept from before what a name alone shows of a file.

        Raises:
            OSError: there is one that cannot be read.
        """
        try:
            with self._owner.open("rb") as file:
                return file.read().decode(errors="replace"), os.fstat(file.fileno()).st_mtime_ns
        except OSError as cause:
            if cause.errno in {errno.ENOENT, errno.ESTALE}:
                return "", 0
            raise

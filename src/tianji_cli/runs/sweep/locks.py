"""The lock of what processes share, on one host or on several that see one directory.

It is a file that only one process can make: that works on NFS from version 3 on, which need not have locks.
A process that is killed leaves it, and others take it over when it has lain there for half a minute. Those on
the same machine know at once: all of a machine lock a second file before, which the kernel frees. For one of
the same machine that is asleep they wait twice as long.

A process that takes it over puts a file of its own in its place. Several may do so at once, on as many hosts,
each from the same dead owner: the last has it, and each looks after a while whether it is the last.
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
"""So long after it was taken over another one who found the owner dead has done the same, or will not."""
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
            OSError: its files cannot be written.
        """
        descriptor = open_regular(self._here, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            alone_here = self._wait_for_this_machine(descriptor)
            # Signed by its machine: the next process that is alone there knows a dead owner's lock by it.
            machine = this_machine() if alone_here else ""
            self._signature = f"{machine} {secrets.token_hex(8)}"
            self._wait_for_others(machine)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Let the next one go on; one that was asleep for half a minute may have lost it to that before."""
        try:
            if self._signed()[0] == self._signature:
                with contextlib.suppress(OSError):
                    self._owner.unlink()
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

    def _wait_for_others(self, machine: str) -> None:
        """Have the file say that this process is the owner.

        Args:
            machine: this one, if no other process on it can be the owner.
        """
        seen, since, pause_s = self._signed(), time.monotonic(), LOOK_S
        while not self._make():
            owner = self._signed()
            if owner != seen:
                seen, since = owner, time.monotonic()
            is_dead = machine and owner[0].startswith(f"{machine} ")
            if (is_dead or time.monotonic() - since > GRACE_S) and self._take_over(owner):
                return
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_S)

    def _make(self) -> bool:
        """Make the file; False if there is one."""
        try:
            descriptor = os.open(self._owner, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except OSError as cause:
            # SFTP has no word for a file that is there, and sshfs says that it is not permitted.
            if cause.errno in {errno.EEXIST, errno.EPERM}:
                return False
            raise
        try:
            os.write(descriptor, self._signature.encode())
        except OSError:
            self._signature = ""  # A full disk has no room for it: an empty file is a lock all the same.
        finally:
            os.close(descriptor)
        return True

    def _take_over(self, dead: tuple[str, int]) -> bool:
        """Take it from an owner that is dead; False if another one did."""
        mine = self._owner.with_name(f"{self._owner.name}-{self._signature.rpartition(' ')[2]}")
        mine.write_text(self._signature, encoding="utf-8")
        if self._signed() != dead:
            mine.unlink()
            return False
        mine.replace(self._owner)
        time.sleep(SETTLE_S)
        return self._signed()[0] == self._signature

    def _signed(self) -> tuple[str, int]:
        """Read whose it is, a machine's and with a number of its own, and when it was written.

        The first is empty if its owner could not write that, both are if there is none. It is opened for
        that: what a name alone shows of a file NFS may have kept from before.
        """
        try:
            with self._owner.open("rb") as file:
                return file.read().decode(errors="replace"), os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return "", 0

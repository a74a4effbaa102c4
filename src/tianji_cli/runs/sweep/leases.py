"""Who takes part in a sweep, and who does so no more: a file for each process, locked as long as it lives.

Where a lock does not say it, as on file systems without, or of a process on another host, the file's age
does: its owner touches it every few seconds. Ages are differences of times that the file system itself has
given, so clocks of hosts may differ.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import Final

from tianji_cli.plan.plan import this_host
from tianji_cli.telemetry.metrics import AppendOnlyFile, has_writer

TOUCH_S: Final = 5.0
SILENT_S: Final = 60.0
"""A process on another host whose file is older is dead."""


def this_machine() -> str:
    """Name this machine since it was started: containers on two may have one host name."""
    started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return f"{this_host().name}-{started[:8]}"


class Lease:
    """Owns this process's file.

    Args:
        workers: the directory of all of them.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, workers: Path) -> None:
        self._workers = workers
        self.name = f"{this_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._make()

    def _make(self) -> None:
        # Others see it when it is locked: one that they see without a lock is a dead process's to them.
        hidden = self._workers / f".{self.name}"
        self._file = AppendOnlyFile(hidden)
        hidden.rename(self._workers / self.name)
        self._touched_s = time.monotonic()

    def keep(self) -> None:
        """Say that this process lives; called more often than every ``TOUCH_S``, it does so that often."""
        if time.monotonic() - self._touched_s >= TOUCH_S:
            self._touch()

    def _touch(self) -> None:
        try:
            os.utime(self._workers / self.name)
            self._touched_s = time.monotonic()
        except FileNotFoundError:  # It was asleep for so long that another one thought it dead.
            self._file.close()
            self._make()

    def is_dead(self, name: str) -> bool:
        """Whether a process that took part does so no more: it has ended, however it did.

        Raises:
            OSError: its file, or this process's own, cannot be looked at.
        """
        file = self._workers / name
        try:
            held = has_writer(file)
            if held:
                return False
            if held is False and name.rsplit("-", 2)[0] == this_machine():
                return True
            self._touch()
            age_s = (self._workers / self.name).stat().st_mtime - file.stat().st_mtime
        except FileNotFoundError:
            if not self._workers.exists():
                raise
            return True
        return age_s > SILENT_S

    def clear(self) -> None:
        """Remove the files of processes that are dead; one that cannot be looked at or removed stays."""
        for file in self._workers.glob("[!.]*"):
            with contextlib.suppress(OSError):
                if file.name != self.name and self.is_dead(file.name):
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """Take part no more. Harmless when repeated."""
        with contextlib.suppress(FileNotFoundError):
            (self._workers / self.name).unlink()
        self._file.close()

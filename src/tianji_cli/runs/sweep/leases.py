"""Leases of the processes that take part in a sweep: a file for each, locked as long as the process lives.

Where locks tell nothing, as on file systems without them or about a process on another host, the age of the
file does: its owner touches it every few seconds. An age is the difference of two times that the file system
itself has set, so clocks of hosts may differ.
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
"""Age of its file, in seconds, from which a process on another host counts as dead."""


def this_machine() -> str:
    """Return a name of this machine since its boot: containers on two machines may share a host name."""
    started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return f"{this_host().name}-{started[:8]}"


class Lease:
    """Owns this process's lease file.

    Args:
        workers: directory of all lease files.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, workers: Path) -> None:
        self._workers = workers
        self.name = f"{this_machine()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._make()

    def _make(self) -> None:
        # It becomes visible once it is locked: to others, a visible file without a lock is a dead process's.
        hidden = self._workers / f".{self.name}"
        self._file = AppendOnlyFile(hidden)
        hidden.rename(self._workers / self.name)
        self._touched_s = time.monotonic()

    def keep(self) -> None:
        """Touch the file if ``TOUCH_S`` have passed since the last time; call it more often than that."""
        if time.monotonic() - self._touched_s >= TOUCH_S:
            self._touch()

    def _touch(self) -> None:
        try:
            os.utime(self._workers / self.name)
            self._touched_s = time.monotonic()
        except FileNotFoundError:  # This process was suspended so long that another one took it for dead.
            self._file.close()
            self._make()

    def is_dead(self, name: str) -> bool:
        """Whether a process that took part has ended, in whatever way.

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
        """Remove the files of dead processes; a file that cannot be looked at or removed stays."""
        for file in self._workers.glob("[!.]*"):
            with contextlib.suppress(OSError):
                if file.name != self.name and self.is_dead(file.name):
                    file.unlink(missing_ok=True)

    def close(self) -> None:
        """End the lease. Harmless when repeated."""
        with contextlib.suppress(FileNotFoundError):
            (self._workers / self.name).unlink()
        self._file.close()

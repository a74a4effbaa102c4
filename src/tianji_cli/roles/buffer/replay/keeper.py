"""Keeps a replay on disk beside the checkpoints, so that a resumed run goes on with its memory full."""

from __future__ import annotations

import shutil
import time
from collections.abc import Set
from pathlib import Path
from typing import Final

from tianji_cli.files.linked_directories import LinkedDirectories
from tianji_cli.roles.buffer.replay.file import ReplayFileError, restore_replay, save_replay
from tianji_cli.roles.buffer.replay.replay import Replay

LAST: Final = "last"


class ReplayKeeper:
    """Saves a replay now and then; only the newest copy stays.

    Args:
        replay: what is saved.
        directory: ``checkpoints/replay`` of the run; the process that holds the replay owns it.
        every_s: seconds between two copies.
    """

    def __init__(self, replay: Replay, directory: Path, every_s: float) -> None:
        self._replay = replay
        self._directory = directory
        self._every_s = every_s
        self._places = LinkedDirectories(directory, (LAST,))
        self._saved_at = time.monotonic()

    def restore(self) -> bool:
        """Fill the replay with the last copy; False if there is none.

        Raises:
            ReplayFileError: it is damaged, or of another config.
        """
        last = self._directory / LAST
        if not last.exists():
            return False
        restore_replay(self._replay, last)
        return True

    def is_due(self) -> bool:
        """``every_s`` have passed since the last copy."""
        return time.monotonic() - self._saved_at >= self._every_s

    def save(self) -> bool:
        """Write a copy, then remove the one before.

        Raises:
            ReplayFileError: the disk does not take it; the copy before is untouched.
        """
        try:
            with self._places.fill(LAST, f"{self._replay.accepted:012d}") as place:
                save_replay(self._replay, place)
            _remove_copies(self._directory, keep=self._places.targets())
        except OSError as cause:
            raise ReplayFileError(f"cannot write the replay to {self._directory}: {cause}") from cause
        self._saved_at = time.monotonic()
        return True


def _remove_copies(directory: Path, *, keep: Set[str]) -> None:
    """Remove copies, and nothing that somebody else has put beside them."""
    for path in directory.iterdir():
        if path.name.isdecimal() and path.name not in keep and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)

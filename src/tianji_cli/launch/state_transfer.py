"""States of user roles on hosts that cannot reach the run directory, on their way to the root and back.

A host sends the root what its roles have saved, since it forgets all when the job is over. The root keeps it
in the run directory, and sends it to the host that has the role in a resumed run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tianji_cli.files.directories import LAST
from tianji_cli.files.role_state import STATE, keep_state
from tianji_cli.files.saved import read_sealed
from tianji_cli.plan.job import Job
from tianji_cli.wire.messages import SavedState

PIECE_BYTES: Final = 128 << 10
"""Maximum bytes in one message: in base64 far less than the control channel takes."""


class StateTransfer:
    """One side of it: knows which copies the other one has, and keeps the pieces of those that are coming."""

    def __init__(self) -> None:
        self._known: dict[Path, Path] = {}
        self._coming: dict[Path, bytearray] = {}

    def unsent(self, job: Job, rank: int) -> Iterator[SavedState]:
        """Yield, in pieces, the states of a rank's roles that are newer than those that the other side has.

        Raises:
            CheckpointError: one of them is damaged.
        """
        for role in dict.fromkeys(job.plan.processes[rank].roles):
            place = job.states(rank, role)
            copy = (place / LAST).resolve()
            if copy.exists() and self._known.get(place) != copy:
                self._known[place] = copy
                content = read_sealed(place / LAST, STATE)
                for start in range(0, len(content), PIECE_BYTES):
                    piece, end = content[start : start + PIECE_BYTES], start + PIECE_BYTES
                    yield SavedState(rank=rank, role=role, piece=piece, is_last=end >= len(content))

    def keep(self, job: Job, message: SavedState) -> None:
        """Take a piece of a state, and make the state the newest one here when it is whole.

        Raises:
            LookupError: the rank has no such role.
            OSError: the disk does not take it.
        """
        if message.role not in job.plan.processes[message.rank].roles:
            raise LookupError(f"{job.title(message.rank)} has no role {message.role!r}")
        place = job.states(message.rank, message.role)
        self._coming.setdefault(place, bytearray()).extend(message.piece)
        if message.is_last:
            keep_state(place, bytes(self._coming.pop(place)))
            self._known[place] = (place / LAST).resolve()

"""Draws batches from the replay of a buffer that takes turns with the learner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.replay_feed import BatchSource
from tianji_cli.wire.arrival import Arrival
from tianji_cli.wire.batches import BatchArrays


class LocalReplay(BatchSource):
    """Draws into one batch's memory, over and over.

    Args:
        store: the buffer's.
        arrays: memory of a batch.
    """

    def __init__(self, store: ReplayStore, arrays: BatchArrays) -> None:
        self._store = store
        self._arrays = arrays

    def arrivals(self) -> Sequence[Arrival]:
        """Say what the buffer received since the last call."""
        return self._store.arrivals()

    def draw(self) -> BatchArrays | None:
        """Draw a batch if the balance allows it."""
        if not self._store.may_draw(self._arrays.layout.most_steps):
            return None
        self._store.draw(self._arrays)
        return self._arrays

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Let them take effect at once."""
        self._store.replay.update_priorities(self._arrays.handle, priorities)

    def wind_down(self) -> None:
        """Nothing was begun that would have to end."""

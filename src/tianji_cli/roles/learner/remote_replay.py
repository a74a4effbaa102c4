"""Takes batches from a replay in another process, and sends priorities back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_cli.plan.graph import ARRIVALS, BATCHES
from tianji_cli.roles.learner.batch_exchange import BatchInbox, PriorityOutbox
from tianji_cli.roles.learner.replay_feed import BatchSource
from tianji_cli.roles.role import rejected_by
from tianji_cli.wire.arrival import Arrival
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.refusals import Refusals
from tianji_transports.core import Transport

NOBODY: Final = -1
"""Handle of no sample."""


class RemoteReplay(BatchSource):
    """Claims assembled batches; the next one is on its way while the learner updates.

    Args:
        transport: the endpoint of the learner's process.
        buffer: rank of the buffer.
        job: the job's number, which every batch carries.
        batches: how a batch is laid out.
    """

    def __init__(self, transport: Transport, buffer: int, job: int, batches: BatchLayout) -> None:
        self._transport = transport
        self._inbox = BatchInbox(transport, job, batches)
        self._outbox = PriorityOutbox(transport, buffer)
        self._handles: npt.NDArray[np.int64] = np.zeros(batches.size, np.int64)
        self._winding_down = False
        self._refusals = Refusals()

    def arrivals(self) -> Sequence[Arrival]:
        """Hear what the buffer received."""
        if self._winding_down:
            self._discard_batches()
        arrived = []
        while (claim := self._transport.probe(ARRIVALS)) is not None:
            arrival = Arrival.read(claim.view())
            claim.release()
            if arrival is None:
                self._refusals.add(claim, "it is no arrival")
                continue
            arrived.append(arrival)
        return arrived

    def draw(self) -> BatchArrays | None:
        """Claim the next batch, and read it where it is if the engine lends."""
        self._outbox.flush()
        self._inbox.release()
        while (claim := self._transport.probe(BATCHES)) is not None:
            arrays = self._inbox.open(claim)
            if isinstance(arrays, BatchArrays):
                np.copyto(self._handles, arrays.handle)
                return arrays
            self._refusals.add(claim, arrays)
            # In step, the buffer waits for an answer to every batch.
            self._handles[:] = NOBODY
            self.give_priorities(np.zeros(len(self._handles), np.float32))
        return None

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Send them as soon as there is room; the learner does not wait for it."""
        self._outbox.send(self._handles, priorities)

    def wind_down(self) -> None:
        """Give the last batch back, and then those that were on their way: their sender waits for it."""
        self._winding_down = True
        self._inbox.release()

    def report(self) -> dict[str, Any]:
        """Messages that were refused: how many, and why the first."""
        batches = [self._refusals.count, self._refusals.first]
        return {"rejected": {"batches": batches, "endpoint": rejected_by(self._transport)}}

    def _discard_batches(self) -> None:
        while (claim := self._transport.probe(BATCHES)) is not None:
            claim.release()

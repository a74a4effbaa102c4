"""Both ends of batches at a learner that has no replay beside it: batches come in, priorities go back."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from tianji_cli.plan.graph import PRIORITIES
from tianji_cli.wire import priority_update
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_transports.core import Claim, Full, Transport


class BatchInbox:
    """Opens batches one at a time: read where they are if the engine lends, copied otherwise.

    Args:
        transport: the endpoint of this process.
        job: the job's number, which every batch carries.
        batches: how a batch is laid out.
    """

    def __init__(self, transport: Transport, job: int, batches: BatchLayout) -> None:
        self._job = job
        self._batches = batches
        self._own = None if transport.capabilities.lends else BatchArrays(batches)
        self._claim: Claim | None = None

    def open(self, claim: Claim) -> BatchArrays | str:
        """Read a batch, valid until ``release``; a text says why it is none, and it is given back."""
        if claim.nbytes != self._batches.nbytes:
            claim.release()
            return f"it has {claim.nbytes} bytes, not {self._batches.nbytes}"
        if self._own is None:
            self._claim, arrays = claim, BatchArrays(self._batches, claim.view())
        else:
            arrays = self._own
            claim.take(arrays.memory)
        if (refusal := arrays.refusal(self._job)) is not None:
            self.release()
            return refusal
        return arrays

    def release(self) -> None:
        """Give the memory of the last batch back, if it is lent."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None


class PriorityOutbox:
    """Sends priorities as soon as there is room; nobody waits for it.

    Args:
        transport: the endpoint of this process.
        dest: rank that has the replay.
    """

    def __init__(self, transport: Transport, dest: int) -> None:
        self._transport = transport
        self._dest = dest
        self._unsent: deque[bytearray] = deque()

    def send(self, handles: npt.NDArray[np.int64], priorities: npt.NDArray[np.float32]) -> None:
        """Send the priorities of one batch's samples."""
        message = bytearray(priority_update.nbytes(len(priorities)))
        priority_update.write(memoryview(message), handles, priorities)
        self._unsent.append(message)
        self.flush()

    def flush(self) -> None:
        """Send what had no room before, as far as there is some now."""
        while self._unsent:
            loan = self._transport.loan(self._dest, PRIORITIES, len(self._unsent[0]))
            if isinstance(loan, Full):
                return
            loan.memory[:] = self._unsent.popleft()
            self._transport.push(loan)

"""A replay in a process of its own: assembles batches ahead of the learner, straight into loans."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from tianji_cli.errors import RunFailed
from tianji_cli.plan.graph import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.replay.keeper import ReplayKeeper
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.wire import priority_update
from tianji_cli.wire.arrival import Arrival
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_transports.core import Full, Transport

TELL_LIMIT_S: Final = 5.0
"""How long a buffer that stops waits for the learner to hear of everything that was received."""


class ReplayBuffer(Buffer):
    """Claims fragments, tells the learner of them, and keeps it supplied with batches.

    Args:
        transport: the endpoint of this process.
        channel: the channel of fragments.
        store: the replay.
        learner: rank of the learner.
        batches: how a batch is laid out.
        keeper: saves the replay now and then, if it is to be saved.
        in_step: assemble a batch only when the priorities of the last one have come (``priority_updates =
            "sync"``: the assignment dependency of the paper's section 2.2).
    """

    def __init__(
        self,
        transport: Transport,
        channel: str,
        store: ReplayStore,
        *,
        learner: int,
        batches: BatchLayout,
        keeper: ReplayKeeper | None,
        in_step: bool,
    ) -> None:
        super().__init__(transport, channel, store, keeper)
        self._replay_store = store
        self._learner = learner
        self._batches = batches
        self._in_step = in_step
        self._awaits_priorities = False
        self._untold: deque[Arrival] = deque()
        self._arrival_nbytes = Arrival.nbytes(store.fragment_steps)

    def turn(self) -> bool:
        """Claim fragments, take priorities, tell of arrivals, and assemble a batch if there is room."""
        worked = super().turn()
        worked |= self._take_priorities()
        worked |= self._tell_arrivals()
        return self._assemble() or worked

    def stop(self) -> None:
        """Claim what has arrived since the last turn, and wait until the learner has heard of all of it.

        Raises:
            RunFailed: the learner does not listen.
        """
        super().stop()
        deadline = time.monotonic() + TELL_LIMIT_S
        while (unheard := self._unheard) and time.monotonic() < deadline:
            self._transport.wait(0.1)
            self.turn()
        if unheard:
            raise RunFailed(f"the learner has not heard of {unheard} fragments within {TELL_LIMIT_S:g} s")

    @property
    def _unheard(self) -> int:
        return len(self._untold) + self._transport.unconfirmed(self._learner, ARRIVALS)

    def _take_priorities(self) -> bool:
        taken = False
        while (claim := self._transport.probe(PRIORITIES)) is not None:
            update = priority_update.read(claim.view(), self._batches.size)
            if update is None:
                self._replay_store.admission.refusals.add(claim, "it holds no priorities")
            else:
                self._replay_store.replay.update_priorities(*update)
                self._awaits_priorities = False
            claim.release()
            taken = True
        return taken

    def _tell_arrivals(self) -> bool:
        self._untold.extend(self._replay_store.arrivals())
        told = False
        while self._untold:
            loan = self._transport.loan(self._learner, ARRIVALS, self._arrival_nbytes)
            if isinstance(loan, Full):
                break
            self._untold.popleft().write(loan.memory)
            self._transport.push(loan)
            told = True
        return told

    def _assemble(self) -> bool:
        """Draw a batch; the learner's window bounds how many are ahead of it."""
        blocked = self._winding_down or (self._in_step and self._awaits_priorities)
        if blocked or not self._replay_store.may_draw(self._batches.most_steps):
            return False
        loan = self._transport.loan(self._learner, BATCHES, self._batches.nbytes)
        if isinstance(loan, Full):
            return False
        self._replay_store.draw(BatchArrays(self._batches, loan.memory))
        self._transport.push(loan)
        self._awaits_priorities = True
        return True

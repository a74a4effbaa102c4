"""The buffer: receives fragments, beside its learner or in a process of its own.

In a process of its own, a replay's buffer assembles batches ahead of the learner, straight into loans; others
send the fragments on, of which the learner makes rollouts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Final

from tianji_cli.config.edges import ARRIVALS, PRIORITIES
from tianji_cli.errors import RunFailed
from tianji_cli.roles.buffer.replay.file import ReplayKeeper
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.buffer.rollout import FragmentRelay, RolloutStore
from tianji_cli.roles.role import Role, Trigger, rejected_by
from tianji_cli.wire.batches import BatchArrays, BatchLayout, priorities_layout, read_priorities
from tianji_cli.wire.fragment import FragmentStats, stats_layout
from tianji_cli.wire.reports import BufferReport
from tianji_transports.core import Full, Transport

DELIVERY_LIMIT_S: Final = 5.0
"""Seconds that a stopping buffer waits until the learner has received all its fragments, or their stats."""


Store = RolloutStore | ReplayStore | FragmentRelay
"""Store of a buffer's fragments: rollouts in the making, a replay, or what only sends them on."""


class Buffer(Role):
    """Claims fragments into its store, as many as the store can hold.

    Args:
        keeper: saves the store's replay periodically; None if the config does not ask for it.

    Attributes:
        store: the store that holds the fragments.
    """

    name = "buffer"
    store: Store

    def __init__(
        self, transport: Transport, channel: str, store: Store, keeper: ReplayKeeper | None = None
    ) -> None:
        self._transport = transport
        self._channel = channel
        self.store = store
        self._keeper = keeper
        self._winding_down = False

    @property
    def triggers(self) -> Sequence[Trigger]:
        """Save the replay when it is time."""
        return () if self._keeper is None else (Trigger(when=self.copy_is_due, do=self._save),)

    def turn(self) -> bool:
        """Claim the waiting fragments until the store is full."""
        claimed = False
        while not self.store.full and (claim := self._transport.probe(self._channel)) is not None:
            self.store.admit(claim)
            claimed = True
        return claimed

    def copy_is_due(self) -> bool:
        """Whether it is time to save, and no actor waits for this process to claim the last fragments."""
        return self._keeper is not None and self._keeper.is_due() and not self._winding_down

    def peer_lost(self, rank: int, counts_from: int) -> None:
        """Reject the fragments of a rank's incarnations before one: the root has given up their host."""
        self.store.validator.fence(rank, counts_from)

    def wind_down(self) -> None:
        """Claim everything that arrives from now on, since every sample must be accounted for."""
        self._winding_down = True
        self.store.wind_down()

    def stop(self) -> None:
        """Claim the last fragments, and wait until a learner in another process knows of all of them.

        Raises:
            RunFailed: the learner does not receive them in time.
        """
        deadline = time.monotonic() + DELIVERY_LIMIT_S
        # A turn may send more: none is left once nothing was under way before it, and it found nothing.
        while self._undelivered + self.turn():
            if not self._undelivered:
                continue
            if time.monotonic() >= deadline:
                what = f"{self._undelivered} fragments within {DELIVERY_LIMIT_S:g} s"
                raise RunFailed(f"the learner has not heard of {what}")
            self._transport.wait(0.1)

    @property
    def _undelivered(self) -> int:
        """Fragments that a learner in another process may not know of yet."""
        return self.store.undelivered

    def keep(self) -> None:
        """Save the replay, which may take a while; no other process waits for this one any more."""
        self._save()

    def _save(self) -> bool:
        if self._keeper is None:
            return False
        with self._transport.undisturbed():
            return self._keeper.save()

    def report(self) -> BufferReport:
        """Report receptions by source, and rejections: their number and the reason of the first."""
        validator = self.store.validator
        return replace(
            self.store.report(),
            receptions=tuple(
                (*source, *astuple(reception)) for source, reception in validator.receptions.items()
            ),
            rejected={
                "fragments": validator.rejected.reported,
                "endpoint": rejected_by(self._transport),
            },
        )


class ReplayBuffer(Buffer):
    """Claims fragments, sends their stats to the learner, and keeps the learner supplied with batches.

    Args:
        learner: rank of the learner.
        taker: rank and channel that batches go to: the learner's, or those of a role before it.
        in_step: assemble a batch only when the priorities of the last one have come (``priority_updates =
            "sync"``: the assignment dependency of the paper's section 2.2).
    """

    store: ReplayStore

    def __init__(  # noqa: PLR0913 - three roles on its other side
        self,
        transport: Transport,
        channel: str,
        store: ReplayStore,
        *,
        learner: int,
        taker: tuple[int, str],
        batches: BatchLayout,
        keeper: ReplayKeeper | None,
        in_step: bool,
        metrics: int = 0,
    ) -> None:
        super().__init__(transport, channel, store, keeper)
        self._learner = learner
        self._taker = taker
        self._batches = batches
        self._in_step = in_step
        self._awaits_priorities = False
        self._unsent: deque[FragmentStats] = deque()
        self._stats = stats_layout(store.fragment_steps, metrics)
        self._priorities = priorities_layout(batches.size)

    def turn(self) -> bool:
        """Claim fragments, take priorities, send stats of arrivals, and assemble a batch if there is room."""
        worked = super().turn()
        worked |= self._take_priorities()
        worked |= self._send_arrivals()
        return self._assemble() or worked

    @property
    def _undelivered(self) -> int:
        return len(self._unsent) + self._transport.unconfirmed(self._learner, ARRIVALS)

    def _take_priorities(self) -> bool:
        store, taken = self.store, False
        while (claim := self._transport.probe(PRIORITIES)) is not None:
            update = read_priorities(self._priorities, claim.view(), store.job)
            if isinstance(update, str):
                store.validator.rejected.add(claim, update)
            else:
                store.update_priorities(*update)
                self._awaits_priorities = False
            claim.release()
            taken = True
        return taken

    def _send_arrivals(self) -> bool:
        self._unsent.extend(self.store.arrivals())
        sent = False
        while self._unsent:
            loan = self._transport.loan(self._learner, ARRIVALS, self._stats.nbytes)
            if isinstance(loan, Full):
                break
            self._unsent.popleft().write(self._stats, loan.memory, self.store.job)
            self._transport.push(loan)
            sent = True
        return sent

    def _assemble(self) -> bool:
        """Draw a batch; the taker's window limits the number of batches ahead of it."""
        blocked = self._winding_down or (self._in_step and self._awaits_priorities)
        if blocked or not self.store.may_draw(self._batches.most_steps):
            return False
        loan = self._transport.loan(*self._taker, self._batches.nbytes)
        if isinstance(loan, Full):
            return False
        self.store.draw(BatchArrays(self._batches, loan.memory))
        self._transport.push(loan)
        self._awaits_priorities = True
        return True

"""Draws batches from the replay beside the learner and deals equal shares of each to all learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_cli.plan.graph import PRIORITIES
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.parallel.dealing import Deal, Dealer
from tianji_cli.roles.learner.replay_feed import BatchSource
from tianji_cli.wire import priority_update
from tianji_cli.wire.arrival import Arrival
from tianji_cli.wire.batches import BatchArrays, BatchLayout, BatchView
from tianji_cli.wire.refusals import Refusals
from tianji_transports.core import Transport


class DealingReplay(BatchSource):
    """Draws whole batches, as one learner would, so that samples and importance weights are the same.

    Args:
        transport: the endpoint of this process.
        store: the buffer's.
        batches: how a whole batch is laid out.
        share: how a learner's share of it is.
        dealer: sends the others' shares.
        prioritised: followers send the priorities of what they have used.
        in_step: wait for all of them before the next batch is drawn.
    """

    def __init__(
        self,
        transport: Transport,
        store: ReplayStore,
        batches: BatchLayout,
        share: BatchLayout,
        dealer: Dealer,
        *,
        prioritised: bool,
        in_step: bool,
    ) -> None:
        self._transport = transport
        self._store = store
        self._dealer = dealer
        self._prioritised = prioritised
        self._in_step = in_step
        self._whole = BatchArrays(batches)
        self._share = share
        self._rows = [
            {name: rows[start : start + share.size] for name, rows in self._whole.arrays.items()}
            for start in range(0, batches.size, share.size)
        ]
        self._own = BatchView(share, self._rows[0])
        self._is_dealt = False
        self._unanswered = 0
        self._refusals = Refusals()

    def arrivals(self) -> Sequence[Arrival]:
        """Say what the buffer received since the last call."""
        return self._store.arrivals()

    def deal(self, deal: Deal) -> bool:
        """Draw a batch and deal it out, if the balance allows it and every follower has room."""
        if self._prioritised:
            self._take_priorities()
            if self._in_step and self._unanswered:
                return False
        if not self._store.may_draw(self._whole.layout.most_steps):
            return False
        hands = self._dealer.hands()
        if hands is None:
            return False
        self._store.draw(self._whole)
        for (memory,), rows in zip(hands, self._rows[1:], strict=True):
            dealt = BatchArrays(self._share, memory)
            dealt.stamp(self._dealer.job)
            for name, array in dealt.arrays.items():
                array[...] = rows[name]
        self._dealer.push(deal)
        self._is_dealt = True
        self._unanswered += len(hands)
        return True

    @property
    def is_claimed(self) -> bool:
        """The followers have their shares."""
        return self._dealer.is_claimed

    def draw(self) -> BatchView | None:
        """Hand out this learner's share of what was dealt, once."""
        if not self._is_dealt:
            return None
        self._is_dealt = False
        return self._own

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Let those of this learner's share take effect at once."""
        self._store.replay.update_priorities(self._own.handle, priorities)

    def wind_down(self) -> None:
        """Begin nothing more."""
        self._dealer.abandon()

    def report(self) -> dict[str, Any]:
        """Messages that were refused: how many, and why the first."""
        return {"rejected": {"priorities": [self._refusals.count, self._refusals.first]}}

    def _take_priorities(self) -> None:
        while (claim := self._transport.probe(PRIORITIES)) is not None:
            update = priority_update.read(claim.view(), self._share.size)
            if update is None:
                self._refusals.add(claim, "it holds no priorities")
            else:
                self._store.replay.update_priorities(*update)
            claim.release()
            # An answer that cannot be used is one, too: nobody would send another.
            self._unanswered -= 1

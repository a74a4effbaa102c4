"""What a follower learns from: its shares of what the learner deals out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tianji_algos.core import ReplayEmbryo, RolloutEmbryo
from tianji_cli.plan.graph import DEALS, SHARES
from tianji_cli.roles.learner.batch_exchange import BatchInbox, PriorityOutbox
from tianji_cli.roles.learner.parallel.dealing import Deal
from tianji_cli.roles.role import rejected_by
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.refusals import Refusals
from tianji_transports.core import Claim, Transport


class FollowerFeed(ABC):
    """Takes deals and their shares from the learner, and makes batches of them.

    Args:
        transport: the endpoint of the follower's process.
        job: the job's number, which every message carries.
    """

    def __init__(self, transport: Transport, job: int) -> None:
        self._transport = transport
        self._job = job
        self._deal: Deal | None = None
        self._refusals = Refusals()

    def deal(self) -> Deal | None:
        """Hand out the next deal once all of its shares are there, once; None until then."""
        if self._deal is None:
            self._deal = self._next_deal()
            if self._deal is None:
                return None
        while self._missing(self._deal) and (claim := self._transport.probe(SHARES)) is not None:
            refusal = self._take(claim)
            if refusal is not None:
                self._refusals.add(claim, refusal)
        if self._missing(self._deal):
            return None
        deal, self._deal = self._deal, None
        return deal

    @abstractmethod
    def batch(self) -> Any | None:
        """Hand out the next batch of the deal; None if all are used."""

    @abstractmethod
    def used(self) -> None:
        """Take note that the update rule has made its update on the last batch."""

    def report(self) -> dict[str, Any]:
        """What the root is told: messages that were refused, how many, and why the first."""
        shares = [self._refusals.count, self._refusals.first]
        return {"rejected": {"shares": shares, "endpoint": rejected_by(self._transport)}}

    @abstractmethod
    def _missing(self, deal: Deal) -> bool:
        """Say whether shares are yet to come."""

    @abstractmethod
    def _take(self, claim: Claim) -> str | None:
        """Keep a share or release it; says why it is refused."""

    def _next_deal(self) -> Deal | None:
        while (claim := self._transport.probe(DEALS)) is not None:
            deal = Deal.read(claim.view(), self._job)
            claim.release()
            if isinstance(deal, Deal):
                return deal
            self._refusals.add(claim, deal)
        return None


class DealtRollouts(FollowerFeed):
    """Shares are fragments, read in place on an engine that lends, and copied elsewhere.

    Args:
        transport: the endpoint of the follower's process.
        job: the job's number.
        embryo: cuts rollouts into minibatches.
        layout: of fragments.
        actors: numbers of the group's actors.
        shares: fragments in a deal.
        lends: they stay where they are until they were read.
    """

    def __init__(
        self,
        transport: Transport,
        job: int,
        embryo: RolloutEmbryo,
        layout: FragmentLayout,
        actors: Sequence[int],
        *,
        shares: int,
        lends: bool,
    ) -> None:
        super().__init__(transport, job)
        self._embryo = embryo
        self._layout = layout
        self._actors = actors
        self._memory = None if lends else np.zeros((shares, layout.nbytes), np.uint8)
        self._fragments: list[Fragment] = []
        self._claims: list[Claim] = []
        self._minibatches: Iterator[Any] | None = None

    def batch(self) -> Any | None:
        """Hand out the next minibatch."""
        if self._minibatches is None:
            self._minibatches = self._embryo.minibatches([fragment.fields for fragment in self._fragments])
        minibatch = next(self._minibatches, None)
        self._release()
        if minibatch is None:
            self._minibatches = None
        return minibatch

    def used(self) -> None:
        """Rollouts want to know nothing."""

    def _missing(self, deal: Deal) -> bool:
        return len(self._fragments) < deal.shares

    def _take(self, claim: Claim) -> str | None:
        if claim.nbytes != self._layout.nbytes:
            claim.release()
            return f"it has {claim.nbytes} bytes, not {self._layout.nbytes}"
        if self._memory is None:
            self._claims.append(claim)
            fragment = Fragment(self._layout, claim.view())
        else:
            memory = memoryview(self._memory[len(self._fragments)])
            claim.take(memory)
            fragment = Fragment(self._layout, memory)
        refusal = fragment.refusal(self._job, self._actors)
        if refusal is None:
            self._fragments.append(fragment)
        elif self._claims:
            self._claims.pop().release()
        return refusal

    def _release(self) -> None:
        """Once a first minibatch was made, everything needed of the fragments is copied."""
        self._fragments.clear()
        while self._claims:
            self._claims.pop().release()


class DealtBatches(FollowerFeed):
    """A share is a batch, read in place on an engine that lends.

    Args:
        transport: the endpoint of the follower's process.
        job: the job's number.
        share: how a share is laid out.
        learner: rank that is sent priorities.
        prioritised: learns from them, and changes their priorities; None: they have none.
    """

    def __init__(
        self,
        transport: Transport,
        job: int,
        share: BatchLayout,
        learner: int,
        *,
        prioritised: ReplayEmbryo | None,
    ) -> None:
        super().__init__(transport, job)
        self._prioritised = prioritised
        self._inbox = BatchInbox(transport, job, share)
        self._outbox = PriorityOutbox(transport, learner)
        self._arrays: BatchArrays | None = None
        self._is_used = False

    def batch(self) -> Any | None:
        """Hand out the share of the last deal, once."""
        self._outbox.flush()
        if self._arrays is None or self._is_used:
            self._arrays, self._is_used = None, False
            return None
        return self._arrays.batch

    def used(self) -> None:
        """Send the new priorities as soon as there is room, and give the memory back."""
        assert self._arrays is not None
        if self._prioritised is not None:
            self._outbox.send(self._arrays.handle, self._prioritised.priorities)
        self._is_used = True
        self._inbox.release()

    def deal(self) -> Deal | None:
        """Send priorities that had no room, and hand out the next deal."""
        self._outbox.flush()
        return super().deal()

    def _missing(self, deal: Deal) -> bool:  # noqa: ARG002 - a batch is one share
        return self._arrays is None

    def _take(self, claim: Claim) -> str | None:
        opened = self._inbox.open(claim)
        if isinstance(opened, str):
            return opened
        self._arrays = opened
        return None

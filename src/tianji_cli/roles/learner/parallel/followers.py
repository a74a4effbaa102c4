"""Batches for several learners of a group, which make every update together with the one that publishes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_algos.core import Embryo, RolloutEmbryo, UpdateResult
from tianji_cli.plan.graph import DEALS, PRIORITIES, SHARES
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.data_source import BatchInbox, PriorityOutbox, ReplayClient
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup, LostPeerError
from tianji_cli.roles.learner.parallel.dealing import Deal, Scatter, tensors_in_step
from tianji_cli.roles.role import Role, rejected_by
from tianji_cli.wire.batches import BatchArrays, BatchLayout, BatchView, priorities_layout, read_priorities
from tianji_cli.wire.fragment import Fragment, FragmentLayout, FragmentStats
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import Claim, Transport


class FollowerSource(ABC):
    """Takes deals and their shares from the learner, and makes batches of them.

    Args:
        transport: the endpoint of the follower's process.
        job: the job's number, which every message carries.
    """

    def __init__(self, transport: Transport, job: int) -> None:
        self._transport = transport
        self._job = job
        self._deal: Deal | None = None
        self._refusals = Rejected()

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
    def used(self, result: UpdateResult) -> None:
        """Note what the update on the last batch came to."""

    def report(self) -> dict[str, Any]:
        """What the root is told: messages that were refused, how many, and why the first."""
        shares = [self._refusals.count, self._refusals.first]
        return {"rejected": {"shares": shares, "endpoint": rejected_by(self._transport)}}

    @abstractmethod
    def _missing(self, deal: Deal) -> bool:
        """Whether shares are yet to come."""

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


class ScatteredRollouts(FollowerSource):
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

    def used(self, result: UpdateResult) -> None:
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


class ScatteredBatches(FollowerSource):
    """A share is a batch, read in place on an engine that lends.

    Args:
        transport: the endpoint of the follower's process.
        job: the job's number.
        share: how a share is laid out.
        learner: rank that is sent priorities.
        prioritised: samples have priorities, which updates change.
    """

    def __init__(
        self,
        transport: Transport,
        job: int,
        share: BatchLayout,
        learner: int,
        *,
        prioritised: bool,
    ) -> None:
        super().__init__(transport, job)
        self._prioritised = prioritised
        self._inbox = BatchInbox(transport, job, share)
        self._outbox = PriorityOutbox(transport, learner, job, share.size)
        self._arrays: BatchArrays | None = None
        self._is_used = False

    def batch(self) -> Any | None:
        """Hand out the share of the last deal, once."""
        self._outbox.flush()
        if self._arrays is None or self._is_used:
            self._arrays, self._is_used = None, False
            return None
        return self._arrays.batch

    def used(self, result: UpdateResult) -> None:
        """Send the new priorities as soon as there is room, and give the memory back."""
        assert self._arrays is not None
        if self._prioritised and result.priorities is not None:
            self._outbox.send(self._arrays.key, result.priorities)
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


class ScatteringReplayClient(ReplayClient):
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
        dealer: Scatter,
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
        self._priorities = priorities_layout(share.size)
        self._share = share
        self._rows = [
            {name: rows[start : start + share.size] for name, rows in self._whole.arrays.items()}
            for start in range(0, batches.size, share.size)
        ]
        self._own = BatchView(share, self._rows[0])
        self._is_dealt = False
        self._unanswered = 0
        self._refusals = Rejected()

    def arrivals(self) -> Sequence[FragmentStats]:
        """Describe what the buffer received since the last call."""
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
        self._store.replay.update_priorities(self._own.key, priorities)

    def wind_down(self) -> None:
        """Begin nothing more."""
        self._dealer.abandon()

    def report(self) -> dict[str, Any]:
        """Messages that were refused: how many, and why the first."""
        return {"rejected": {"priorities": [self._refusals.count, self._refusals.first]}}

    def _take_priorities(self) -> None:
        while (claim := self._transport.probe(PRIORITIES)) is not None:
            update = read_priorities(self._priorities, claim.view(), self._dealer.job)
            if isinstance(update, str):
                self._refusals.add(claim, update)
            else:
                self._store.replay.update_priorities(*update)
            claim.release()
            # An answer that cannot be used is one, too: no other will come.
            self._unanswered -= 1


class Follower(Role):
    """Updates on its share of everything that the learner deals out; publishes, saves and counts nothing.

    It goes on until the learner leaves it, and idles from then on until it is told to stop.

    Args:
        embryo: the update rule, which joins the others; it begins with the learner's parameters.
        source: takes what is dealt.
        all_reduce: the connections to the other learners.
    """

    name = "follower"

    def __init__(self, embryo: Embryo, source: FollowerSource, all_reduce: AllReduceGroup) -> None:
        self._embryo = embryo
        self._source = source
        self._all_reduce = all_reduce
        embryo.join(all_reduce)
        self._parameters = np.zeros(embryo.model.parameter_count, np.float32)
        self._deal: Deal | None = None
        self._has_begun = False
        self._winding_down = False
        self._version = 0
        self._updates = 0

    def turn(self) -> bool:
        """Take what was dealt, or make one gradient update."""
        if self._all_reduce.lost is not None:
            if not self._winding_down:
                self._all_reduce.await_news()
            return False
        try:
            return self._go_on()
        except LostPeerError:
            return False

    def wind_down(self) -> None:
        """That the learner leaves is no loss from here on."""
        self._winding_down = True

    def report(self) -> dict[str, Any]:
        """Counters, and what was refused; uses of samples are counted by the learner."""
        return {
            "version": self._version,
            "updates": self._updates,
            "session_consumed": 0,
            **self._source.report(),
        }

    def close(self) -> None:
        """Leave the others."""
        self._all_reduce.close()

    def _go_on(self) -> bool:
        if self._deal is None:
            self._deal = self._source.deal()
            if self._deal is None:
                return False
            self._begin(self._deal)
        batch = self._source.batch()
        if batch is None:
            self._end(self._deal)
            self._deal = None
            return True
        result = self._embryo.update(batch)
        self._updates += 1
        self._source.used(result)
        return True

    def _begin(self, deal: Deal) -> None:
        self._version = deal.version
        if not self._has_begun:
            self._check(deal.version)
            self._has_begun = True
        if deal.synchronise:
            self._all_reduce.broadcast(tensors_in_step(self._embryo))
        self._embryo.schedule(deal.env_steps)

    def _end(self, deal: Deal) -> None:
        if deal.publishes:
            self._version = deal.version + 1
            self._check(self._version)

    def _check(self, version: int) -> None:
        self._embryo.model.write_parameters(self._parameters)
        self._all_reduce.check_same(version, self._parameters)

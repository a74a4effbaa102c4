"""Followers: the learners of a group that make every update together with the one that publishes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tianji_algos.core import Embryo, RolloutEmbryo, UpdateResult
from tianji_cli.config.edges import HEADERS, SHARDS
from tianji_cli.roles.learner.data_source import BatchInbox, PriorityOutbox
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup, LostPeerError
from tianji_cli.roles.learner.parallel.scatter import RoundHeader, tensors_in_step
from tianji_cli.roles.role import Role, rejected_by
from tianji_cli.wire.batches import BatchArrays, BatchLayout
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.reports import FollowerReport, Rejected
from tianji_transports.core import Claim, Transport


class FollowerSource(ABC):
    """Receives headers and their shards from the learner, and makes batches of them."""

    def __init__(self, transport: Transport, job: int) -> None:
        self._transport = transport
        self._job = job
        self._header: RoundHeader | None = None
        self._rejected = Rejected()

    def header(self) -> RoundHeader | None:
        """Hand out the next header, once, when all its shards have come; None until then."""
        if self._header is None:
            self._header = self._next_header()
            if self._header is None:
                return None
        while self._missing(self._header) and (claim := self._transport.probe(SHARDS)) is not None:
            rejection = self._take(claim)
            if rejection is not None:
                self._rejected.add(claim, rejection)
        if self._missing(self._header):
            return None
        header, self._header = self._header, None
        return header

    @abstractmethod
    def batch(self) -> Any | None:
        """Hand out the next batch of the round; None if all are used."""

    @abstractmethod
    def used(self, result: UpdateResult) -> None:
        """Record the result of the update on the last batch."""

    def report(self) -> FollowerReport:
        """Report rejected messages: their number and the reason of the first."""
        return FollowerReport(
            rejected={"shards": self._rejected.reported, "endpoint": rejected_by(self._transport)}
        )

    @abstractmethod
    def _missing(self, header: RoundHeader) -> bool:
        """Whether shards of the round are missing."""

    @abstractmethod
    def _take(self, claim: Claim) -> str | None:
        """Keep a shard; release it and return an error string if it is rejected."""

    def _next_header(self) -> RoundHeader | None:
        while (claim := self._transport.probe(HEADERS)) is not None:
            header = RoundHeader.read(claim.view(), self._job)
            claim.release()
            if isinstance(header, RoundHeader):
                return header
            self._rejected.add(claim, header)
        return None


class ScatteredRollouts(FollowerSource):
    """Source of rollouts: shards are fragments, read in place if the engine lends, and copied otherwise.

    Args:
        actors: numbers of the group's actors.
        shards: fragments of a round.
        lends: the engine lends the fragments until the follower has read them.
    """

    def __init__(
        self,
        transport: Transport,
        job: int,
        embryo: RolloutEmbryo,
        layout: FragmentLayout,
        actors: Sequence[int],
        *,
        shards: int,
        lends: bool,
    ) -> None:
        super().__init__(transport, job)
        self._embryo = embryo
        self._layout = layout
        self._actors = actors
        self._memory = None if lends else np.zeros((shards, layout.nbytes), np.uint8)
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
        """Do nothing, since rollouts ignore results."""

    def _missing(self, header: RoundHeader) -> bool:
        return len(self._fragments) < header.shards

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
        rejection = fragment.refusal(self._job, self._actors)
        if rejection is None:
            self._fragments.append(fragment)
        elif self._claims:
            self._claims.pop().release()
        return rejection

    def _release(self) -> None:
        """Release the fragments: the first minibatch has copied everything that is needed."""
        self._fragments.clear()
        while self._claims:
            self._claims.pop().release()


class ScatteredBatches(FollowerSource):
    """Source of replay batches: a shard is a batch, and its new priorities go back to the learner's rank."""

    def __init__(
        self,
        transport: Transport,
        job: int,
        shard: BatchLayout,
        learner: int,
        *,
        prioritised: bool,
    ) -> None:
        super().__init__(transport, job)
        self._prioritised = prioritised
        self._inbox = BatchInbox(transport, job, shard)
        self._outbox = PriorityOutbox(transport, learner, job, shard.size)
        self._arrays: BatchArrays | None = None
        self._is_used = False

    def batch(self) -> Any | None:
        """Hand out the shard of the last header, once."""
        self._outbox.flush()
        if self._arrays is None or self._is_used:
            self._arrays, self._is_used = None, False
            return None
        return self._arrays.batch

    def used(self, result: UpdateResult) -> None:
        """Send the new priorities as soon as there is room, and release the batch."""
        assert self._arrays is not None
        if self._prioritised and result.priorities is not None:
            self._outbox.send(self._arrays.key, result.priorities)
        self._is_used = True
        self._inbox.release()

    def header(self) -> RoundHeader | None:
        """Send queued priorities, and hand out the next header."""
        self._outbox.flush()
        return super().header()

    def _missing(self, header: RoundHeader) -> bool:  # noqa: ARG002 - a batch is one shard
        return self._arrays is None

    def _take(self, claim: Claim) -> str | None:
        opened = self._inbox.open(claim)
        if isinstance(opened, str):
            return opened
        self._arrays = opened
        return None


class Follower(Role):
    """Updates on its shards of the learner's batches; publishes, saves and counts nothing.

    A follower begins with the learner's parameters, goes on until the learner closes the connections, and
    idles from then on until the root stops it.
    """

    name = "follower"

    def __init__(self, embryo: Embryo, source: FollowerSource, all_reduce: AllReduceGroup) -> None:
        self._embryo = embryo
        self._source = source
        self._all_reduce = all_reduce
        embryo.join(all_reduce)
        self._parameters = np.zeros(embryo.model.parameter_count, np.float32)
        self._header: RoundHeader | None = None
        self._has_begun = False
        self._winding_down = False
        self._version = 0
        self._updates = 0

    def turn(self) -> bool:
        """Receive a round, make one gradient update, or end the round."""
        if self._all_reduce.lost is not None:
            if not self._winding_down:
                self._all_reduce.await_news()
            return False
        try:
            return self._go_on()
        except LostPeerError:
            return False

    def meet(self, place: str) -> None:
        """Connect with the other learners of the group."""
        self._all_reduce.meet(place)

    def wind_down(self) -> None:
        """Accept from here on that the learner leaves."""
        self._winding_down = True

    def report(self) -> FollowerReport:
        """Report counters and rejections; the learner counts the uses of samples."""
        return replace(self._source.report(), version=self._version, updates=self._updates)

    def close(self) -> None:
        """Close the connections to the other learners."""
        self._all_reduce.close()

    def _go_on(self) -> bool:
        if self._header is None:
            self._header = self._source.header()
            if self._header is None:
                return False
            self._begin(self._header)
        batch = self._source.batch()
        if batch is None:
            self._end(self._header)
            self._header = None
            return True
        result = self._embryo.update(batch)
        self._updates += 1
        self._source.used(result)
        return True

    def _begin(self, header: RoundHeader) -> None:
        self._version = header.version
        if not self._has_begun:
            self._check(header.version)
            self._has_begun = True
        if header.synchronise:
            self._all_reduce.broadcast(tensors_in_step(self._embryo))
        self._embryo.schedule(header.env_steps)

    def _end(self, header: RoundHeader) -> None:
        if header.publishes:
            self._version = header.version + 1
            self._check(self._version)

    def _check(self, version: int) -> None:
        self._embryo.model.write_parameters(self._parameters)
        self._all_reduce.check_same(version, self._parameters)

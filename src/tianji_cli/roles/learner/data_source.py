"""Where a learner's batches come from: rollouts, the replay beside it, or one in another process.

Batches of another process come in over a channel, and the new priorities of their samples go back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import Batch, SequenceBatch, UnrollBatch
from tianji_algos.core import RolloutEmbryo, UpdateResult
from tianji_cli.plan.graph import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.buffer.rollout import Rollout, RolloutStore, StoredFragment
from tianji_cli.roles.role import rejected_by
from tianji_cli.wire.batches import BatchArrays, BatchLayout, BatchView, priorities_layout, write_priorities
from tianji_cli.wire.fragment import FragmentStats, stats_layout
from tianji_cli.wire.reports import Distribution, LearnerReport, Rejected
from tianji_transports.core import Claim, Full, Transport


class DataSource(ABC):
    """Hands a learner what it updates on, and tells it of everything that was received."""

    @abstractmethod
    def arrivals(self) -> Sequence[FragmentStats]:
        """Describe what came since the last call, in the order it is to be counted."""

    @abstractmethod
    def batch(self) -> Any | None:
        """Hand out the next batch for the embryo, valid until the next call; None if it is not there yet."""

    def used(self, result: UpdateResult) -> None:  # noqa: B027 - rollouts want to know nothing
        """Note what the update on the last batch came to."""

    @property
    @abstractmethod
    def round_is_done(self) -> bool:
        """Whether it is time to publish the policy."""

    @abstractmethod
    def advance(self, version: int) -> None:
        """Note that this version was published: a new round begins."""

    @abstractmethod
    def discard(self, before: int) -> None:
        """Drop what is under way of versions before this one: the learner is another one now."""

    @abstractmethod
    def wind_down(self) -> None:
        """No more batches are wanted; arrivals are, to the end."""

    @abstractmethod
    def report(self) -> LearnerReport:
        """What the root is told: ``rho`` (uses of each sample in serial training), and what was measured."""


class RolloutSource(DataSource):
    """Takes rollouts from the store beside it.

    What was received is counted when a learner begins with it, in the order of the rollout, so that a run in
    step repeats itself.

    Args:
        learners: of the group, L; every L-th fragment is this one's.

    Attributes:
        rollout: the next one, until its first minibatch is made.
    """

    def __init__(self, embryo: RolloutEmbryo, store: RolloutStore, learners: int = 1) -> None:
        self.rollout: Rollout | None = None
        self._embryo = embryo
        self._store = store
        self._learners = learners
        self._staleness = Distribution()
        self._version = 0
        self._minibatches: Iterator[Any] | None = None
        self._round_is_done = False
        self._winding_down = False

    def arrivals(self) -> Sequence[FragmentStats]:
        """Count the next rollout when the last is used up."""
        if self._winding_down:
            remaining = self._store.remaining()
            arrived = _arrivals(remaining.arrived)
            self._store.release(remaining)
            return arrived
        if self.rollout is not None or self._minibatches is not None:
            return ()
        self.rollout = self._store.rollout()
        return () if self.rollout is None else _arrivals(self.rollout.arrived)

    def batch(self) -> Any | None:
        """Hand out the next minibatch of the rollout."""
        if self._minibatches is None:
            if self.rollout is None:
                return None
            drawn = self.rollout.drawn
            for stored in drawn:
                self._staleness.record(self._version - stored.version, stored.samples)
            own = drawn[:: self._learners]
            self._minibatches = self._embryo.minibatches([stored.fields for stored in own])
        minibatch = next(self._minibatches, None)
        self._release()
        if minibatch is None:
            self._minibatches = None
            self._round_is_done = True
        return minibatch

    @property
    def round_is_done(self) -> bool:
        """All minibatches of a rollout were used."""
        return self._round_is_done

    def advance(self, version: int) -> None:
        """Begin a round with this version."""
        self._round_is_done = False
        self._version = version
        self._store.advance(version)

    def discard(self, before: int) -> None:
        """Drop what is held and what still comes of those versions, and use no rollout of them."""
        self._release()
        self._store.discard(before)

    def wind_down(self) -> None:
        """Give up the rest of the round."""
        self._winding_down = True
        self._minibatches = None
        self._release()

    def report(self) -> LearnerReport:
        """Replay ratio of serial training, and the lag so far."""
        return LearnerReport(rho=self._embryo.uses_per_sample, lag=self._staleness.summary())

    def _release(self) -> None:
        """Once a first minibatch was made, everything needed of the fragments is copied."""
        if self.rollout is not None:
            self._store.release(self.rollout)
            self.rollout = None


def _arrivals(fragments: Sequence[StoredFragment]) -> list[FragmentStats]:
    return [FragmentStats.of(stored.fragment, stored.started_ns) for stored in fragments]


class ReplayClient(ABC):
    """Where batches are drawn."""

    @abstractmethod
    def arrivals(self) -> Sequence[FragmentStats]:
        """Describe what came since the last call."""

    @abstractmethod
    def draw(self) -> BatchView | None:
        """Hand out a batch, valid until the next call; None while there is none, or production is behind."""

    @abstractmethod
    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Take the priorities of the last batch."""

    def discard(self, before: int) -> None:
        """Drop what still comes of versions before this one."""
        raise NotImplementedError(f"{type(self).__name__} is none of a population's")

    def wind_down(self) -> None:  # noqa: B027 - only a remote one has begun something that has to end
        """No more batches are wanted."""

    def report(self) -> LearnerReport:
        """What the root is told of it."""
        return LearnerReport()


class ReplaySource(DataSource):
    """Hands out batches and measures how old their samples are.

    Args:
        client: where they are drawn.
        rho: uses of each sample in serial training.
        publish_every: updates between two published policies.
        prioritised: samples have priorities, which updates change.
        age_bin: width of the bins that ages are counted in, in env steps.
    """

    def __init__(
        self,
        client: ReplayClient,
        *,
        rho: float,
        publish_every: int,
        prioritised: bool,
        age_bin: int,
    ) -> None:
        self._client = client
        self._rho = rho
        self._publish_every = publish_every
        self._prioritised = prioritised
        self._lags = Distribution()
        self._ages = Distribution(age_bin)
        self._version = 0
        self._updates_in_round = 0

    def arrivals(self) -> Sequence[FragmentStats]:
        """Describe what came since the last call."""
        return self._client.arrivals()

    def batch(self) -> Batch | SequenceBatch | UnrollBatch | None:
        """Hand out the next batch, unless the policy wants to be published first or production is behind."""
        if self.round_is_done:
            return None
        arrays = self._client.draw()
        if arrays is None:
            return None
        lags = self._version - arrays.version
        # A replay that was saved after the learner's last checkpoint holds samples of versions yet to come.
        self._lags.record_all(np.maximum(lags, 0, out=lags))
        self._ages.record_all(arrays.age)
        return arrays.batch

    def used(self, result: UpdateResult) -> None:
        """Pass on the new priorities."""
        self._updates_in_round += 1
        if self._prioritised and result.priorities is not None:
            self._client.give_priorities(result.priorities)

    @property
    def round_is_done(self) -> bool:
        """As many updates were made as there are to be between two versions."""
        return self._updates_in_round >= self._publish_every

    def advance(self, version: int) -> None:
        """Begin to count updates anew."""
        self._updates_in_round = 0
        self._version = version

    def discard(self, before: int) -> None:
        """Drop what still comes of those versions."""
        self._client.discard(before)

    def wind_down(self) -> None:
        """No more batches are wanted."""
        self._client.wind_down()

    def report(self) -> LearnerReport:
        """Replay ratio as it is to be, and how old samples are when they are used."""
        lag, age = self._lags.summary(), self._ages.summary()
        return replace(self._client.report(), rho=self._rho, lag=lag, age=age)


class LocalReplayClient(ReplayClient):
    """Draws into one batch's memory, over and over."""

    def __init__(self, store: ReplayStore, arrays: BatchArrays) -> None:
        self._store = store
        self._arrays = arrays

    def arrivals(self) -> Sequence[FragmentStats]:
        """Describe what the buffer received since the last call."""
        return self._store.arrivals()

    def draw(self) -> BatchArrays | None:
        """Draw a batch if the balance allows it."""
        if not self._store.may_draw(self._arrays.layout.most_steps):
            return None
        self._store.draw(self._arrays)
        return self._arrays

    def discard(self, before: int) -> None:
        """Drop what still comes of versions before this one."""
        self._store.discard(before)

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Let them take effect at once."""
        self._store.replay.update_priorities(self._arrays.key, priorities)


class BatchInbox:
    """Opens batches one at a time: read where they are if the engine lends, copied otherwise."""

    def __init__(self, transport: Transport, job: int, batches: BatchLayout) -> None:
        self._job = job
        self._batches = batches
        self._own = None if transport.capabilities.lends else BatchArrays(batches)
        self._claim: Claim | None = None

    def open(self, claim: Claim) -> BatchArrays | str:
        """Read a batch, valid until ``release``; an error string if it is none, which is given back."""
        if claim.nbytes != self._batches.nbytes:
            claim.release()
            return f"it has {claim.nbytes} bytes, not {self._batches.nbytes}"
        if self._own is None:
            self._claim, arrays = claim, BatchArrays(self._batches, claim.view())
        else:
            arrays = self._own
            claim.take(arrays.memory)
        if (rejection := arrays.rejection(self._job)) is not None:
            self.release()
            return rejection
        return arrays

    def release(self) -> None:
        """Give the memory of the last batch back, if it is lent."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None


class PriorityOutbox:
    """Sends priorities to the rank that has the replay as soon as there is room, and never waits."""

    def __init__(self, transport: Transport, dest: int, job: int, size: int) -> None:
        self._transport = transport
        self._dest = dest
        self._job = job
        self._layout = priorities_layout(size)
        self._unsent: deque[bytearray] = deque()

    def send(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.float32]) -> None:
        """Send the priorities of one batch's samples."""
        message = bytearray(self._layout.nbytes)
        write_priorities(self._layout, memoryview(message), self._job, keys, priorities)
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


NO_SAMPLE: Final = -1
"""Key of no sample."""


class RemoteReplayClient(ReplayClient):
    """Claims batches that the buffer assembles; the next one is on its way while the learner updates."""

    def __init__(
        self,
        transport: Transport,
        buffer: int,
        job: int,
        batches: BatchLayout,
        fragment_steps: int,
        metrics: int = 0,
    ) -> None:
        self._transport = transport
        self._job = job
        self._stats = stats_layout(fragment_steps, metrics)
        self._inbox = BatchInbox(transport, job, batches)
        self._outbox = PriorityOutbox(transport, buffer, job, batches.size)
        self._keys: npt.NDArray[np.int64] = np.zeros(batches.size, np.int64)
        self._winding_down = False
        self._rejected = Rejected()

    def arrivals(self) -> Sequence[FragmentStats]:
        """Hear what the buffer received."""
        if self._winding_down:
            while (claim := self._transport.probe(BATCHES)) is not None:
                claim.release()
        arrived = []
        while (claim := self._transport.probe(ARRIVALS)) is not None:
            stats = FragmentStats.read(self._stats, claim.view(), self._job)
            claim.release()
            if isinstance(stats, str):
                self._rejected.add(claim, stats)
                continue
            arrived.append(stats)
        return arrived

    def draw(self) -> BatchArrays | None:
        """Claim the next batch, and read it where it is if the engine lends."""
        self._outbox.flush()
        self._inbox.release()
        while (claim := self._transport.probe(BATCHES)) is not None:
            arrays = self._inbox.open(claim)
            if isinstance(arrays, BatchArrays):
                np.copyto(self._keys, arrays.key)
                return arrays
            self._rejected.add(claim, arrays)
            # In step, the buffer waits for an answer to every batch.
            self._keys[:] = NO_SAMPLE
            self.give_priorities(np.zeros(len(self._keys), np.float32))
        return None

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Send them as soon as there is room; the learner does not wait for it."""
        self._outbox.send(self._keys, priorities)

    def wind_down(self) -> None:
        """Give the last batch back, and then those that were on their way: their sender waits for it."""
        self._winding_down = True
        self._inbox.release()

    def report(self) -> LearnerReport:
        """Messages that were refused: how many, and why the first."""
        return LearnerReport(
            rejected={"batches": self._rejected.reported, "endpoint": rejected_by(self._transport)}
        )

"""Data sources of a learner: rollouts, the replay beside it, or a replay in another process.

Batches of another process arrive over a channel, and the new priorities of their samples go back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tianji_algos.batch import Batch, SequenceBatch, UnrollBatch
from tianji_algos.core import RolloutEmbryo, UpdateResult
from tianji_cli.config.edges import ARRIVALS, BATCHES, PRIORITIES
from tianji_cli.roles.buffer.buffer import Buffer
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.buffer.rollout import Rollout, RolloutStore, StoredFragment
from tianji_cli.roles.role import rejected_by
from tianji_cli.wire.batches import BatchArrays, BatchLayout, BatchView, priorities_layout, write_priorities
from tianji_cli.wire.fragment import FragmentStats, stats_layout
from tianji_cli.wire.reports import Distribution, LearnerReport, Rejected
from tianji_transports.core import ANY, Claim, Full, Transport
from tianji_transports.errors import PeerLostError


class DataSource(ABC):
    """Hands out a learner's batches, and the stats of all received fragments.

    Attributes:
        round_was_refused: the update rule refused the data of this round, which is over without an update.
    """

    round_was_refused = False

    @abstractmethod
    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of fragments since the last call, in the order of counting."""

    @abstractmethod
    def batch(self) -> Any | None:
        """Hand out the embryo's next batch, valid until the next call; None if there is none yet."""

    def used(self, result: UpdateResult) -> None:  # noqa: B027 - rollouts want to know nothing
        """Record the result of the update on the last batch."""

    @property
    @abstractmethod
    def round_is_done(self) -> bool:
        """Whether it is time to publish the policy."""

    @abstractmethod
    def advance(self, version: int) -> None:
        """Begin a new round after this version was published."""

    @abstractmethod
    def discard(self, before: int) -> None:
        """Drop data of versions before this one: the learner has taken over another member."""

    @abstractmethod
    def wind_down(self) -> None:
        """Stop handing out batches; arrivals go on to the end."""

    @abstractmethod
    def report(self) -> LearnerReport:
        """Report ``rho`` (uses of each sample in serial training) and the measurements."""


class RolloutSource(DataSource):
    """Takes rollouts from the store beside it.

    The learner counts fragments when it begins with their rollout, in the rollout's order, so that a run in
    step is reproducible.

    Args:
        learners: L, the learners of the group; every L-th fragment belongs to this one.
        intake: receives what buffers in other processes send on to the store; None if the store's buffer
            takes turns with the learner.

    Attributes:
        rollout: the next rollout, until its first minibatch is made.
    """

    def __init__(
        self, embryo: RolloutEmbryo, store: RolloutStore, learners: int = 1, intake: Buffer | None = None
    ) -> None:
        self.rollout: Rollout | None = None
        self._intake = intake
        self._embryo = embryo
        self._store = store
        self._learners = learners
        self._staleness = Distribution()
        self._refused: int | None = None
        self._version = 0
        self._minibatches: Iterator[Any] | None = None
        self._round_is_done = False
        self._winding_down = False

    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of the next rollout when the last is used up."""
        if self._intake is not None:
            self._intake.turn()
        if self._winding_down:
            remaining = self._store.remaining()
            arrived = _arrivals(remaining.arrived)
            self._store.release(remaining)
            return arrived
        if self.rollout is not None or self._minibatches is not None:
            return ()
        self.rollout = self._store.rollout()
        if self.rollout is None:
            return ()
        arrived, drawn = _arrivals(self.rollout.arrived), self.rollout.drawn
        if not self._embryo.ready([stored.fields for stored in drawn]):
            self._refused = (self._refused or 0) + sum(stored.samples for stored in drawn)
            self._release()
            if not self._round_is_done:  # Actors in step wait for another version: the round ends with one.
                self.round_was_refused = self._round_is_done = True
        return arrived

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
        """Whether all minibatches of a rollout were used."""
        return self._round_is_done

    def advance(self, version: int) -> None:
        """Begin a round with this version."""
        self.round_was_refused = self._round_is_done = False
        self._version = version
        self._store.advance(version)

    def discard(self, before: int) -> None:
        """Drop the present rollout, and all held and later fragments of those versions."""
        self._release()
        self._store.discard(before)

    def wind_down(self) -> None:
        """Give up the rest of the round."""
        if self._intake is not None:
            self._intake.wind_down()
        self._winding_down = True
        self._minibatches = None
        self._release()

    def report(self) -> LearnerReport:
        """Report the replay ratio of serial training, the policy lag so far, and messages rejected here."""
        rejected = {} if self._intake is None else self._intake.report().rejected
        rho, lag = self._embryo.uses_per_sample, self._staleness.summary()
        return LearnerReport(rho=rho, lag=lag, refused=self._refused, rejected=rejected)

    def _release(self) -> None:
        """Release the rollout: the first minibatch has copied everything that is needed."""
        if self.rollout is not None:
            self._store.release(self.rollout)
            self.rollout = None


def _arrivals(fragments: Sequence[StoredFragment]) -> list[FragmentStats]:
    return [FragmentStats.of(stored.fragment, stored.started_ns) for stored in fragments]


class ReplayClient(ABC):
    """A learner's access to a replay."""

    @abstractmethod
    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of fragments since the last call."""

    @abstractmethod
    def draw(self) -> BatchView | None:
        """Hand out a batch, valid until the next call; None if there is none, or production is behind."""

    @abstractmethod
    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Set the priorities of the last batch."""

    def discard(self, before: int) -> None:
        """Drop later fragments of versions before this one."""
        raise NotImplementedError(f"{type(self).__name__} is none of a population's")

    def wind_down(self) -> None:  # noqa: B027 - only a remote one has begun something that has to end
        """Stop asking for batches."""

    def report(self) -> LearnerReport:
        """Return the client's part of the learner's report."""
        return LearnerReport()


class ReplaySource(DataSource):
    """Hands out batches, and measures the ages of their samples.

    Args:
        client: draws the batches.
        rho: uses of each sample in serial training.
        publish_every: updates between two published policies.
        prioritised: samples have priorities, which updates change.
        age_bin: width of the bins of ages, in env steps.
        own: samples of a batch that actors made, the first ones: only these have an age.
    """

    def __init__(
        self,
        client: ReplayClient,
        *,
        rho: float,
        publish_every: int,
        prioritised: bool,
        age_bin: int,
        own: int | None = None,
    ) -> None:
        self._client = client
        self._own = own
        self._rho = rho
        self._publish_every = publish_every
        self._prioritised = prioritised
        self._lags = Distribution()
        self._ages = Distribution(age_bin)
        self._version = 0
        self._updates_in_round = 0

    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of fragments since the last call."""
        return self._client.arrivals()

    def batch(self) -> Batch | SequenceBatch | UnrollBatch | None:
        """Hand out the next batch; None if the policy has to be published first, or production is behind."""
        if self.round_is_done:
            return None
        arrays = self._client.draw()
        if arrays is None:
            return None
        lags = self._version - arrays.version[: self._own]
        # A replay that was saved after the learner's last checkpoint holds samples of later versions.
        self._lags.record_all(np.maximum(lags, 0, out=lags))
        self._ages.record_all(arrays.age[: self._own])
        return arrays.batch

    def used(self, result: UpdateResult) -> None:
        """Pass on the new priorities."""
        self._updates_in_round += 1
        if self._prioritised and result.priorities is not None:
            self._client.give_priorities(result.priorities)

    @property
    def round_is_done(self) -> bool:
        """Whether ``publish_every`` updates were made since the last version."""
        return self._updates_in_round >= self._publish_every

    def advance(self, version: int) -> None:
        """Begin to count updates anew."""
        self._updates_in_round = 0
        self._version = version

    def discard(self, before: int) -> None:
        """Drop later fragments of those versions."""
        self._client.discard(before)

    def wind_down(self) -> None:
        """Stop asking for batches."""
        self._client.wind_down()

    def report(self) -> LearnerReport:
        """Report the wanted replay ratio, and the ages of samples when they are used."""
        lag, age = self._lags.summary(), self._ages.summary()
        return replace(self._client.report(), rho=self._rho, lag=lag, age=age)


class LocalReplayClient(ReplayClient):
    """Draws from the replay beside the learner, always into the same memory."""

    def __init__(self, store: ReplayStore, arrays: BatchArrays) -> None:
        self._store = store
        self._arrays = arrays

    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of fragments that the buffer received since the last call."""
        return self._store.arrivals()

    def draw(self) -> BatchArrays | None:
        """Draw a batch if the rate limiter allows it."""
        if not self._store.may_draw(self._arrays.layout.most_steps):
            return None
        self._store.draw(self._arrays)
        return self._arrays

    def discard(self, before: int) -> None:
        """Drop later fragments of versions before this one."""
        self._store.discard(before)

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Set the priorities of the last batch at once."""
        self._store.update_priorities(self._arrays.key, priorities)


class BatchInbox:
    """Opens batches one at a time: reads them in place if the engine lends, and copies them otherwise."""

    def __init__(self, transport: Transport, job: int, batches: BatchLayout) -> None:
        self._job = job
        self._batches = batches
        self._own = None if transport.capabilities.lends else BatchArrays(batches)
        self._claim: Claim | None = None

    def open(self, claim: Claim) -> BatchArrays | str:
        """Read a batch, valid until ``release``; release an invalid one and return an error string."""
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
        """Return the memory of the last batch, if it is lent."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None


class PriorityOutbox:
    """Sends priorities to the replay's rank as soon as there is room, and never waits."""

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
        """Send the queued priorities that there is room for; those of a lost replay have no use."""
        while self._unsent:
            try:
                loan = self._transport.loan(self._dest, PRIORITIES, len(self._unsent[0]))
            except PeerLostError:
                self._unsent.clear()
                return
            if isinstance(loan, Full):
                return
            loan.memory[:] = self._unsent.popleft()
            self._transport.push(loan)


NO_SAMPLE: Final = -1
"""Key that belongs to no sample."""


class RemoteReplayClient(ReplayClient):
    """Claims batches that buffers assemble; the next one arrives while the learner updates.

    Of several buffers with a batch the next is the one of which least was used for what it received. Each
    holds the balance by itself, so that no buffer's samples are used more than another's.

    Args:
        buffers: env steps that each buffer receives before its first batch, by rank. The learner draws none
            before it knows of all of them.
    """

    def __init__(
        self,
        transport: Transport,
        buffers: Mapping[int, int],
        job: int,
        batches: BatchLayout,
        fragment_steps: int,
        metrics: int = 0,
    ) -> None:
        self._transport = transport
        self._job = job
        self._warmups = dict(buffers)
        self._stats = stats_layout(fragment_steps, metrics)
        self._inbox = BatchInbox(transport, job, batches)
        self._outboxes = {rank: PriorityOutbox(transport, rank, job, batches.size) for rank in buffers}
        self._received = dict.fromkeys(buffers, 0)
        self._drawn = dict.fromkeys(buffers, 0)
        self._source = next(iter(buffers))
        self._keys: npt.NDArray[np.int64] = np.zeros(batches.size, np.int64)
        self._winding_down = False
        self._rejected = Rejected()

    def arrivals(self) -> Sequence[FragmentStats]:
        """Receive the stats of the fragments that the buffers received."""
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
            self._received[claim.source] += stats.samples
            arrived.append(stats)
        return arrived

    def draw(self) -> BatchArrays | None:
        """Claim the next batch, and read it in place if the engine lends."""
        for outbox in self._outboxes.values():
            outbox.flush()
        self._inbox.release()
        if any(self._received[rank] < warmup for rank, warmup in self._warmups.items()):
            return None
        self._warmups.clear()
        for rank in sorted(self._drawn, key=lambda rank: self._drawn[rank] / max(1, self._received[rank])):
            if (arrays := self._draw_from(rank)) is not None:
                return arrays
        return None

    def _draw_from(self, rank: int) -> BatchArrays | None:
        # A single buffer's batches may come by way of a role, which is their sender here.
        sender = rank if len(self._drawn) > 1 else ANY
        while (claim := self._transport.probe(BATCHES, sender)) is not None:
            self._source = rank
            arrays = self._inbox.open(claim)
            if isinstance(arrays, BatchArrays):
                self._drawn[rank] += 1
                np.copyto(self._keys, arrays.key)
                return arrays
            self._rejected.add(claim, arrays)
            # In step, the buffer waits for an answer to every batch.
            self._keys[:] = NO_SAMPLE
            self.give_priorities(np.zeros(len(self._keys), np.float32))
        return None

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Send the priorities to the buffer of the last batch as soon as there is room, without waiting."""
        self._outboxes[self._source].send(self._keys, priorities)

    def wind_down(self) -> None:
        """Release the last batch, and later all that still arrive, since their sender waits for that."""
        self._winding_down = True
        self._inbox.release()

    def report(self) -> LearnerReport:
        """Report rejected messages: their number and the reason of the first."""
        return LearnerReport(
            rejected={"batches": self._rejected.reported, "endpoint": rejected_by(self._transport)}
        )

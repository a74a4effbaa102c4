"""Scattering: a learner sends each round of updates to its followers; all begin and end it together.

The learner sends a header first, then each follower's shards. It scatters a round to all followers or to
none: it gets memory for the whole round before it pushes the first message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from tianji_algos.core import Embryo
from tianji_cli.config.edges import HEADERS, PRIORITIES, SHARDS
from tianji_cli.roles.buffer.replay.store import ReplayStore
from tianji_cli.roles.learner.data_source import ReplayClient, RolloutSource
from tianji_cli.roles.learner.parallel.all_reduce import AllReduceGroup, LostPeerError
from tianji_cli.wire.batches import BatchArrays, BatchLayout, BatchView, priorities_layout, read_priorities
from tianji_cli.wire.fragment import FragmentStats
from tianji_cli.wire.records import Record, RecordLayout
from tianji_cli.wire.reports import LearnerReport, Rejected
from tianji_transports.core import Full, Loan, Transport

LAYOUT: Final = RecordLayout(
    0x544A444C,  # "TJDL"
    (
        ("shards", "<u8"),
        ("env_steps", "<u8"),
        ("version", "<u8"),
        ("synchronise", "<u4"),
        ("publishes", "<u4"),
    ),
)
"""Layout of the header, which goes before the shards of a round."""


@dataclass(frozen=True, slots=True)
class RoundHeader:
    """Header of a round of updates that learner and followers make together.

    Attributes:
        env_steps: env steps so far, for schedules over training.
        version: version of the last published policy.
        shards: messages on ``SHARDS`` that belong to the round.
        synchronise: the learner's parameters were replaced since the last update: all take them over first.
        publishes: the learner publishes the policy after the round.
    """

    env_steps: int
    version: int
    shards: int
    synchronise: bool
    publishes: bool

    def write(self, memory: memoryview, job: int) -> None:
        """Write the header as a record."""
        record = Record(LAYOUT, memory)
        record.stamp(job, self.shards, self.env_steps, self.version, self.synchronise, self.publishes)

    @classmethod
    def read(cls, memory: memoryview, job: int) -> RoundHeader | str:
        """Read a header; return an error string if it is invalid or of another job."""
        record = LAYOUT.read(memory, job)
        if isinstance(record, str):
            return record
        header = record.header
        env_steps, version, shards = (int(header[name]) for name in ("env_steps", "version", "shards"))
        return cls(env_steps, version, shards, bool(header["synchronise"]), bool(header["publishes"]))


class Scatter:
    """The learner's end of the channels to its followers.

    Args:
        followers: ranks of the followers, in the order of their numbers.
        shards: messages of a round to each follower; the channel's window is at most one more.
        nbytes: size of each message.

    Attributes:
        learners: number of learners, this one included.
    """

    def __init__(
        self, transport: Transport, followers: Sequence[int], job: int, shards: int, nbytes: int
    ) -> None:
        self.learners = len(followers) + 1
        self.job = job
        self.shards = shards
        self._transport = transport
        self._nbytes = nbytes
        self._followers = tuple(followers)
        self._headers: list[Loan] = []
        self._shards: list[list[Loan]] = [[] for _ in followers]

    def loans(self) -> list[list[memoryview]] | None:
        """Get memory for the shards of each follower; None while one has no room.

        The loans so far stay until the next call.
        """
        for rank, shards in zip(self._followers, self._shards, strict=True):
            while len(shards) < self.shards:
                loan = self._transport.loan(rank, SHARDS, self._nbytes)
                if isinstance(loan, Full):
                    return None
                shards.append(loan)
        for rank in self._followers[len(self._headers) :]:
            loan = self._transport.loan(rank, HEADERS, LAYOUT.nbytes)
            if isinstance(loan, Full):
                return None
            self._headers.append(loan)
        return [[loan.memory for loan in shards] for shards in self._shards]

    def push(self, header: RoundHeader) -> None:
        """Send the header and the filled loans."""
        for first, shards in zip(self._headers, self._shards, strict=True):
            header.write(first.memory, self.job)
            self._transport.push(first)
            for loan in shards:
                self._transport.push(loan)
            shards.clear()
        self._headers.clear()

    @property
    def is_claimed(self) -> bool:
        """Whether all pushed messages arrive without further calls to this endpoint.

        Some engines send only during calls. A learner that waited for its followers' gradients meanwhile
        would wait for ever, so it sleeps in the transport until the followers have claimed the shards.
        """
        if self._transport.capabilities.progresses:
            return True
        for rank, shards in zip(self._followers, self._shards, strict=True):
            while self._transport.unconfirmed(rank, SHARDS):
                # A claim ends a sleep only after a refused loan; a granted loan serves the next round.
                loan = self._transport.loan(rank, SHARDS, self._nbytes)
                if isinstance(loan, Full):
                    return False
                if len(shards) < self.shards:
                    shards.append(loan)
                else:
                    loan.abandon()
        return True

    def abandon(self) -> None:
        """Abandon the loans of a round that will not be sent."""
        for loans in (self._headers, *self._shards):
            while loans:
                loans.pop().abandon()


class RolloutRounds:
    """Scatters rollouts: the followers get every fragment that is not the learner's."""

    def __init__(self, scatter: Scatter, source: RolloutSource) -> None:
        self.scatter = scatter
        self._source = source
        self._version = -1

    def send(self, env_steps: int, version: int, *, synchronise: bool) -> bool:
        """Copy and send the followers' fragments of the next rollout."""
        rollout, scatter = self._source.rollout, self.scatter
        if rollout is None or (loans := scatter.loans()) is None:
            return False
        for follower, shards in enumerate(loans, start=1):
            for memory, stored in zip(shards, rollout.drawn[follower :: scatter.learners], strict=True):
                memory[:] = stored.fragment.memory
        scatter.push(RoundHeader(env_steps, version, scatter.shards, synchronise, publishes=True))
        self._version = version
        return True

    def last_until(self, version: int) -> bool:
        """Whether the last rollout was sent at this version: it lasts until the next one."""
        return self._version == version


class ScatteringReplayClient(ReplayClient):
    """Draws whole batches, as one learner would, so that samples and importance weights are the same.

    A round is a batch, of which each learner gets the same number of samples; with tables, every L-th one, so
    that all have their share of each table.

    Args:
        batches: layout of a whole batch.
        shard: layout of a learner's part of a batch.
        scatter: the channels to the followers.
        publish_every: updates between two published policies.
        prioritised: followers send new priorities of their samples.
        in_step: wait for the priorities of all followers before drawing the next batch.
    """

    def __init__(
        self,
        transport: Transport,
        store: ReplayStore,
        batches: BatchLayout,
        shard: BatchLayout,
        scatter: Scatter,
        *,
        publish_every: int,
        prioritised: bool,
        in_step: bool,
    ) -> None:
        self.scatter = scatter
        self._transport = transport
        self._store = store
        self._publish_every = publish_every
        self._prioritised = prioritised
        self._in_step = in_step
        self._whole = BatchArrays(batches)
        self._priorities = priorities_layout(shard.size)
        self._shard = shard
        places = [
            slice(number, None, scatter.learners)
            if store.tables
            else slice(number * shard.size, (number + 1) * shard.size)
            for number in range(scatter.learners)
        ]
        self._rows = [{name: rows[place] for name, rows in self._whole.arrays.items()} for place in places]
        self._own = BatchView(shard, self._rows[0])
        self._is_drawn = False
        self._rounds = 0
        self._unanswered = 0
        self._rejected = Rejected()

    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of fragments that the buffer received since the last call."""
        return self._store.arrivals()

    def send(self, env_steps: int, version: int, *, synchronise: bool) -> bool:
        """Draw a batch and scatter it, if the rate limiter allows it and every follower has room."""
        if self._prioritised:
            self._take_priorities()
            if self._in_step and self._unanswered:
                return False
        if not self._store.may_draw(self._whole.layout.most_steps) or (loans := self.scatter.loans()) is None:
            return False
        self._store.draw(self._whole)
        for (memory,), rows in zip(loans, self._rows[1:], strict=True):
            shard = BatchArrays(self._shard, memory)
            shard.stamp(self.scatter.job)
            for name, array in shard.arrays.items():
                array[...] = rows[name]
        self._rounds += 1
        publishes = self._rounds % self._publish_every == 0
        self.scatter.push(RoundHeader(env_steps, version, 1, synchronise, publishes))
        self._is_drawn = True
        self._unanswered += len(loans)
        return True

    def last_until(self, version: int) -> bool:  # noqa: ARG002
        """Return False, since a batch lasts for one update."""
        return False

    def draw(self) -> BatchView | None:
        """Hand out this learner's shard of the last batch, once."""
        if not self._is_drawn:
            return None
        self._is_drawn = False
        return self._own

    def give_priorities(self, priorities: npt.NDArray[np.float32]) -> None:
        """Set the priorities of this learner's shard at once."""
        self._store.update_priorities(self._own.key, priorities)

    def report(self) -> LearnerReport:
        """Report rejected messages: their number and the reason of the first."""
        return LearnerReport(rejected={"priorities": self._rejected.reported})

    def _take_priorities(self) -> None:
        while (claim := self._transport.probe(PRIORITIES)) is not None:
            update = read_priorities(self._priorities, claim.view(), self.scatter.job)
            if isinstance(update, str):
                self._rejected.add(claim, update)
            else:
                self._store.update_priorities(*update)
            claim.release()
            # An invalid answer counts, too: no other will come.
            self._unanswered -= 1


Rounds = RolloutRounds | ScatteringReplayClient
"""Scatters the data of updates, a round at a time."""


class Leader:
    """Begins each update with the followers, and compares parameters with theirs once a version.

    Args:
        meeting: place where the learners meet.

    Attributes:
        synchronise: the next round begins with the learner's parameters, which an average has replaced.
    """

    def __init__(self, embryo: Embryo, rounds: Rounds, all_reduce: AllReduceGroup, meeting: str = "") -> None:
        self.synchronise = False
        self.meeting = meeting
        self._embryo = embryo
        self._rounds = rounds
        self._all_reduce = all_reduce
        self._sent: int | None = None  # Env steps of the round that was sent and has not begun.
        self._checked: int | None = None
        self._parameters = np.empty(embryo.model.parameter_count, np.float32)
        embryo.join(all_reduce)

    def meet(self, place: str) -> None:
        """Connect with the followers."""
        self._all_reduce.meet(place)

    def await_news(self) -> None:
        """See ``AllReduceGroup.await_news``."""
        self._all_reduce.await_news()

    def begin_update(self, env_steps: int, version: int) -> bool:
        """Begin the next round with the followers, unless one is under way; return False if it has to wait.

        Raises:
            LostPeerError: a follower is gone.
            DivergedLearnersError: a follower begins with other parameters.
        """
        if self._all_reduce.lost is not None:
            return False
        if self._sent is None:
            if self._rounds.last_until(version):
                return True
            if not self._rounds.send(env_steps, version, synchronise=self.synchronise):
                return False
            self._sent = env_steps
        if not self._rounds.scatter.is_claimed:
            return False
        if self._checked is None:
            self._check(version)
        if self.synchronise:
            self.synchronise = False
            self._all_reduce.broadcast(tensors_in_step(self._embryo))
        self._embryo.schedule(self._sent)
        self._sent = None
        return True

    def agrees(self, version: int) -> bool:
        """Compare parameters with the followers, once a version; return False if a follower is gone.

        Raises:
            DivergedLearnersError: a follower has other parameters.
        """
        if self._checked == version:
            return True
        if self._all_reduce.lost is not None:
            return False
        try:
            self._check(version)
        except LostPeerError:
            return False
        return True

    def wind_down(self) -> None:
        """Abandon the loans of the next round, and close the connections to the followers."""
        self._rounds.scatter.abandon()
        self.close()

    def close(self) -> None:
        """Close the connections to the followers."""
        self._all_reduce.close()

    def _check(self, version: int) -> None:
        self._embryo.model.write_parameters(self._parameters)
        self._all_reduce.check_same(version, self._parameters)
        self._checked = version


def tensors_in_step(embryo: Embryo) -> list[torch.Tensor]:
    """List the tensors that the learners of a group share, and that an average may replace in place."""
    return [*embryo.model.parameters(), *embryo.model.buffers(), *embryo.averaged_state()]

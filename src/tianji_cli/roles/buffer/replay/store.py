"""The replay as a buffer's store: receives fragments while the rate limiter allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.replay import Replay
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.wire.batches import BatchArrays
from tianji_cli.wire.fragment import Fragment, FragmentLayout, FragmentStats
from tianji_cli.wire.reports import BufferReport, ReplayFill
from tianji_transports.core import Claim

KEYS_OF_A_TABLE: Final = 1 << 48
"""Keys of samples of the n-th table begin at n times this number, so that a key alone says whose it is."""


class ReplayStore:
    """Receives fragments into a replay, if validator and sampler admit them and the rate limiter has room.

    Args:
        actors: numbers of the actors, and of the sources beside them, by the rank that sends their fragments.
        tables: samples of the sources. What comes into them, and is drawn from them, counts neither as
            experience nor in the replay ratio.
        sources: place in ``tables`` of each source, by its number.
        rows: samples of a batch from the replay, and from each of the tables.
    """

    undelivered = 0

    def __init__(
        self,
        layout: FragmentLayout,
        job: int,
        actors: Mapping[int, Sequence[int]],
        *,
        replay: Replay,
        limiter: RateLimiter,
        tables: Sequence[Replay] = (),
        sources: Mapping[int, int] = MappingProxyType({}),
        rows: Sequence[int] = (1,),
    ) -> None:
        self.tables = tables
        self._sources = sources
        self._ends = list(accumulate(rows, initial=0))
        self.validator = FragmentValidator(layout, job, actors)
        self.replay = replay
        self.limiter = limiter
        self._layout = layout
        self.job = job
        self.fragment_steps = layout.steps * layout.num_envs
        self._oldest = 0
        self._winding_down = False
        self._final_ratio: float | None = None
        self._arrivals: list[FragmentStats] = []

    @property
    def full(self) -> bool:
        """Whether further fragments must stay with their senders, because production is ahead.

        There is no back-pressure while the replay or a table has no sample, such as before the first sequence
        is complete.
        """
        ahead = self._is_drawable and not self.limiter.may_receive(self.fragment_steps)
        return ahead and not self._winding_down

    def admit(self, claim: Claim) -> None:
        """Receive a fragment into the replay; a rejected one leaves no trace there."""
        if not self.validator.has_its_size(claim):
            return
        memory = self.replay.free
        claim.take(memory)
        fragment = Fragment(self._layout, memory)
        reception = self.validator.admit(claim, fragment)
        if reception is None:
            return
        place = self._sources.get(int(fragment.header["actor"]))
        if place is not None:
            table = self.tables[place]
            if table.sampler.admits(fragment):
                table.free[:] = memory
                table.accept()
            return
        samples = int(fragment.header["samples"])
        if int(fragment.header["version"]) < self._oldest or not self.replay.sampler.admits(fragment):
            reception.dropped += samples
            return
        reception.samples += samples
        self.limiter.received += samples
        self._arrivals.append(FragmentStats.of(fragment))
        self.replay.accept()

    def discard(self, before: int) -> None:
        """Drop later fragments of versions before this one; the contents of the replay stay."""
        self._oldest = before

    def wind_down(self) -> None:
        """Receive all fragments that still come; the reported ratio no longer changes."""
        self._final_ratio = self.limiter.actual
        self._winding_down = True

    def arrivals(self) -> Sequence[FragmentStats]:
        """Return the stats of the fragments since the last call."""
        arrived, self._arrivals = self._arrivals, []
        return arrived

    def may_draw(self, most_steps: int) -> bool:
        """Whether the buffer may draw a batch of up to so many env steps now."""
        own = most_steps * self._ends[1] // self._ends[-1]
        return self._is_drawable and self.limiter.may_consume(own)

    @property
    def _is_drawable(self) -> bool:
        """Whether the replay and each table have a sample."""
        if not self.tables:
            return self.replay.drawable
        return self.replay.drawable and all(table.drawable for table in self.tables)

    def draw(self, into: BatchArrays) -> None:
        """Draw a batch and count it; ``may_draw`` has returned True."""
        into.stamp(self.job)
        if not self.tables:
            self.replay.sample(into)
            self.limiter.consumed += into.steps
            return
        own, *others = (into.part(*ends) for ends in pairwise(self._ends))
        self.replay.sample(own)
        self.limiter.consumed += own.steps
        for number, (table, part) in enumerate(zip(self.tables, others, strict=True), start=1):
            # By these steps the importance exponent rises, in all of a batch alike.
            table.ring.env_steps = self.replay.ring.env_steps
            table.sample(part)
            part.key += number * KEYS_OF_A_TABLE

    def update_priorities(self, keys: npt.NDArray[np.int64], priorities: npt.NDArray[np.float32]) -> None:
        """Give samples new priorities; see ``Replay.update_priorities``."""
        if not self.tables:
            self.replay.update_priorities(keys, priorities)
            return
        numbers, keys = np.divmod(keys, KEYS_OF_A_TABLE)
        for number, replay in enumerate((self.replay, *self.tables)):
            of_table = numbers == number
            replay.update_priorities(keys[of_table], priorities[of_table])

    def report(self) -> BufferReport:
        """Report the actual replay ratio, the fill of the replay and the uses of its samples."""
        replay = self.replay
        return BufferReport(
            ratio=self._final_ratio if self._winding_down else self.limiter.actual,
            drawn=self.limiter.consumed,
            replay=ReplayFill(replay.size, replay.ring.live * replay.ring.steps_each, replay.nbytes),
            uses=replay.uses.summary(),
            stale_priorities=replay.stale_updates,
            steps_given_up=replay.steps_given_up,
        )

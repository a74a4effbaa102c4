"""The replay as a buffer's store: receives fragments while the rate limiter allows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tianji_cli.roles.buffer.rate_limiter import RateLimiter
from tianji_cli.roles.buffer.replay.replay import Replay
from tianji_cli.roles.buffer.rollout import FragmentValidator
from tianji_cli.wire.batches import BatchArrays
from tianji_cli.wire.fragment import Fragment, FragmentLayout, FragmentStats
from tianji_cli.wire.reports import BufferReport, ReplayFill
from tianji_transports.core import Claim


class ReplayStore:
    """Receives fragments into a replay, if the validator admits them and the rate limiter has room."""

    def __init__(
        self,
        layout: FragmentLayout,
        job: int,
        actors: Mapping[int, Sequence[int]],
        *,
        replay: Replay,
        limiter: RateLimiter,
    ) -> None:
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

        There is no back-pressure while the replay has no sample, such as before the first sequence is
        complete.
        """
        ahead = self.replay.drawable and not self.limiter.may_receive(self.fragment_steps)
        return ahead and not self._winding_down

    def admit(self, claim: Claim) -> None:
        """Receive a fragment into the replay; a rejected one leaves no trace there."""
        if not self.validator.has_its_size(claim):
            claim.release()
            return
        memory = self.replay.free
        claim.take(memory)
        fragment = Fragment(self._layout, memory)
        reception = self.validator.admit(claim, fragment)
        if reception is None:
            return
        samples = int(fragment.header["samples"])
        if int(fragment.header["version"]) < self._oldest:
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
        return self.replay.drawable and self.limiter.may_consume(most_steps)

    def draw(self, into: BatchArrays) -> None:
        """Draw a batch and count it; ``may_draw`` has returned True."""
        into.stamp(self.job)
        self.replay.sample(into)
        self.limiter.consumed += into.steps

    def report(self) -> BufferReport:
        """Report the actual replay ratio, the fill of the replay and the uses of its samples."""
        replay = self.replay
        return BufferReport(
            ratio=self._final_ratio if self._winding_down else self.limiter.actual,
            replay=ReplayFill(replay.size, replay.ring.live * replay.ring.steps_each, replay.nbytes),
            uses=replay.uses.summary(),
            stale_priorities=replay.stale_updates,
            steps_given_up=replay.steps_given_up,
        )

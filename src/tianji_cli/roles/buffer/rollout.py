"""The store of an on-policy learner: checks, counts and orders fragments, and makes rollouts of them.

A buffer in a process of its own checks and counts them before, and sends them on to this store.

On an engine that lends, the claim itself is the slot until the learner has read it; otherwise the store takes
the fragment into a slot of its own. Either way the learner gets views and copies once, into its batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_cli.config.edges import BATCHES
from tianji_cli.wire.fragment import Fragment, FragmentLayout
from tianji_cli.wire.reports import BufferReport, Reception, Rejected, Source
from tianji_transports.core import Claim, Full, Loan, Transport


class FragmentValidator:
    """Checks every message that claims to be a fragment of this job, and counts each actor's deliveries.

    Args:
        actors: numbers of the actors, by the rank of the process that carries them.
    """

    def __init__(self, layout: FragmentLayout, job: int, actors: Mapping[int, Sequence[int]]) -> None:
        self.receptions: dict[Source, Reception] = {}
        self.rejected = Rejected()
        self._layout = layout
        self._job = job
        self._actors = actors
        self._counts_from: dict[int, int] = {}

    def fence(self, rank: int, counts_from: int) -> None:
        """Reject fragments of a rank's incarnations before one from now on."""
        self._counts_from[rank] = max(counts_from, self._counts_from.get(rank, 0))

    def has_its_size(self, claim: Claim) -> bool:
        """Whether a message is as large as a fragment; rejects and releases any other."""
        if claim.nbytes == self._layout.nbytes:
            return True
        claim.release()
        self.rejected.add(claim, f"it has {claim.nbytes} bytes, not {self._layout.nbytes}")
        return False

    def admit(self, claim: Claim, fragment: Fragment) -> Reception | None:
        """Check the contents of a message of the right size.

        Returns:
            The reception of its source, which follows this fragment but does not count its samples yet; None
            if the fragment is rejected.
        """
        rejection = fragment.refusal(self._job, self._actors.get(claim.source, ()))
        rejection = rejection or self._fenced(claim, fragment) or self._wrong_order(fragment)
        if rejection is not None:
            self.rejected.add(claim, rejection)
            return None
        header = fragment.header
        reception = self.receptions.setdefault(fragment.source, Reception())
        reception.follow(int(header["sequence"]), int(header["before"]), int(header["samples"]))
        return reception

    def _fenced(self, claim: Claim, fragment: Fragment) -> str | None:
        actor, incarnation = fragment.source
        if incarnation >= self._counts_from.get(claim.source, 0):
            return None
        return f"its actor {actor} was on a host that the root has given up"

    def _wrong_order(self, fragment: Fragment) -> str | None:
        reception = self.receptions.get(fragment.source, Reception())
        sequence, before = int(fragment.header["sequence"]), int(fragment.header["before"])
        if sequence < reception.next_sequence or before < reception.position:
            return f"it is number {sequence} where {reception.next_sequence} is next"
        return None


class FragmentRelay:
    """Store of a buffer apart from an on-policy learner: sends fragments on to it, and holds none.

    A fragment is claimed once there is room for it at the learner; so it waits with its actor before.
    """

    def __init__(
        self,
        layout: FragmentLayout,
        job: int,
        actors: Mapping[int, Sequence[int]],
        transport: Transport,
        learner: int,
    ) -> None:
        self.validator = FragmentValidator(layout, job, actors)
        self._layout = layout
        self._transport = transport
        self._learner = learner
        self._loan: Loan | None = None

    @property
    def full(self) -> bool:
        """Whether there is no room at the learner; if there is, it is kept for the next fragment."""
        if self._loan is None:
            loan = self._transport.loan(self._learner, BATCHES, self._layout.nbytes)
            self._loan = None if isinstance(loan, Full) else loan
        return self._loan is None

    def admit(self, claim: Claim) -> None:
        """Send a claimed fragment on, in one copy, or reject it; ``full`` has returned False."""
        assert self._loan is not None
        if not self.validator.has_its_size(claim):
            return
        claim.take(self._loan.memory)
        fragment = Fragment(self._layout, self._loan.memory)
        reception = self.validator.admit(claim, fragment)
        if reception is not None:
            reception.samples += int(fragment.header["samples"])
            self._transport.push(self._loan)
            self._loan = None

    @property
    def undelivered(self) -> int:
        """Fragments that the learner has not claimed."""
        return self._transport.unconfirmed(self._learner, BATCHES)

    def wind_down(self) -> None:
        """Go on: the learner takes all that still come."""

    def report(self) -> BufferReport:
        """Return an empty report: the buffer reports the receptions."""
        return BufferReport()


class StoredFragment:
    """A fragment that the buffer holds: borrowed from the engine, or in a slot of the store.

    Attributes:
        fragment: views, valid until ``release``.
        source: (actor, incarnation).
        version: version of its policy.
        samples: steps that are experience.
        started_ns: start of its first step, by ``time.monotonic_ns`` of this host.
    """

    def __init__(self, fragment: Fragment, claim: Claim | None, slot: int | None) -> None:
        self.fragment = fragment
        header = fragment.header
        self.source: Source = fragment.source
        self.version = int(header["version"])
        self.samples = int(header["samples"])
        self.started_ns = time.monotonic_ns() - int(header["age_ns"])
        self.claim = claim
        self.slot = slot

    @property
    def fields(self) -> dict[str, npt.NDArray[Any]]:
        """The fragment's arrays by name."""
        return self.fragment.fields


@dataclass(frozen=True, slots=True)
class Rollout:
    """Fragments that the store hands out at once. Their views are valid until ``release``.

    Attributes:
        arrived: fragments that are handed out for the first time, in the order of reception (in step: of the
            actors). Every fragment is in this list of exactly one rollout, where its steps and episodes
            count.
        drawn: fragments to learn from; ``arrived`` itself if the store keeps one rollout.
        leaving: fragments that the store gives up: their memory is free once the rollout is released.
    """

    arrived: Sequence[StoredFragment]
    drawn: Sequence[StoredFragment]
    leaving: Sequence[StoredFragment]


class RolloutStore:
    """Holds the fragments of the next rollouts.

    Args:
        window: fragments that all actors together may have pushed and unclaimed.
        lends: the engine lends, so the store keeps claims instead of copies.
        in_step: take only fragments of the current version, as many from each actor, ordered by
            actor (``mode = "sync"``); otherwise in the order of reception.
        rollouts: k; a rollout is drawn without replacement from the fragments of the last k rollouts, so on
            average 1/k of it is new. Before k have come, it is drawn from those so far.

    Attributes:
        validator: checks and counts the fragments.
        wanted: the learner is waiting for a rollout. While it is not, the buffer claims only the fragments
            that the senders' windows cannot hold: an unclaimed fragment is back-pressure on its actor, and
            samples that are not produced yet cannot become stale.
    """

    undelivered = 0

    def __init__(  # noqa: PLR0913 - what it is to hold, and how: each is set on its own
        self,
        layout: FragmentLayout,
        job: int,
        actors: Mapping[int, Sequence[int]],
        *,
        per_rollout: int,
        window: int,
        lends: bool,
        in_step: bool,
        rollouts: int = 1,
        seed: int = 0,
    ) -> None:
        if rollouts < 1:
            raise ValueError(f"a buffer holds at least one rollout, not {rollouts}")
        number = sum(len(carried) for carried in actors.values())
        if in_step and per_rollout % number:
            raise ValueError(f"{per_rollout} fragments cannot be shared evenly by {number} actors")
        self.layout = layout
        self.wanted = True
        self.per_rollout = per_rollout
        self.validator = FragmentValidator(layout, job, actors)
        self._quota = per_rollout // number if in_step else None
        self._ahead = max(0, per_rollout - window)
        self._version: int | None = 0
        self._oldest = 0
        self._winding_down = False
        self._held: deque[StoredFragment] = deque()
        self._kept: deque[StoredFragment] = deque()  # Fragments handed out before, and still drawn from.
        self._to_keep = (rollouts - 1) * per_rollout
        self._draws = np.random.default_rng(seed)
        self._slots = self.slots_needed(per_rollout, window, rollouts)
        self._used = 0
        self._memory = None if lends else np.zeros((self._slots, layout.nbytes), np.uint8)
        self._free = [] if lends else list(range(self._slots))

    @staticmethod
    def slots_needed(per_rollout: int, window: int, rollouts: int = 1) -> int:
        """Return the most fragments held at once: rollouts drawn from, the next one, the senders' windows."""
        return (rollouts + 1) * per_rollout + window

    @property
    def full(self) -> bool:
        """Whether further fragments must stay with their senders."""
        if self._winding_down:
            return self._used >= self._slots
        if self._quota is not None:
            return False  # Actors in step send a rollout and then wait.
        return len(self._held) >= (self.per_rollout if self.wanted else self._ahead)

    def admit(self, claim: Claim) -> None:
        """Check, count and hold a claimed fragment; reject and release one that is not of this job."""
        if not self.validator.has_its_size(claim):
            return
        stored = self._hold(claim)
        reception = self.validator.admit(claim, stored.fragment)
        if reception is None:
            self._free_memory(stored)
        elif self._is_surplus(stored):
            reception.dropped += stored.samples
            self._free_memory(stored)
        else:
            reception.samples += stored.samples
            self._held.append(stored)

    def _hold(self, claim: Claim) -> StoredFragment:
        self._used += 1
        if self._memory is None:
            return StoredFragment(Fragment(self.layout, claim.view()), claim, None)
        slot = self._free.pop()
        memory = memoryview(self._memory[slot])
        claim.take(memory)
        return StoredFragment(Fragment(self.layout, memory), None, slot)

    def _is_surplus(self, stored: StoredFragment) -> bool:
        """Whether a fragment is of an old policy or, in step, repeats one from before an actor's restart."""
        if self._quota is None:
            return stored.version < self._oldest
        of_actor = sum(held.source[0] == stored.source[0] for held in self._held)
        return stored.version != self._version or of_actor >= self._quota

    def rollout(self) -> Rollout | None:
        """Hand out the next rollout, or None while it is incomplete; release the one before first."""
        arrived = self._arrived()
        if arrived is None:
            return None
        if self._to_keep == 0:
            return Rollout(arrived, arrived, arrived)
        self._kept.extend(arrived)
        drawn = arrived
        if len(self._kept) > self.per_rollout:
            places = self._draws.choice(len(self._kept), self.per_rollout, replace=False)
            drawn = [self._kept[place] for place in places]
        leaving = [self._kept.popleft() for _ in range(max(0, len(self._kept) - self._to_keep))]
        return Rollout(arrived, drawn, leaving)

    def _arrived(self) -> list[StoredFragment] | None:
        if self._quota is None:
            self.wanted = len(self._held) < self.per_rollout
            if self.wanted:
                return None
            return [self._held.popleft() for _ in range(self.per_rollout)]
        if len(self._held) < self.per_rollout:
            return None
        self._version = None  # Further fragments of this policy come too late.
        arrived = sorted(self._held, key=lambda stored: stored.source[0])
        self._held.clear()
        return arrived

    def advance(self, version: int) -> None:
        """Set the version that the actors use from now on (``in_step`` takes no other)."""
        self._version = version

    def discard(self, before: int) -> None:
        """Drop all fragments of versions before this one, both held and later ones.

        Fragments that were handed out once still count as received.
        """
        self._oldest = before
        while self._held:
            stored = self._held.popleft()
            reception = self.validator.receptions[stored.source]
            reception.samples -= stored.samples
            reception.dropped += stored.samples
            self._free_memory(stored)
        while self._kept:
            self._free_memory(self._kept.popleft())

    def wind_down(self) -> None:
        """Hold the last fragments, as far as they fit; ``remaining`` hands them out each turn."""
        self._winding_down = True

    def remaining(self) -> Rollout:
        """Hand out all held fragments at the end of a run, for counting only."""
        arrived = list(self._held)
        remaining = Rollout(arrived, (), [*self._kept, *arrived])
        self._held.clear()
        self._kept.clear()
        return remaining

    def report(self) -> BufferReport:
        """Return an empty report: the buffer reports the receptions."""
        return BufferReport()

    def release(self, rollout: Rollout) -> None:
        """Free the memory of the fragments of a rollout that will not be drawn again."""
        for stored in rollout.leaving:
            self._free_memory(stored)

    def _free_memory(self, stored: StoredFragment) -> None:
        self._used -= 1
        if stored.claim is not None:
            stored.claim.release()
        if stored.slot is not None:
            self._free.append(stored.slot)

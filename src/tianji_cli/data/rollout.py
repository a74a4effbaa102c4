"""Fragments on their way to an on-policy learner: claimed, checked, counted, and put in order.

On an engine that lends, the claim itself is the slot until the learner has read it; elsewhere the
fragment is taken into a slot of this store. Either way the learner gets views and copies once, into its
batch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tianji_cli.data.fragment import Fragment, FragmentLayout
from tianji_cli.data.ledger import Reception, Source
from tianji_transports.core import Claim


class StoredFragment:
    """A fragment that the buffer holds: borrowed from the engine, or in a slot of its own.

    Attributes:
        fragment: views, valid until ``release``.
        source: (actor, incarnation).
        sequence: its number among the fragments of that source.
        before: samples of that source's earlier fragments.
        version: of the policy that made it.
        samples: steps in it that are experience.
        started_ns: when its first step began, ``time.monotonic_ns`` of this host.
    """

    def __init__(self, fragment: Fragment, claim: Claim | None, slot: int | None) -> None:
        self.fragment = fragment
        header = fragment.header
        self.source: Source = (int(header["actor"]), int(header["incarnation"]))
        self.sequence = int(header["sequence"])
        self.before = int(header["before"])
        self.version = int(header["version"])
        self.samples = int(header["samples"])
        self.started_ns = time.monotonic_ns() - int(header["age_ns"])
        self.claim = claim
        self.slot = slot

    @property
    def fields(self) -> dict[str, npt.NDArray[Any]]:
        """The fragment's arrays by name."""
        return self.fragment.fields


class RolloutStore:
    """Holds the fragments from which the next rollouts are made.

    Args:
        layout: of every fragment of the group.
        job: the job's number, which every header carries.
        actors: numbers of the actors, by the rank of the process that carries them.
        per_rollout: fragments in a rollout.
        window: fragments that all actors together may have pushed and unclaimed.
        lends: the engine lends, so claims are kept instead of copied.
        in_step: take only fragments of the current version, as many from each actor, ordered by
            actor (``mode = "sync"``); otherwise in the order they came.

    Attributes:
        wanted: the learner is waiting for a rollout. While it is not, no more is claimed than
            the senders' windows leave missing: a fragment that waits unclaimed holds its actor
            back, and the samples that are not produced yet cannot become stale.
    """

    def __init__(
        self,
        layout: FragmentLayout,
        job: int,
        actors: Mapping[int, Sequence[int]],
        *,
        per_rollout: int,
        window: int,
        lends: bool,
        in_step: bool,
    ) -> None:
        number = sum(len(carried) for carried in actors.values())
        if in_step and per_rollout % number:
            raise ValueError(f"{per_rollout} fragments cannot be shared evenly by {number} actors")
        self.layout = layout
        self.wanted = True
        self.per_rollout = per_rollout
        self.receptions: dict[Source, Reception] = {}
        self.rejected = 0
        self.first_refusal = ""
        self._job = job
        self._actors = actors
        self._quota = per_rollout // number if in_step else None
        self._ahead = max(0, per_rollout - window)
        self._version: int | None = 0
        self._winding_down = False
        self._held: deque[StoredFragment] = deque()
        self._slots = self.slots_needed(per_rollout, window)
        self._memory = None if lends else np.zeros((self._slots, layout.nbytes), np.uint8)
        self._free = [] if lends else list(range(self._slots))

    @staticmethod
    def slots_needed(per_rollout: int, window: int) -> int:
        """Fragments held at once, at most: one rollout being read, the next one, and the senders' last."""
        return 2 * per_rollout + window

    @property
    def full(self) -> bool:
        """Leave further fragments with their senders."""
        if self._winding_down:
            return len(self._held) >= self._slots
        if self._quota is not None:
            return False  # Actors in step send a rollout and then wait: there is nothing to hold back.
        return len(self._held) >= (self.per_rollout if self.wanted else self._ahead)

    def admit(self, claim: Claim) -> None:
        """Check, count and hold a claimed fragment; one that is not the job's is rejected and released."""
        refusal = self._refusal_of_size(claim)
        if refusal is None:
            stored = self._hold(claim)
            refusal = stored.fragment.refusal(self._job, self._actors.get(claim.source, ()))
            refusal = refusal or self._refusal_of_order(stored)
            if refusal is None:
                self._count(stored)
                return
            self.release([stored])
        else:
            claim.release()
        self.rejected += 1
        if not self.first_refusal:
            self.first_refusal = f"a message from rank {claim.source} is no fragment of this job: {refusal}"

    def _refusal_of_size(self, claim: Claim) -> str | None:
        if claim.nbytes != self.layout.nbytes:
            return f"it has {claim.nbytes} bytes, not {self.layout.nbytes}"
        return None

    def _refusal_of_order(self, stored: StoredFragment) -> str | None:
        reception = self.receptions.get(stored.source, Reception())
        if stored.sequence < reception.next_sequence or stored.before < reception.position:
            return f"it is number {stored.sequence} where {reception.next_sequence} is next"
        return None

    def _hold(self, claim: Claim) -> StoredFragment:
        if self._memory is None:
            return StoredFragment(Fragment(self.layout, claim.view()), claim, None)
        slot = self._free.pop()
        memory = memoryview(self._memory[slot])
        claim.take(memory)
        return StoredFragment(Fragment(self.layout, memory), None, slot)

    def _count(self, stored: StoredFragment) -> None:
        reception = self.receptions.setdefault(stored.source, Reception())
        reception.follow(stored.sequence, stored.before, stored.samples)
        if self._is_surplus(stored):
            reception.dropped += stored.samples
            self.release([stored])
            return
        reception.samples += stored.samples
        self._held.append(stored)

    def _is_surplus(self, stored: StoredFragment) -> bool:
        """In step, a restarted actor repeats what its predecessor had delivered."""
        if self._quota is None:
            return False
        of_actor = sum(held.source[0] == stored.source[0] for held in self._held)
        return stored.version != self._version or of_actor >= self._quota

    def rollout(self) -> list[StoredFragment] | None:
        """Hand out the next rollout in its order, or None while it is incomplete. Release it when read."""
        if self._quota is None:
            self.wanted = len(self._held) < self.per_rollout
            if self.wanted:
                return None
            return [self._held.popleft() for _ in range(self.per_rollout)]
        if len(self._held) < self.per_rollout:
            return None
        self._version = None  # Whatever else is made with this policy comes too late.
        return sorted(self.remaining(), key=lambda stored: stored.source[0])

    def advance(self, version: int) -> None:
        """Say which version the actors are to use from now on (``in_step`` takes no other)."""
        self._version = version

    def wind_down(self) -> None:
        """Hold whatever still comes, as far as it fits; ``remaining`` is asked for it after every turn."""
        self._winding_down = True

    def remaining(self) -> list[StoredFragment]:
        """Hand out whatever is held, at the end of a run."""
        remaining = list(self._held)
        self._held.clear()
        return remaining

    def release(self, fragments: Sequence[StoredFragment]) -> None:
        """Free the memory of fragments that were handed out."""
        for stored in fragments:
            if stored.claim is not None:
                stored.claim.release()
            if stored.slot is not None:
                self._free.append(stored.slot)

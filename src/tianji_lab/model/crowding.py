"""How much roles crowd one another: the busier the others' cores, the dearer the work on one's own.

Whoever waits leaves cores idle, so throughput and crowds depend on each other. With a throughput ``T``,
seconds ``t + d c`` that a role's work for a sample use takes in a crowd ``c``, and ``M`` cores of which one
of the role has ``m``, the role is at work for a share ``u = T (t + d c)`` of the time and finds a crowd
``c = (B - m u) / (M - m)``, at most 1, where ``B`` is the sum of all roles' ``u`` times their cores. For a
given ``T`` all of this is linear but for that most. What comes of it is the largest ``T`` with which no
role's ``u`` is more than 1, nor the time that roles which share cores take together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from tianji_lab.model.rates import PerRole
from tianji_lab.model.seats import Seats

_CLOSE: Final = 1e-12
_ROUNDS: Final = 60


@dataclass(frozen=True)
class Crowding:
    """Work of roles that crowd one another.

    Attributes:
        seats: who has which cores.
        alone_s: t, seconds of a sample use with nobody else at work.
        more_s: d, seconds more with everybody else at work; not negative.
    """

    seats: Seats
    alone_s: PerRole
    more_s: PerRole

    def settled(self, most: float) -> PerRole:
        """Find the crowd in which each role ends up.

        Args:
            most: what other limits leave of the throughput, in uses a second; may be infinite.
        """
        # The time of a buffer beside its learner is in the learner's.
        own_s = self.alone_s if self.seats.cores.buffers else self.alone_s._replace(buffers=0.0)
        throughput = min(most, 1 / self._busiest(own_s))
        busy = self._busy(throughput)
        if self._busiest(busy) <= 1:
            return self.seats.crowd(busy)
        low, high, slope = 0.0, throughput, 0.0
        could = throughput / self._busiest(busy)
        for _ in range(_ROUNDS):
            # What roles could do in the crowd of this throughput: less, the higher it is. So the two have the
            # one that settles between them, and a line through the last two pairs says where. All in
            # logarithms: crowds may make work dearer by orders of magnitude.
            if abs(could - throughput) <= _CLOSE * throughput:
                break
            low, high = max(low, min(throughput, could)), min(high, max(throughput, could))
            guess = throughput * (could / throughput) ** (1 / (1 - slope))
            before, could_before = throughput, could
            throughput = guess if low < guess < high else math.sqrt(low * high)
            busy = self._busy(throughput)
            could = throughput / self._busiest(busy)
            if change := math.log(throughput / before):
                slope = min(math.log(could / could_before) / change, 0.0)
        return self.seats.crowd(busy)

    def _busiest(self, busy: PerRole) -> float:
        """The largest share: of a role, or of those together that share cores."""
        return max(*busy, self.seats.together_s(busy))

    def _busy(self, throughput: float) -> PerRole:
        """The share of time that each role would need for a throughput."""
        seats = self.seats
        in_none, per_core, in_full = [], [], []
        for t, d, cores, own in zip(self.alone_s, self.more_s, seats.cores, seats.of_one, strict=True):
            dearer = d / (seats.there - own) if seats.there > own else 0.0
            # u = T (t + dearer (B - own u)), solved for u but for B; a role without cores has none of it.
            scale = throughput / (1 + throughput * dearer * own) if cores else 0.0
            in_none.append(scale * t)
            per_core.append(scale * dearer)
            in_full.append(throughput * (t + d) if cores else 0.0)
        # Who shares cores leaves others more than those beside its own while it waits, but no crowd is more
        # than full. Each round finds at least one role more whose crowd is not, until there is none.
        at_work = sum(cores * full for cores, full in zip(seats.cores, in_full, strict=True))
        for _ in seats.cores:
            numerator, denominator = 0.0, 1.0
            for cores, none, more, full in zip(seats.cores, in_none, per_core, in_full, strict=True):
                is_full = none + more * at_work >= full
                numerator += cores * (full if is_full else none)
                denominator -= 0.0 if is_full else cores * more
            at_work = numerator / denominator
        return PerRole(
            *(
                min(none + more * at_work, full)
                for none, more, full in zip(in_none, per_core, in_full, strict=True)
            )
        )

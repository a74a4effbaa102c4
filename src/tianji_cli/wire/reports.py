"""What roles count and report: samples received, distributions over samples, messages that were rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_transports.core import Claim

Source = tuple[int, int]
"""(number, incarnation) of an actor."""


@dataclass
class Reception:
    """What a buffer received from one incarnation of an actor, in samples.

    Attributes:
        samples: received.
        dropped: received and of no use.
        lost: in fragments whose sequence numbers were skipped: they were rejected on the way.
        next_sequence: of the fragment that is to come.
        position: the actor's own count of samples up to that fragment.
    """

    samples: int = 0
    dropped: int = 0
    lost: int = 0
    next_sequence: int = 0
    position: int = 0

    def follow(self, sequence: int, before: int, samples: int) -> None:
        """Note the next fragment: its number, the samples before it and the samples in it."""
        if sequence != self.next_sequence:
            self.lost += before - self.position
        self.next_sequence = sequence + 1
        self.position = before + samples


@dataclass(frozen=True)
class Spread:
    """What is said of a distribution."""

    mean: float
    p50: float
    p95: float
    max: float


PENDING: Final = 8192
"""Values that are counted together."""


class Pending:
    """Keeps values back until there are many.

    A call of numpy for a few hundred costs about as much as one for thousands.

    Args:
        count: counts values ``[n]``, which it must not keep.
    """

    def __init__(self, count: Callable[[npt.NDArray[np.int64]], None]) -> None:
        self._count = count
        self._values = np.zeros(PENDING, np.int64)
        self._waiting = 0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Have values counted, sooner or later."""
        if self._waiting + len(values) > PENDING:
            self.flush()
        if len(values) > PENDING:
            self._count(values)
            return
        self._values[self._waiting : self._waiting + len(values)] = values
        self._waiting += len(values)

    def flush(self) -> None:
        """Have all counted that wait."""
        if self._waiting:
            waiting, self._waiting = self._waiting, 0
            self._count(self._values[:waiting])


class Distribution:
    """Counts samples by a whole number: a histogram, because samples are many.

    Args:
        width: of a bin. Percentiles are exact to a bin, mean and maximum are exact.
    """

    def __init__(self, width: int = 1) -> None:
        self._width = width
        self._counts = np.zeros(64, np.int64)
        self._samples = 0
        self._sum = 0
        self._max = 0
        self._pending = Pending(self._count)

    def record(self, value: int, samples: int) -> None:
        """Count ``samples`` of one value."""
        place = value // self._width
        self._reserve(place)
        self._counts[place] += samples
        self._note(samples, value * samples, value)

    def record_all(self, values: npt.NDArray[np.int64]) -> None:
        """Count one sample of each of ``values [B]``."""
        self._pending.add(values)

    def summary(self) -> Spread | None:
        """Mean, median, 95th percentile and maximum so far; None before a sample was used."""
        self._pending.flush()
        if self._samples == 0:
            return None
        cumulative = np.cumsum(self._counts)
        p50, p95 = np.searchsorted(cumulative, (0.50 * self._samples, 0.95 * self._samples))
        return Spread(
            mean=self._sum / self._samples,
            p50=float(p50 * self._width),
            p95=float(p95 * self._width),
            max=float(self._max),
        )

    def _count(self, values: npt.NDArray[np.int64]) -> None:
        largest = int(values.max())
        self._reserve(largest // self._width)
        counts = np.bincount(values if self._width == 1 else values // self._width)
        self._counts[: len(counts)] += counts
        self._note(len(values), int(values.sum()), largest)

    def _reserve(self, place: int) -> None:
        if place >= self._counts.size:
            self._counts = np.concatenate([self._counts, np.zeros(place + 1, np.int64)])

    def _note(self, samples: int, total: int, largest: int) -> None:
        self._samples += samples
        self._sum += total
        self._max = max(self._max, largest)


class Rejected:
    """Counts refused messages.

    Attributes:
        count: how many there were.
        first: why the first of them was refused; empty if none was.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first = ""

    def add(self, claim: Claim, why: str) -> None:
        """Count a message."""
        self.count += 1
        if not self.first:
            self.first = f"a message from rank {claim.source} is none of this job: {why}"

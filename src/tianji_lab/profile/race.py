"""Trains with the candidates in turns, and drops the worst until one is ahead: successive halving.

All start from one warm fork server, so a training of three seconds takes about five.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tianji_cli.quantities import rate
from tianji_cli.telemetry.progress import Progress
from tianji_lab.profile.candidates import TIE, Candidate
from tianji_lab.profile.trainer import Trained, Trainer

RACE_S: Final = 60.0
"""How long a race lasts, by default."""
WINDOW_S: Final = 3.0
"""Seconds of each training that count in the first round; each later round has twice as many."""
HOPELESS: Final = 0.15
"""A candidate that is behind by more than this share is dropped at once."""
ROUNDS: Final = 5
"""Trainings with each candidate to verify the race, in turns: a machine that drifts is fair to all."""
VERIFIED_S: Final = 5.0
"""Seconds of each of these that count."""


@dataclass
class Contender:
    """A candidate, and the rates of its trainings; ``seconds`` of each counted."""

    candidate: Candidate
    uses_per_s: list[float] = field(default_factory=list)
    steps_per_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def measured(self) -> float:
        """Sample uses a second, over all its trainings."""
        return self._mean(self.uses_per_s)

    @property
    def measured_steps(self) -> float:
        """Env steps a second, likewise."""
        return self._mean(self.steps_per_s)

    @property
    def median(self) -> float:
        """Sample uses a second, the median of its trainings."""
        return median(self.uses_per_s)

    @property
    def spread(self) -> float:
        """How far its trainings lie apart, as a share of their median."""
        return (max(self.uses_per_s) - min(self.uses_per_s)) / self.median

    def add(self, trained: Trained, seconds: float) -> None:
        """Note a training."""
        self.uses_per_s.append(trained.uses_per_s)
        self.steps_per_s.append(trained.steps_per_s)
        self.seconds.append(seconds)

    def _mean(self, rates: Sequence[float]) -> float:
        return sum(map(math.prod, zip(rates, self.seconds, strict=True))) / sum(self.seconds)


@dataclass(frozen=True)
class Race:
    """How a race ended.

    Attributes:
        contenders: all that were trained with, the best first.
        is_clear: the first is ahead of all others in every training since it had only those to beat.
        seconds: that it took.
    """

    contenders: Sequence[Contender]
    is_clear: bool
    seconds: float

    @property
    def winner(self) -> Contender:
        """The best; of those that are no further apart than a tie, the one with the fewest changes."""
        best = self.contenders[0].measured
        tied = [one for one in self.contenders if one.measured >= (1 - TIE) * best]
        return min(tied, key=lambda one: len(one.candidate.changes))


def race(trainer: Trainer, candidates: Sequence[Candidate], seconds: float, progress: Progress) -> Race:
    """Train with candidates in turns until one is clearly the best, or the time is up.

    Raises:
        RunFailed: a training failed.
    """
    began_s = time.monotonic()
    left = contenders = [Contender(candidate) for candidate in candidates]
    window_s, overhead_s = WINDOW_S, 0.0
    while True:
        progress.total += len(left)
        for contender in left:
            turn_s = time.monotonic()
            # Two are trained with in any case: without a second one it would be no race.
            trained = sum(bool(one.seconds) for one in contenders)
            if turn_s + window_s + overhead_s > began_s + seconds and trained > 1:
                break
            _train(trainer, contender, window_s, progress)
            overhead_s = time.monotonic() - turn_s - window_s
        else:
            left = _better_half(left)
            window_s *= 2
            if len(left) > 1 and not _is_clear(left):
                continue
        break
    ranked = sorted((one for one in contenders if one.seconds), key=lambda one: -one.measured)
    is_clear = all(one.seconds for one in left) and _is_clear(left)
    return Race(ranked, is_clear, time.monotonic() - began_s)


def verify(trainer: Trainer, candidates: Sequence[Candidate], progress: Progress) -> list[Contender]:
    """Train with all candidates in turns, some rounds long; returned in their order.

    Raises:
        RunFailed: a training failed.
    """
    contenders = [Contender(candidate) for candidate in candidates]
    progress.total += ROUNDS * len(contenders)
    for _ in range(ROUNDS):
        for contender in contenders:
            _train(trainer, contender, VERIFIED_S, progress)
    return contenders


def _train(trainer: Trainer, contender: Contender, seconds: float, progress: Progress) -> None:
    split = contender.candidate.split
    pins = "" if split.pinned else ", shared cores"
    progress.begin(f"training with {split.name}, {split.num_envs} environments an actor{pins}")
    contender.add(trainer.train(contender.candidate.settings, seconds), seconds)
    progress.done(f"{rate(contender.uses_per_s[-1])} used")


def _better_half(contenders: Sequence[Contender]) -> list[Contender]:
    """Keep the better half without those that are hopelessly behind, but two at least."""
    ranked = sorted(contenders, key=lambda one: -one.measured)
    near = sum(one.measured >= (1 - HOPELESS) * ranked[0].measured for one in ranked)
    return ranked[: max(2, min(near, math.ceil(len(ranked) / 2)))]


def _is_clear(contenders: Sequence[Contender]) -> bool:
    """Whether the best has beaten each of the others with each of several trainings."""
    first, *others = sorted(contenders, key=lambda one: -one.measured)
    if not others:
        return True
    is_ahead = min(first.uses_per_s) > max(max(one.uses_per_s) for one in others)
    return is_ahead and len(first.uses_per_s) > 1

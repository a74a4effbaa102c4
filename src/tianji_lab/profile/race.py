"""Trains with the candidates in turns, and drops the worst until one is ahead: successive halving.

All trainings start from one warm fork server, so a training of three seconds takes about five.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from tianji_cli.errors import RunFailed
from tianji_cli.quantities import rate
from tianji_cli.telemetry.progress import Progress
from tianji_lab.profile.candidates import TIE, Candidate
from tianji_lab.profile.trainer import Trainer
from tianji_lab.ranges import Range

RACE_S: Final = 60.0
"""Default length of a race in seconds."""
WINDOW_S: Final = 3.0
"""Seconds of each training that count in the first round; each later round has twice as many."""
FAR_BEHIND: Final = 0.15
"""Share of the best rate by which a candidate has to be behind to be dropped at once."""
ROUNDS: Final = 5
"""Trainings with each candidate to verify the race, in turns, so that a drifting machine is fair to all."""
VERIFIED_S: Final = 5.0
"""Seconds of each verifying training that count."""


@dataclass
class Contender:
    """A candidate, and the rates of its trainings.

    Attributes:
        seconds: of each training that count.
        failure: why a training failed; empty if none did.
    """

    candidate: Candidate
    uses_per_s: list[float] = field(default_factory=list)
    steps_per_s: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def measured(self) -> float:
        """Sample uses a second, over all its trainings."""
        return self._mean(self.uses_per_s)

    @property
    def measured_steps(self) -> float:
        """Env steps a second, over all its trainings."""
        return self._mean(self.steps_per_s)

    @property
    def rates(self) -> Range:
        """Sample uses a second: the median, the slowest and the fastest of its trainings."""
        return Range.of(self.uses_per_s)

    def train(self, trainer: Trainer, seconds: float, progress: Progress) -> None:
        """Train once; after a failure this contender is out of the race, and the others go on."""
        split = self.candidate.split
        progress.begin(f"training with {split.name}, {split.num_envs} environments an actor{split.manner}")
        try:
            trained = trainer.train(self.candidate.settings, seconds)
        except RunFailed as error:
            self.failure = str(error)
            progress.done("failed")
            return
        self.uses_per_s.append(trained.uses_per_s)
        self.steps_per_s.append(trained.steps_per_s)
        self.seconds.append(seconds)
        progress.done(f"{rate(trained.uses_per_s)} used")

    def _mean(self, rates: Sequence[float]) -> float:
        return sum(map(math.prod, zip(rates, self.seconds, strict=True))) / sum(self.seconds)


@dataclass(frozen=True)
class Race:
    """Result of a race.

    Attributes:
        contenders: all that were trained with: the winner, the other finalists, best first, and those that
            were dropped before.
        is_clear: whether the best finalist has beaten the others in each of its trainings.
        seconds: duration of the race.
        failed: candidates whose trainings failed.
        fell_back: whether all finalists failed, and those that were dropped before took their place.
    """

    contenders: Sequence[Contender]
    is_clear: bool
    seconds: float
    failed: Sequence[Contender] = ()
    fell_back: bool = False

    @property
    def winner(self) -> Contender:
        """The best contender; in a tie, the one with the fewest changes."""
        return self.contenders[0]


def race(trainer: Trainer, candidates: Sequence[Candidate], seconds: float, progress: Progress) -> Race:
    """Train with candidates in turns until one is clearly the best, or the time is up.

    If all finalists fail, those that were dropped before take their place, with what earlier rounds measured.

    Raises:
        RunFailed: every candidate that was trained with failed.
    """
    began_s = time.monotonic()
    left = contenders = [Contender(candidate) for candidate in candidates]
    window_s, overhead_s, is_whole = WINDOW_S, 0.0, True
    while is_whole and (window_s == WINDOW_S or (len(left) > 1 and not _is_clear(left))):
        progress.total += len(left)
        for contender in left:
            turn_s = time.monotonic()
            # Two contenders train in any case: a race has at least two.
            trained = sum(bool(one.seconds) for one in contenders)
            if turn_s + window_s + overhead_s > began_s + seconds and trained > 1:
                is_whole = False
                break
            contender.train(trainer, window_s, progress)
            overhead_s = time.monotonic() - turn_s - window_s
        left = [one for one in left if one.seconds and not one.failure]
        left = _better_half(left) if is_whole and left else left
        window_s *= 2
    failed = [one for one in contenders if one.failure]
    fell_back = not left
    left = left or [one for one in contenders if one.seconds and not one.failure]
    if not left:
        raise RunFailed(f"every split of the race failed, so there is no result: {failed[0].failure}")
    finalists = _ranked(left)
    first = fewest_changes([one for one in finalists if one.measured >= (1 - TIE) * finalists[0].measured])
    dropped = [one for one in contenders if one.seconds and one not in left and not one.failure]
    dropped.sort(key=lambda one: (-len(one.seconds), -one.measured))  # Later dropped ones come first.
    return Race(
        [first, *(one for one in finalists if one is not first), *dropped],
        is_whole and not fell_back and _is_clear(left),
        time.monotonic() - began_s,
        failed,
        fell_back,
    )


def fewest_changes(contenders: Sequence[Contender]) -> Contender:
    """Find the first contender with the fewest changes of the config."""
    return min(contenders, key=lambda one: len(one.candidate.changes))


def verify(trainer: Trainer, candidates: Sequence[Candidate], progress: Progress) -> list[Contender]:
    """Train with all candidates in turns, ``ROUNDS`` times; returns those that did not fail, in order."""
    contenders = [Contender(candidate) for candidate in candidates]
    progress.total += ROUNDS * len(contenders)
    for _ in range(ROUNDS):
        for contender in contenders:
            if not contender.failure:
                contender.train(trainer, VERIFIED_S, progress)
    return [one for one in contenders if not one.failure]


def _ranked(contenders: Sequence[Contender]) -> list[Contender]:
    return sorted(contenders, key=lambda one: -one.measured)


def _better_half(contenders: Sequence[Contender]) -> list[Contender]:
    """Keep the better half, without those that are far behind, but at least two."""
    ranked = _ranked(contenders)
    near = sum(one.measured >= (1 - FAR_BEHIND) * ranked[0].measured for one in ranked)
    return ranked[: max(2, min(near, math.ceil(len(ranked) / 2)))]


def _is_clear(contenders: Sequence[Contender]) -> bool:
    """Whether the best has beaten each of the others with each of several trainings."""
    first, *others = _ranked(contenders)
    if not others:
        return True
    is_ahead = min(first.uses_per_s) > max(max(one.uses_per_s) for one in others)
    return is_ahead and len(first.uses_per_s) > 1

"""Figures of the scaling experiments: a row for each point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from tianji_lab.profile.split import Split
from tianji_lab.scaling.study import Failed, Found, Outcome, Setting, Trained

RANGES: Final = ("produced_per_s", "received_per_s", "consumed_per_s", "time_to_s")
"""What a row has a ``Range`` of."""


def split_document(split: Split) -> dict[str, Any]:
    """Write a split as JSON."""
    return {
        "setting": split.name,
        "groups": split.groups,
        "learners": split.learners,
        "learner_cores": split.learner_cores,
        "actors": split.actors,
        "num_envs": split.num_envs,
        "cores": split.cores,
    }


@dataclass(frozen=True, slots=True)
class Range:
    """A figure of several trainings.

    Attributes:
        median: the middle one; None if so many of them do not have it.
        max: the highest; None if one of them does not have it.
    """

    median: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was found of one setting.

    Attributes:
        repeats: trainings with figures.
        rho: uses that each sample is to get; None without a training.
        produced_per_s: environment steps made per second; None without a training, as the next two.
        received_per_s: environment steps received per second.
        consumed_per_s: sample uses per second.
        time_to_s: seconds until the first of the groups reached the threshold; None if none is waited for.
            Where more than half of the trainings did not reach it, there is no median, and where one did not,
            there is no maximum.
        reached: trainings that reached it.
    """

    setting: Setting
    repeats: int
    rho: float | None
    produced_per_s: Range | None
    received_per_s: Range | None
    consumed_per_s: Range | None
    time_to_s: Range | None
    reached: int
    trainings: tuple[Trained, ...]
    failed: tuple[Failed, ...]

    @property
    def split(self) -> Split:
        """The setting's."""
        return self.setting.split

    def document(self) -> dict[str, Any]:
        """The row of the JSON file."""
        found = asdict(self)
        del found["setting"]
        wants = {"cores": self.setting.cores, "oversubscribed": self.setting.oversubscribed}
        return {**split_document(self.split), **wants, **found}


def rows_of(found: Found, threshold: float | None) -> list[Row]:
    """Sum up the trainings of each setting."""
    return [_row(setting, outcome, threshold) for setting, outcome in found.items()]


def _row(setting: Setting, outcome: Outcome, threshold: float | None) -> Row:
    trainings = outcome.trainings
    times = [math.inf if one.time_to_s is None else one.time_to_s for one in trainings]
    return Row(
        setting=setting,
        repeats=len(trainings),
        rho=trainings[0].rho if trainings else None,
        produced_per_s=_range([one.produced_per_s for one in trainings]),
        received_per_s=_range([one.received_per_s for one in trainings]),
        consumed_per_s=_range([one.consumed_per_s for one in trainings]),
        time_to_s=None if threshold is None else _range(times),
        reached=0 if threshold is None else sum(map(math.isfinite, times)),
        trainings=tuple(trainings),
        failed=tuple(outcome.failed),
    )


def _range(values: Sequence[float]) -> Range | None:
    """Take median, least and most; what is infinite was never seen."""
    if not values:
        return None
    found = (median(values), min(values), max(values))
    return Range(*(value if math.isfinite(value) else None for value in found))

"""Figures of the scaling experiments: a row for each point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from tianji_lab.profile.split import Split
from tianji_lab.scaling.study import Found, Setting
from tianji_lab.training import Failed, Outcome, Training

RANGES: Final = ("produced_per_s", "received_per_s", "consumed_per_s", "time_to_s")
"""Figures of a row that are a ``Range``."""


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
    """Median and extremes of a figure over several trainings.

    Attributes:
        median: None if at least half of the trainings lack the figure.
        max: None if one training lacks the figure.
    """

    median: float | None
    min: float | None
    max: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one setting.

    Attributes:
        repeats: trainings with figures.
        rho: target uses of each sample; None without a training.
        produced_per_s: environment steps made per second; None without a training.
        received_per_s: environment steps received per second; None without a training.
        consumed_per_s: sample uses per second; None without a training.
        time_to_s: seconds until the first of the groups reached the threshold; None without a threshold.
            There is no median if at least half of the trainings did not reach it, and no maximum if one
            training did not.
        reached: trainings that reached the threshold.
    """

    setting: Setting
    repeats: int
    rho: float | None
    produced_per_s: Range | None
    received_per_s: Range | None
    consumed_per_s: Range | None
    time_to_s: Range | None
    reached: int
    trainings: tuple[Training, ...]
    failed: tuple[Failed, ...]

    @property
    def split(self) -> Split:
        """Split of the setting."""
        return self.setting.split

    def document(self) -> dict[str, Any]:
        """Build the row of the JSON file."""
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
    """Compute median, minimum and maximum; an infinite value, which no training reached, becomes None."""
    if not values:
        return None
    found = (median(values), min(values), max(values))
    return Range(*(value if math.isfinite(value) else None for value in found))

"""Figures of the scaling experiments: a row for each point."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from tianji_lab.profile.split import Split
from tianji_lab.ranges import Range
from tianji_lab.scaling.study import Setting
from tianji_lab.training import Failed, Outcome, Training

RANGES: Final = ("produced_per_s", "received_per_s", "consumed_per_s", "time_to_s")
"""Figures of a row that are medians with both extremes."""
NAMES: Final = ("median", "min", "max")
"""Keys of such a figure."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of one setting.

    Attributes:
        repeats: trainings with figures.
        rho: target uses of each sample; None without a training.
        produced_per_s: environment steps made per second; None without a training.
        received_per_s: environment steps received per second; None without a training.
        consumed_per_s: sample uses per second; None without a training.
        time_to_s: seconds until the first of the groups reached the threshold; None without a threshold.
            The median is infinite if at least half of the trainings did not reach it, and the maximum if one
            did not.
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
        found |= {name: of.document(NAMES) for name, of in vars(self).items() if isinstance(of, Range)}
        wants = {"cores": self.setting.cores, "oversubscribed": self.setting.oversubscribed}
        return {**split_document(self.split), **wants, **found}


def split_document(split: Split) -> dict[str, Any]:
    """Write a split as JSON."""
    return {"setting": split.name, **split.numbers, "cores": split.cores}


def rows_of(found: Mapping[Setting, Outcome], threshold: float | None) -> list[Row]:
    """Sum up the trainings of each setting."""
    return [_row(setting, outcome, threshold) for setting, outcome in found.items()]


def _row(setting: Setting, outcome: Outcome, threshold: float | None) -> Row:
    trainings = outcome.trainings
    times = [math.inf if one.time_to_s is None else one.time_to_s for one in trainings]

    def over(values: list[float]) -> Range | None:
        return Range.of(values) if values else None

    return Row(
        setting=setting,
        repeats=len(trainings),
        rho=trainings[0].rho if trainings else None,
        produced_per_s=over([one.produced_per_s for one in trainings]),
        received_per_s=over([one.received_per_s for one in trainings]),
        consumed_per_s=over([one.consumed_per_s for one in trainings]),
        time_to_s=None if threshold is None else over(times),
        reached=0 if threshold is None else sum(map(math.isfinite, times)),
        trainings=tuple(trainings),
        failed=tuple(outcome.failed),
    )

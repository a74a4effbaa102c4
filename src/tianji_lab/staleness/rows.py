"""Figures of the staleness experiments: a row for each setting, and whether it differs from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tianji_cli.runs.comparison.statistics import LEAST_FOR_VERDICT, estimate
from tianji_lab.staleness.study import Setting
from tianji_lab.training import Training

Found = Mapping[Setting, Sequence[Training]]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interquartile mean over seeds and its 95 % interval.

    Attributes:
        at_least: some trainings ended before the threshold; the three values are lower bounds.
    """

    iqm: float
    low: float
    high: float
    at_least: bool = False

    def overlaps(self, other: Interval) -> bool:
        """Whether the intervals have a value in common."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Results of one setting.

    Attributes:
        mapping: "recommended" or "poor".
        samples: "New", or "Lag" and the rollouts that the buffer holds.
        lag: rollouts that the buffer holds.
        reached: trainings that reached the threshold. The others count as if they had reached it at their
            end, so that time and steps are lower bounds.
        time_to_s: seconds from the first environment step to the threshold.
        steps_to: environment steps to the threshold.
        mean_100: mean return of the last 100 episodes of a training.
        staleness: mean policy lag of the samples used, in versions.
        produced_per_s: environment steps made per second.
        consumed_per_s: sample uses per second.
        times_the_first: ``time_to_s`` over that of the first setting; None if that is only a lower bound.
        overlaps_first: whether the two settings' intervals have times in common; None without a verdict.
        no_verdict: why there is no verdict; empty if there is one.
    """

    mapping: str
    samples: str
    lag: int
    overrides: tuple[str, ...]
    seeds: int
    reached: int
    time_to_s: Interval
    steps_to: Interval
    mean_100: Interval
    staleness: Interval
    produced_per_s: Interval
    consumed_per_s: Interval
    times_the_first: float | None
    overlaps_first: bool | None = None
    no_verdict: str = ""

    @property
    def name(self) -> str:
        """Name of the samples, and of the mapping unless it is the recommended one."""
        return (
            self.samples if self.mapping == "recommended" else f"{self.samples} in the {self.mapping} mapping"
        )


def rows_of(found: Found) -> list[Row]:
    """Sum up the trainings of each setting."""
    first: Interval | None = None
    rows = []
    for setting, trainings in found.items():
        reached = sum(training.reached for training in trainings)
        at_least = reached < len(trainings)
        time_to_s = _interval(trainings, "seconds_until", at_least=at_least)
        first = first or time_to_s
        rows.append(
            Row(
                mapping=setting.mapping,
                samples=setting.samples,
                lag=setting.lag,
                overrides=setting.overrides,
                seeds=len(trainings),
                reached=reached,
                time_to_s=time_to_s,
                steps_to=_interval(trainings, "steps_until", at_least=at_least),
                mean_100=_interval(trainings, "mean_100"),
                staleness=_interval(trainings, "staleness"),
                produced_per_s=_interval(trainings, "produced_per_s"),
                consumed_per_s=_interval(trainings, "consumed_per_s"),
                times_the_first=None if first.at_least else time_to_s.iqm / first.iqm,
            )
        )
    return rows


def judged(rows: Sequence[Row], warnings: Sequence[str]) -> list[Row]:
    """Judge whether each setting's interval overlaps the first setting's; notes why there is no verdict."""
    first = rows[0]
    return [
        replace(row, no_verdict=why)
        if (why := _no_verdict(row, first, warnings))
        else replace(row, overlaps_first=row.time_to_s.overlaps(first.time_to_s))
        for row in rows
    ]


def _no_verdict(row: Row, first: Row, warnings: Sequence[str]) -> str:
    if row.seeds < LEAST_FOR_VERDICT:
        return f"{row.seeds} seeds, and {LEAST_FOR_VERDICT} are the least"
    if warnings:
        return "the header has warnings"
    for one in (first, row):
        if one.time_to_s.low == one.time_to_s.high:
            return f"the interval of {one.name} has no width"
    return ""


def _interval(trainings: Sequence[Training], name: str, *, at_least: bool = False) -> Interval:
    found = estimate(np.array([getattr(training, name) for training in trainings]))
    return Interval(float(found.iqm), float(found.low), float(found.high), at_least)

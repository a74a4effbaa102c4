"""Comparison of groups of runs.

- The *final* return is that of the evaluation at the end, where each run has one of which nothing was cut
  off; else the mean of the last 100 training episodes, of all groups alike.
- *Curves* show evaluations during training, where each run has two of them; else training episodes. A group's
  curve goes as far as its shortest run. A run that ended because it had reached its goal is not short: it
  keeps its last return, as far as the group's others go, or as far as the last of them if all have.
- The *area* is that under the curve over its length, the mean return on the way, where the curves of all runs
  of all groups are known. A group that reaches its goal sooner has more area, and not less for having
  stopped.
- *Times* to a threshold are of training episodes, as ``time_to`` of ``summary.json``. A run that has not
  reached it is slower than all that have, by an unknown amount: so the interquartile mean is known if no
  more than the slowest quarter has not reached it.
- A group is *better* than the first, in final returns or in areas, if its runs exceed the first group's,
  P(X > Y) with ties counting half, and the interval of P does not contain one half. A run that stopped at
  its goal might have come further, so a group with such runs is never worse in final returns. In areas
  it may be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from tianji_cli.quantities import exact, finite, several
from tianji_cli.runs.comparison.curves import Curve, Over, first_at, mean_height, stretch, values_on
from tianji_cli.runs.comparison.groups import Group, group_runs
from tianji_cli.runs.comparison.runs import ComparedRun, listed
from tianji_cli.runs.comparison.statistics import (
    LEAST_FOR_INTERVAL,
    LEAST_FOR_VERDICT,
    Array,
    Estimate,
    Interval,
    estimate,
    interval,
    performance_profile,
    probability_of_improvement,
)

POINTS: Final = 200
"""Points of a group's curve."""
TAUS: Final = 101
"""Points of a performance profile."""
RESAMPLES: Final = 2000
"""Bootstrap resamples for each point of a curve or a profile."""
LITTLE: Final = 0.5
"""A warning says so if areas cover a smaller share of the longest curve."""
LEAST_EVALUATIONS: Final = 2
"""Fewest evaluations of a run that make a curve."""

ReturnsOf = Literal["evaluation", "mean_100"]
Verdict = Literal["better", "worse", "undecided"]
Measure = Literal["final", "area"]


@dataclass(frozen=True)
class Times(Interval):
    """Times of a group's runs to a threshold, in seconds or env steps.

    Attributes:
        reached: number of runs that have reached it.
        of: number of runs.
    """

    reached: int
    of: int


@dataclass(frozen=True)
class Better:
    """A group compared with the first one.

    Attributes:
        p: probability that one of its runs exceeds one of the first group's.
        low, high: 95 % interval of ``p``; None where a group has one run.
        verdict: the verdict; None if there is none.
        no_verdict: reason for the lack of a verdict; "" if there is one.
    """

    p: float
    low: float | None
    high: float | None
    verdict: Verdict | None
    no_verdict: str


@dataclass(frozen=True)
class GroupCurve:
    """A group's curve on a grid.

    Attributes:
        x: env steps or seconds, ``[points]``.
        band: interquartile means; low and high are NaN where there is one run.
        kept_from: first place behind which a run keeps the return of its reached goal; None if no run does.
    """

    x: Array
    band: Estimate
    kept_from: float | None


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of one group.

    Attributes:
        area: None where the curves of all groups have no common stretch.
        time_to: seconds to each threshold.
        steps_to: env steps to each threshold.
        better: comparison with the first group, in each ``Measure``; empty for the first group itself.
        curves: curves over env steps and over seconds, where its runs have a common stretch.
        profile: share of its runs with a final return above each tau.
    """

    group: Group
    final: Interval
    area: Interval | None
    time_to: Mapping[float, Times]
    steps_to: Mapping[float, Times]
    better: Mapping[Measure, Better]
    curves: Mapping[Over, GroupCurve]
    profile: Estimate

    @property
    def name(self) -> str:
        """Name of the group."""
        return self.group.name


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Results of all groups.

    Attributes:
        over: horizontal axis of areas, and unit of the times in tables.
        final_of: source of final returns: the "evaluation" at the end, or "mean_100".
        curves_of: source of curves: each "evaluation" during training, or "mean_100".
        between: ends of the stretch under which areas lie; None if there are no areas.
        taus: grid of the profiles, ``[taus]``.
        warnings: sentences that call the figures into question.
    """

    environment: str
    over: Over
    final_of: ReturnsOf
    curves_of: ReturnsOf
    between: tuple[float, float] | None
    taus: Array
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    @property
    def thresholds(self) -> tuple[float, ...]:
        """Thresholds of the times, ascending."""
        return tuple(self.rows[0].time_to)


def compare(runs: Sequence[ComparedRun], over: Over, warnings: Sequence[str] = ()) -> Comparison:
    """Compare runs of one environment: each group with the first one."""
    groups = group_runs(runs)
    final_of: ReturnsOf = "mean_100" if any(one.evaluation is None for one in runs) else "evaluation"
    few = any(len(one.evaluations.returns) < LEAST_EVALUATIONS for one in runs)
    curves_of: ReturnsOf = "mean_100" if few else "evaluation"

    def curve(one: ComparedRun) -> Curve:
        return one.training if curves_of == "mean_100" else one.evaluations

    def final(one: ComparedRun) -> float:
        found = one.training.returns[-1] if final_of == "mean_100" else one.evaluation
        assert found is not None, "each has an evaluation"
        return found

    first, last = stretch([curve(one) for one in runs], over, [one.reached_goal for one in runs])
    between = (first, last) if first < last else None
    finals = [np.array([final(one) for one in group.runs]) for group in groups]
    areas = [
        np.array([mean_height(curve(one), over, first, last, held=one.reached_goal) for one in group.runs])
        for group in groups
        if first < last
    ]
    measured: dict[Measure, list[Array]] = {"final": finals} | ({"area": areas} if areas else {})
    taus = _taus(np.concatenate(finals))
    seconds = {threshold: _seconds_to(runs, threshold) for threshold in _thresholds(runs)}
    rows = [
        Row(
            group=group,
            final=interval(finals[place]),
            area=interval(areas[place]) if areas else None,
            time_to={threshold: _times(group, of) for threshold, of in seconds.items()},
            steps_to={threshold: _times(group, of, in_steps=True) for threshold, of in seconds.items()},
            better={
                measure: _better(measure, (group, of[place]), (groups[0], of[0]))
                for measure, of in measured.items()
                if place > 0
            },
            curves=_curves(group, curve),
            profile=_with_interval(performance_profile(finals[place], taus, resamples=RESAMPLES), group),
        )
        for place, group in enumerate(groups)
    ]
    sentences = [*warnings, *_warnings(groups, final_of), *_of_stretch(runs, curve, over, between)]
    return Comparison(
        environment=runs[0].environment,
        over=over,
        final_of=final_of,
        curves_of=curves_of,
        between=between,
        taus=taus,
        rows=tuple(rows),
        warnings=tuple(sentences),
    )


# -- final returns -------------------------------------------------------------------------------------


def _better(measure: Measure, ours: tuple[Group, Array], first: tuple[Group, Array]) -> Better:
    (group, values), (reference, others) = ours, first
    found, fewest = probability_of_improvement(values, others), min(len(values), len(others))
    p, low, high = float(found.value), float(found.low), float(found.high)
    if fewest < LEAST_FOR_INTERVAL:
        return Better(p, None, None, None, _too_few(fewest))
    verdict: Verdict = "better" if low > 0.5 else "worse" if high < 0.5 else "undecided"
    why = _too_few(fewest) if fewest < LEAST_FOR_VERDICT else ""
    behind = reference if verdict == "better" else group
    if not why and measure == "final" and verdict != "undecided":
        stopped = any(one.reached_goal for one in behind.runs)
        why = f"runs of {behind.name} stopped at their goal and might have come further" if stopped else ""
    return Better(p, low, high, None if why else verdict, why)


def _too_few(runs: int) -> str:
    return f"{several(runs, 'run')}, and {LEAST_FOR_VERDICT} are the least"


def _taus(finals: Array) -> Array:
    """Grid of returns from below the lowest final return to above the highest."""
    low, high = finals.min(), finals.max()
    beyond = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return np.linspace(low - beyond, high + beyond, TAUS)


# -- curves --------------------------------------------------------------------------------------------


def _curves(group: Group, curve: Callable[[ComparedRun], Curve]) -> dict[Over, GroupCurve]:
    found: dict[Over, GroupCurve] = {}
    curves, held = [curve(one) for one in group.runs], [one.reached_goal for one in group.runs]
    ways: tuple[Over, ...] = ("env_steps", "train_s")
    for over in ways:
        first, last = stretch(curves, over, held)
        if first >= last:
            continue
        x = np.linspace(first, last, POINTS)
        values = np.stack(
            [values_on(x, of, over, held=keeps) for of, keeps in zip(curves, held, strict=True)]
        )
        band = _with_interval(estimate(values, resamples=RESAMPLES), group)
        ends = [of.over(over)[-1] for of, keeps in zip(curves, held, strict=True) if keeps]
        kept_from = min((float(end) for end in ends if end < last), default=None)
        found[over] = GroupCurve(x, band, kept_from)
    return found


def _with_interval(found: Estimate, group: Group) -> Estimate:
    """Return an estimate as it is, or with bounds of NaN where the group has one run."""
    if len(group.runs) >= LEAST_FOR_INTERVAL:
        return found
    nothing = np.full_like(found.value, np.nan)
    return Estimate(found.value, nothing, nothing)


# -- times ---------------------------------------------------------------------------------------------


def _thresholds(runs: Sequence[ComparedRun]) -> list[float]:
    """Thresholds that configs name, and mean returns at which runs stop; ascending."""
    found = set()
    for one in runs:
        experiment = one.section("experiment")
        stop = experiment.get("stop")
        goal = stop.get("mean_return") if isinstance(stop, Mapping) else None
        named = experiment.get("thresholds")
        values = [*named, goal] if isinstance(named, list) else [goal]
        found |= {float(value) for value in values if isinstance(value, int | float)}
    return sorted(found)


def _seconds_to(runs: Sequence[ComparedRun], threshold: float) -> dict[ComparedRun, float]:
    """Seconds to a threshold, by run; infinite for a run that has not reached it.

    They are exact where each run has watched for this threshold; else all are interpolated between two
    reports.
    """
    exactly = all(threshold in one.time_to for one in runs)
    found = {}
    for one in runs:
        seconds = one.time_to[threshold] if exactly else first_at(one.best, threshold)
        found[one] = math.inf if seconds is None else seconds
    return found


def _times(group: Group, seconds: Mapping[ComparedRun, float], *, in_steps: bool = False) -> Times:
    values = np.array([seconds[one] for one in group.runs])
    reached = np.isfinite(values)
    if in_steps:
        pairs = zip(group.runs, values, strict=True)
        values = np.array([one.training.steps_at(s) if math.isfinite(s) else s for one, s in pairs])
    found = interval(values)
    return Times(found.iqm, found.low, found.high, int(reached.sum()), len(values))


# -- what speaks against them --------------------------------------------------------------------------


def _warnings(groups: Sequence[Group], final_of: ReturnsOf) -> Iterator[str]:
    runs = [one for group in groups for one in group.runs]
    for status, words in (
        ("running", "still running, counted by what there is so far"),
        ("killed", "ended without a result, counted by what was written"),
        ("stopped", "stopped before the end"),
        ("failed", "failed before the end"),
    ):
        if those := [one for one in runs if one.status == status]:
            yield f"{several(len(those), 'run')} {words}: {listed(those)}"
    if final_of == "mean_100" and (cut_off := [one for one in runs if one.was_cut_off]):
        yield (
            f"evaluations of {listed(cut_off)} were cut off, so final returns are those of training: "
            "experiment.eval_max_s and eval_max_steps may be larger"
        )
    keys = dict.fromkeys(key for group in groups for key in group.differs)
    ways = ("environment.options", "environment.wrappers", "environment.max_episode_steps")
    if odd := [key for key in keys if key.startswith(ways)]:
        yield f"groups differ in {', '.join(odd)}: their returns need not mean the same"
    for group in groups:
        seeds = [one.seed for one in group.runs if one.seed is not None]
        if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
            which = ", ".join(map(str, twice))
            yield f"{group.name} has runs of the same seed ({which}), which are not independent"
        modules = [one.section("experiment").get("extensions") for one in group.runs]
        if any(one != modules[0] for one in modules):
            yield f"runs of {group.name} took modules from different directories (experiment.extensions)"


def _of_stretch(
    runs: Sequence[ComparedRun],
    curve: Callable[[ComparedRun], Curve],
    over: Over,
    between: tuple[float, float] | None,
) -> Iterator[str]:
    """Warn if areas cover little of the curves."""
    if between is None:
        yield "no stretch is common to the curves of all runs, so there are no areas"
        return
    ends = {one: curve(one).over(over)[-1] for one in runs}
    shortest = min((one for one in runs if not one.reached_goal), key=ends.__getitem__, default=None)
    if shortest is not None and between[1] < LITTLE * max(ends.values()):
        yield (
            f"areas are of {between[1] / max(ends.values()):.0%} of the longest curve: that of "
            f"{shortest.name} ends there"
        )


# -- as a document -------------------------------------------------------------------------------------


def document_of(found: Comparison) -> dict[str, Any]:
    """Return the comparison as a JSON object; see docs/compare.md."""
    return {
        "schema": 1,
        "environment": found.environment,
        "warnings": list(found.warnings),
        "by": "steps" if found.over == "env_steps" else "time",
        "final_of": found.final_of,
        "curves_of": found.curves_of,
        "area_between": None if found.between is None else list(found.between),
        "reference": found.rows[0].name,
        "rows": [_row(row) for row in found.rows],
        "taus": found.taus.tolist(),
    }


def _row(row: Row) -> dict[str, Any]:
    runs = row.group.runs
    return {
        "name": row.name,
        "runs": len(runs),
        "final": asdict(row.final),
        "area": None if row.area is None else asdict(row.area),
        "time_to": {exact(threshold): asdict(times) for threshold, times in row.time_to.items()},
        "steps_to": {exact(threshold): asdict(times) for threshold, times in row.steps_to.items()},
        "better": {measure: asdict(better) for measure, better in row.better.items()} or None,
        "differs": dict(row.group.differs),
        "of": [{"run": str(one.run.path.absolute()), "seed": one.seed, "status": one.status} for one in runs],
        "curves": {over: _curve(over, of) for over, of in row.curves.items()},
        "profile": _lists(row.profile, "p"),
    }


def _curve(over: Over, of: GroupCurve) -> dict[str, Any]:
    return {over: of.x.tolist(), **_lists(of.band, "iqm"), "kept_from": of.kept_from}


def _lists(of: Estimate, name: str) -> dict[str, Any]:
    return {
        key: finite(array.tolist()) for key, array in ((name, of.value), ("low", of.low), ("high", of.high))
    }

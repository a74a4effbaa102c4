"""What the staleness experiments found, as a table for people and as JSON and a plot for everything else.

The JSON has ``schema`` (1), ``environment``, ``warnings``, ``figure``, ``config``, ``threshold``, ``rows`` (a
``Row`` for each setting, its estimates as ``{iqm, low, high, at_least}``) and ``trainings`` (each run's
figures and its learning curve, with ``mapping`` and ``lag``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from tianji_cli.files.directories import temporary_directory
from tianji_cli.quantities import count, number
from tianji_cli.runs.comparison.statistics import LEAST_FOR_VERDICT, estimate
from tianji_cli.runs.results import Result, check_places, document_head, print_header
from tianji_cli.telemetry.tables import print_table
from tianji_lab.environment import busy_share, describe, warnings
from tianji_lab.staleness.study import Comparison, Setting, measure
from tianji_lab.training import Training

Found = Mapping[Setting, Sequence[Training]]


@dataclass(frozen=True, slots=True)
class Interval:
    """An interquartile mean over seeds and its 95 % interval.

    Attributes:
        at_least: some trainings ended before; the true three values are no less than these.
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
    """What was found of one setting.

    Attributes:
        mapping: "recommended" or "poor".
        samples: "New", or "Lag" and the rollouts that the buffer holds.
        lag: these rollouts.
        reached: those that reached the threshold. The others count as if they had at their end, so that the
            true time and steps are no less than these.
        time_to_s: seconds from the first environment step to the threshold.
        steps_to: environment steps to the threshold.
        mean_100: mean return of the last 100 episodes of a training.
        staleness: mean policy lag of the samples used, in versions.
        produced_per_s: environment steps made per second.
        consumed_per_s: sample uses per second.
        times_the_first: ``time_to_s`` over that of the first setting; None if of that one a least is known.
        overlaps_first: the intervals of the two have times in common; None for no verdict.
        no_verdict: why there is none, "" if there is one.
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


def rows_of(found: Found) -> list[Row]:
    """Sum up the trainings of each setting."""
    first: Interval | None = None
    rows = []
    for setting, trainings in found.items():
        reached = sum(training.reached for training in trainings)
        at_least = reached < len(trainings)
        time_to_s = _interval(trainings, "time_to_s", at_least=at_least)
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
                steps_to=_interval(trainings, "steps_to", at_least=at_least),
                mean_100=_interval(trainings, "mean_100"),
                staleness=_interval(trainings, "staleness"),
                produced_per_s=_interval(trainings, "produced_per_s"),
                consumed_per_s=_interval(trainings, "consumed_per_s"),
                times_the_first=None if first.at_least else time_to_s.iqm / first.iqm,
            )
        )
    return rows


def judged(rows: Sequence[Row], warnings: Sequence[str]) -> list[Row]:
    """Judge whether each setting's interval overlaps that of the first, or why there is no verdict."""
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
            return f"the interval of {_name(one)} has no width"
    return ""


def _interval(trainings: Sequence[Training], name: str, *, at_least: bool = False) -> Interval:
    found = estimate(np.array([getattr(training, name) for training in trainings]))
    return Interval(float(found.iqm), float(found.low), float(found.high), at_least)


def cautions(rows: Sequence[Row], threshold: float) -> list[str]:
    """Name the settings whose times are too short."""
    return [
        f"{row.seeds - row.reached} of {row.seeds} trainings of {_name(row)} did not reach {threshold:g}: "
        "they count as if they had at their end, and the true times are longer"
        for row in rows
        if row.reached < row.seeds
    ]


def print_rows(rows: Sequence[Row], comparison: Comparison) -> None:
    """Print a table of the settings, and how each of them lies to the first."""
    threshold = f"{comparison.threshold:g}"
    sys.stdout.write(
        f"# {comparison.config}, seeds {comparison.seeds[0]} to {comparison.seeds[-1]}; interquartile means "
        "[95% bootstrap intervals]\n"
    )
    for mapping in dict.fromkeys(row.mapping for row in rows if row.overrides):
        overrides = next(row.overrides for row in rows if row.mapping == mapping)
        sys.stdout.write(f"# {mapping} mapping: {', '.join(overrides)}\n")
    if comparison.job.fragments_per_rollout == 1 and any(row.lag > 1 for row in rows):
        sys.stdout.write(
            "# a rollout is one fragment, all new or all old; a smaller actor.send_size would mix them\n"
        )
    headings = ["mapping", "samples", f"s to {threshold}", f"steps to {threshold}", "reached", "last return"]
    headings += ["lag in versions", "produced/s", "consumed/s"]
    cells = [
        [
            row.mapping,
            row.samples,
            _cell(row.time_to_s),
            _cell(row.steps_to),
            f"{row.reached}/{row.seeds}",
            _cell(row.mean_100),
            number(row.staleness.iqm),
            count(row.produced_per_s.iqm),
            count(row.consumed_per_s.iqm),
        ]
        for row in rows
    ]
    print_table(headings, cells, f"figure {comparison.figure}", right=range(2, len(headings)))
    for row in rows[1:]:
        sys.stdout.write(f"{_against(row, rows[0], threshold)}\n")


def _against(row: Row, first: Row, threshold: str) -> str:
    """Describe how a setting lies to the first, as far as that is known."""
    if row.times_the_first is None:
        times = f"how many times as long to {threshold} as {_name(first)} {_name(row)} took is not known"
    else:
        about = "at least " if row.time_to_s.at_least else ""
        factor = f"{about}{row.times_the_first:.2f} times as long"
        times = f"{_name(row)} took {factor} to {threshold} as {_name(first)}"
    if row.no_verdict:
        return f"{times}; no verdict: {row.no_verdict}"
    return f"{times}; the intervals {'overlap' if row.overlaps_first else 'do not overlap'}"


def _cell(interval: Interval) -> str:
    iqm, low, high = (
        count(value) if value >= 1e4 else number(value)
        for value in (interval.iqm, interval.low, interval.high)
    )
    return f">= {iqm} [>= {low}, ?]" if interval.at_least else f"{iqm} [{low}, {high}]"


def _name(row: Row) -> str:
    return row.samples if row.mapping == "recommended" else f"{row.samples} in the {row.mapping} mapping"


def result_of(
    comparison: Comparison,
    environment: Mapping[str, str],
    warnings: Sequence[str],
    rows: Sequence[Row],
    found: Found,
) -> Result:
    """Put everything into files, ``figure-12a`` or ``figure-6d``; see the head of this module."""
    document = {
        **document_head(environment, warnings),
        "figure": comparison.figure,
        "config": comparison.config,
        "overrides": list(comparison.overrides),
        "threshold": comparison.threshold,
        "rows": [asdict(row) for row in rows],
        "trainings": [
            {"mapping": setting.mapping, "lag": setting.lag, **asdict(training)}
            for setting, trainings in found.items()
            for training in trainings
        ],
    }

    def draw(path: Path) -> None:
        from tianji_lab.staleness import plots  # noqa: PLC0415 - imports matplotlib, a second

        plots.draw(found, rows, comparison.threshold, path)

    name = f"figure-{comparison.figure}"
    return Result(name=name, document=document, figures={name: draw})


def compare(comparison: Comparison, *, out: Path | None, json_to: str | None, quiet: bool) -> None:
    """Train, and show what was found.

    Raises:
        TianjiError: a training failed, or the results cannot be written: there are no figures.
    """
    check_places(out, json_to)
    busy = busy_share()
    with temporary_directory() as temporary:
        found = measure(comparison, temporary if out is None else out / "runs", quiet=quiet)
    rows = rows_of(found)
    environment = describe([comparison.job.distribution.transport.local], ["here"], None, busy)
    said = [*warnings(busy), *cautions(rows, comparison.threshold)]
    rows = judged(rows, said)
    result_of(comparison, environment, said, rows, found).hand_over(out=out, json_to=json_to)
    if json_to != "-":
        print_header(environment, said)
        print_rows(rows, comparison)

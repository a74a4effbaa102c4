"""Results of the staleness experiments: a table for people, and JSON and a plot for everything else.

The JSON has ``schema`` (1), ``environment``, ``warnings``, ``figure``, ``config``, ``threshold``, ``rows`` (a
``Row`` for each setting, its estimates as ``{iqm, low, high, at_least}``) and ``trainings`` (each run's
figures and its learning curve, with ``mapping`` and ``lag``).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from tianji_cli.quantities import count, number
from tianji_cli.runs.results import Result, check_places, document_head, print_header
from tianji_cli.telemetry.tables import print_table
from tianji_lab.environment import busy_share, describe, warnings
from tianji_lab.ranges import Range
from tianji_lab.staleness.study import Comparison, Row, Setting, cautions, rows_of
from tianji_lab.training import Training, read_learned, train_in_turns


def print_rows(rows: Sequence[Row], comparison: Comparison) -> None:
    """Print a table of the settings, and compare each setting with the first."""
    threshold = f"{comparison.threshold:g}"
    sys.stdout.write(
        f"# {comparison.config}, seeds {comparison.seeds[0]} to {comparison.seeds[-1]}; interquartile means "
        "[95% bootstrap intervals]\n"
    )
    settings = [row.setting for row in rows]
    for mapping, overrides in {one.mapping: one.overrides for one in settings if one.overrides}.items():
        sys.stdout.write(f"# {mapping} mapping: {', '.join(overrides)}\n")
    if comparison.job.fragments_per_rollout == 1 and any(setting.lag > 1 for setting in settings):
        sys.stdout.write(
            "# a rollout is one fragment, all new or all old; a smaller actor.send_size would mix them\n"
        )
    headings = ["mapping", "samples", f"s to {threshold}", f"steps to {threshold}", "reached", "last return"]
    headings += ["lag in versions", "produced/s", "consumed/s"]
    cells = [
        [
            row.setting.mapping,
            row.setting.samples,
            _cell(row.time_to_s, at_least=row.at_least),
            _cell(row.steps_to, at_least=row.at_least),
            f"{row.reached}/{row.seeds}",
            _cell(row.mean_100),
            number(row.staleness.middle),
            count(row.produced_per_s.middle),
            count(row.consumed_per_s.middle),
        ]
        for row in rows
    ]
    print_table(headings, cells, f"figure {comparison.figure}", right=range(2, len(headings)))
    for row in rows[1:]:
        sys.stdout.write(f"{_against(row, rows[0], threshold)}\n")


def _against(row: Row, first: Row, threshold: str) -> str:
    """Compare a setting with the first in a sentence, as far as the times are known."""
    name, of_first = row.setting.words, first.setting.words
    if row.times_the_first is None:
        times = f"how many times as long to {threshold} as {of_first} {name} took is not known"
    else:
        about = "at least " if row.at_least else ""
        times = f"{name} took {about}{row.times_the_first:.2f} times as long to {threshold} as {of_first}"
    if row.no_verdict:
        return f"{times}; no verdict: {row.no_verdict}"
    return f"{times}; the intervals {'overlap' if row.overlaps_first else 'do not overlap'}"


def _cell(of: Range, *, at_least: bool = False) -> str:
    def write(value: float) -> str:
        return count(value) if value >= 1e4 else number(value)

    return f">= {write(of.middle)} [>= {write(of.low)}, ?]" if at_least else of.written(write)


def result_of(
    comparison: Comparison, environment: Mapping[str, str], warnings: Sequence[str], rows: Sequence[Row]
) -> Result:
    """Build the result's files, ``figure-12a`` or ``figure-6d``; see the head of this module."""
    document = {
        **document_head(environment, warnings),
        "figure": comparison.figure,
        "config": comparison.config,
        "overrides": list(comparison.overrides),
        "threshold": comparison.threshold,
        "rows": [row.document() for row in rows],
        "trainings": [_training(row.setting, training) for row in rows for training in row.trainings],
    }

    def draw(path: Path) -> None:
        from tianji_lab.staleness import plots  # noqa: PLC0415 - imports matplotlib, a second

        plots.draw(rows, comparison.threshold, path)

    name = f"figure-{comparison.figure}"
    return Result(name=name, document=document, figures={name: draw})


def _training(setting: Setting, training: Training) -> dict[str, Any]:
    """Build the object of a training; one that did not reach the threshold counts with its end."""
    until = {"time_to_s": training.seconds_until, "steps_to": training.steps_until}
    of_setting = {"mapping": setting.mapping, "lag": setting.lag}
    return {**of_setting, **asdict(training), "reached": training.reached, **until}


def compare(comparison: Comparison, *, out: Path | None, json_to: str | None, quiet: bool) -> None:
    """Train, and show the results.

    Raises:
        TianjiError: a training failed, or the results cannot be written: there are no figures.
    """
    check_places(out, json_to)
    busy = busy_share()
    outcomes = train_in_turns(
        {setting: comparison.entry(setting) for setting in comparison.settings},
        comparison.seeds,
        None if out is None else out / "runs",
        read=partial(read_learned, threshold=comparison.threshold),
        threshold=comparison.threshold,
        quiet=quiet,
    )
    found = {setting: outcome.trainings for setting, outcome in outcomes.items()}
    environment = describe([comparison.job.distribution.transport.local], busy)
    all_warnings = [*warnings(busy), *cautions(found, comparison.threshold)]
    rows = rows_of(found, all_warnings)
    result_of(comparison, environment, all_warnings, rows).hand_over(out=out, json_to=json_to)
    if json_to != "-":
        print_header(environment, all_warnings)
        print_rows(rows, comparison)

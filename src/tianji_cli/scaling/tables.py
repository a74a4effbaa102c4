"""The tables of the scaling experiments: what was trained, what was simulated, and the paper's Table 1."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import median

from tianji_cli.scaling.report import SAME_TRAININGS, Range, Row
from tianji_cli.scaling.simulation import Simulations
from tianji_cli.scaling.study import Study
from tianji_cli.telemetry.quantities import count, number
from tianji_cli.telemetry.table import print_table

MARK = "*"
"""Behind the name of a setting that wants more cores than there are."""


def print_all(study: Study, rows: Sequence[Row], simulations: Simulations) -> None:
    """Print what was found, on stdout.

    Args:
        study: what was trained.
        rows: of the settings.
        simulations: the simulated points.
    """
    seeds = study.seeds
    which = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    sys.stdout.write(f"# {study.config}, {which}, {study.seconds:g} s each; medians [least, most]\n")
    if study.figure in SAME_TRAININGS:
        _print_table_1(study, rows)
    else:
        _print_rows(study, rows)
    _print_simulated(simulations)


def _print_rows(study: Study, rows: Sequence[Row]) -> None:
    headings = ["setting", "learner cores", "cores", "produced/s", "received/s", "uses/s"]
    if study.threshold is not None:
        headings.append(f"s to {study.threshold:g}")
    cells = []
    for row in rows:
        rates = (row.produced_per_s, row.received_per_s, row.consumed_per_s)
        cells.append(
            [
                row.setting + MARK * row.oversubscribed,
                str(row.learner_cores),
                str(row.cores),
                *map(_rate, rates),
                *([] if study.threshold is None else [time_cell(row, study.seconds)]),
            ]
        )
    print_table(headings, cells, f"figure {study.figure}: {study.of.title}", right=range(1, len(headings)))


def _print_table_1(study: Study, rows: Sequence[Row]) -> None:
    """Print a line for each training, as in the paper, and their medians below them."""
    headings = ["Setting", "Final time (s)", "Production (steps/s)", "Consumption (steps/s)"]
    cells = []
    for row in rows:
        name = row.setting + MARK * row.oversubscribed
        for one in row.trainings:
            time = f"not in {study.seconds:g} s" if one.time_to_s is None else f"{one.time_to_s:.2f}"
            cells.append([name, time, f"{one.produced_per_s:.2f}", f"{one.consumed_per_s / one.rho:.2f}"])
        if row.trainings:
            production = median(one.produced_per_s for one in row.trainings)
            consumption = median(one.consumed_per_s / one.rho for one in row.trainings)
            time = time_cell(row, study.seconds)
            cells.append([f"{name} median", time, f"{production:.2f}", f"{consumption:.2f}"])
        else:
            cells.append([name, "", "", ""])
    sys.stdout.write(
        f"# final time: to a mean return of {study.threshold:g}; consumption: sample uses a second over rho, "
        "the uses that each sample is to get\n"
    )
    print_table(headings, cells, f"table 1: {study.of.title}", right=range(1, 4))


def _print_simulated(simulations: Simulations) -> None:
    if not simulations.points:
        return
    sys.stdout.write("\n# SIMULATED, from what was measured on this machine:\n")
    for assumption in simulations.assumes:
        sys.stdout.write(f"# - {assumption}\n")
    cells = []
    for point in simulations.points:
        came = point.came
        rates = (came.production, came.reception, came.consumption) if came else None
        cells.append(
            [
                point.split.name,
                str(point.split.learner_cores),
                str(point.split.cores),
                str(point.nodes),
                *(map(count, rates) if rates else (point.why_not, "", "")),
            ]
        )
    headings = ["simulated", "learner cores", "cores", "nodes", "produced/s", "received/s", "uses/s"]
    print_table(headings, cells, "simulated, a core for every role", right=range(1, len(headings)))


def time_cell(row: Row, seconds: float) -> str:
    """Write the times to the threshold; one that was never seen is no number.

    Args:
        row: of a setting.
        seconds: that its trainings lasted.
    """
    times, never = row.time_to_s, f"not in {seconds:g} s"
    if times is None:
        return ""
    if times.median is None:
        return never if times.min is None else f"{never} ({row.reached} of {row.repeats} in {_of(times.min)})"
    return f"{_of(times.median)} [{_of(times.min)}, {never if times.max is None else _of(times.max)}]"


def _of(value: float | None) -> str:
    assert value is not None, "a median has a least value below it"
    return number(value)


def _rate(of: Range | None) -> str:
    if of is None:
        return "no figures"
    assert of.median is not None, "all trainings with figures have rates"
    return f"{count(of.median)} [{count(of.min or 0.0)}, {count(of.max or 0.0)}]"

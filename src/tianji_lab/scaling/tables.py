"""The tables of the scaling experiments: what was trained, what was simulated, and the paper's Table 1."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from statistics import median
from typing import Final

from tianji_cli.quantities import count, exact, number
from tianji_cli.telemetry.table import print_table
from tianji_lab.scaling.report import SAME_TRAININGS, Range, Row, ratios
from tianji_lab.scaling.simulation import Simulated, Simulations
from tianji_lab.scaling.study import Study

RECEIVED: Final = (
    "a rollout's steps count as its first update begins, so that reception keeps the learner's pace; "
    "a replay's count as they come"
)
MARK: Final = "*"
"""Behind the name of a setting that wants more cores than there are."""
EXTRAPOLATED: Final = "~"
"""Behind the name of a simulated point some of whose costs were reckoned."""
NUMBERS: Final = re.compile(r"\d+")


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
    _print_beside(rows, simulations)


def _print_rows(study: Study, rows: Sequence[Row]) -> None:
    headings = ["setting", "learner cores", "cores", "produced/s", "received/s", "uses/s"]
    if study.threshold is not None:
        headings.append(f"s to {exact(study.threshold)}{_of_first(rows)}")
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
    sys.stdout.write(f"# received: {RECEIVED}\n")


def _of_first(rows: Sequence[Row]) -> str:
    return " (first of G groups)" if any(row.groups > 1 for row in rows) else ""


def _print_table_1(study: Study, rows: Sequence[Row]) -> None:
    """Print a line for each training, as in the paper, and their medians below them."""
    headings = [
        "Setting",
        "Final Time(s)",
        "Production Throughput(steps/s)",
        "Consumption Throughput(steps/s)",
    ]
    cells = []
    assert study.threshold is not None, "the table is of times to it"
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
        f"# final time: to a mean return of {exact(study.threshold)}{_of_first(rows)}; consumption: "
        "sample uses a second over rho, the uses that each sample is to get\n"
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
                point.split.name + EXTRAPOLATED * bool(point.extrapolated),
                str(point.split.learner_cores),
                str(point.split.cores),
                str(point.nodes),
                *(map(count, rates) if rates else (point.why_not, "", "")),
            ]
        )
    headings = ["simulated", "learner cores", "cores", "nodes", "produced/s", "received/s", "uses/s"]
    print_table(headings, cells, "simulated, a core for every role", right=range(1, len(headings)))
    if reckoned := _reckoned(simulations.points):
        sys.stdout.write(
            f"# {EXTRAPOLATED} extrapolated: some of its costs were reckoned and not measured:\n"
        )
        sys.stdout.writelines(f"#   - {what}\n" for what in reckoned)


def _reckoned(points: Sequence[Simulated]) -> list[str]:
    """List what was reckoned at any point, each once; where its numbers differ, those of the largest."""
    said = {NUMBERS.sub("", what): what for point in points for what in point.extrapolated}
    return list(said.values())


def _print_beside(rows: Sequence[Row], simulations: Simulations) -> None:
    """Print by how much measured rates differ from simulated ones, where a core was there for every role."""
    compared = {row.setting: found for row in rows if (found := ratios(row, simulations)) is not None}
    if not compared:
        return
    cells = [[name, *(f"{ratio:.2f}" for ratio in found.values())] for name, found in compared.items()]
    headings = ["measured / simulated", "produced", "received", "uses"]
    sys.stdout.write("\n")
    print_table(headings, cells, "measured over simulated", right=range(1, len(headings)))


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

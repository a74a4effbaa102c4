"""Results of the scaling experiments: a table for people, and JSON, CSV and a plot for everything else.

The JSON has ``schema`` (1), ``environment``, ``warnings``, ``figure``, ``config``, ``overrides``,
``threshold``, ``seconds``, ``cores``, ``rows`` (a ``Row`` for each setting with its ``trainings`` and those
that ``failed``), ``refused`` (settings that the config does not allow), ``predicted`` (points of the
prediction), ``prediction`` (its assumptions, and the machine) and ``measurements`` (which ``--from`` reads).
Times to the threshold are those of the first of the groups to reach it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from tianji_cli.errors import RunFailed, UsageError
from tianji_cli.quantities import count, exact, finite, number, several
from tianji_cli.runs.results import Result, Table, check_places, document_head, print_header
from tianji_cli.telemetry.tables import print_table
from tianji_lab.environment import busy_share, describe, warnings
from tianji_lab.profile.result import read_earlier
from tianji_lab.ranges import Range
from tianji_lab.scaling.prediction import Machines, Predicted, Predictions, predict_study
from tianji_lab.scaling.rows import NAMES, RANGES, Row, rows_of, split_document
from tianji_lab.scaling.study import Study, measure

SAME_TRAININGS: Final = frozenset({"table1", "12b"})
ENDS: Final = ("", "_min", "_max")
COLUMNS: Final = (
    *("kind", "setting", "groups", "learners", "learner_cores", "actors", "cores", "nodes", "oversubscribed"),
    "repeats",
    *(f"{name}{of}" for name in RANGES[:3] for of in ENDS),
    "rho",
    *(f"{RANGES[3]}{of}" for of in ENDS),
    "reached",
)
"""Columns of the CSV file. A cell is empty if its row does not have the figure."""


def cautions(study: Study, rows: Sequence[Row]) -> list[str]:
    """List reasons to trust the figures less."""
    reasons = []
    if oversubscribed := [row.setting for row in rows if row.setting.oversubscribed]:
        names = ", ".join(setting.name for setting in oversubscribed)
        verb = "asks" if len(oversubscribed) == 1 else "ask"
        hosts = 1 if study.others is None else 1 + len(study.others.names)
        where, them = ("", "them") if hosts == 1 else (f" on {hosts} hosts", "those of one of these")
        reasons.append(
            f"there are {several(study.cores, 'core')}{where}, and {names} {verb} for up to "
            f"{max(setting.cores for setting in oversubscribed)}: roles take turns on {them} "
            "(marked *), which says nothing of a machine with a core for each"
        )
    if study.others is not None:
        reasons.append("other hosts are taken to have as many cores as this one")
    reasons += [f"{split.name} was not trained: {why}" for split, why in study.refused.items()]
    if alone := [row.setting.name for row in rows if _never_averaged(row)]:
        reasons.append(
            f"the groups of {', '.join(alone)} were never averaged in some trainings, and learned each for "
            "itself: a higher --seconds or a shorter distribution.sync_interval would have them averaged"
        )
    for row in rows:
        if row.failed:
            of_all = row.repeats + len(row.failed)
            reasons.append(
                f"{len(row.failed)} of {several(of_all, 'training')} of {row.setting.name} gave no figures"
            )
    return reasons


def _never_averaged(row: Row) -> bool:
    averagings = [one.averaging for one in row.trainings if row.split.groups > 1]
    return any(averaging is None or not averaging["rounds"] for averaging in averagings)


def ratio(row: Row, predictions: Predictions) -> float | None:
    """Divide the measured sample uses by those predicted of the same split.

    Returns:
        None if there is nothing to compare: the point was not predicted, has no figures, or asks for more
        cores than there are (the prediction gives it all of them).
    """
    predicted = next((one.prediction for one in predictions.points if one.split == row.split), None)
    if predicted is None or row.setting.oversubscribed or row.consumed_per_s is None:
        return None
    return row.consumed_per_s.middle / predicted.throughput


def result_of(
    study: Study,
    environment: Mapping[str, str],
    warnings: Sequence[str],
    rows: Sequence[Row],
    predictions: Predictions,
) -> Result:
    """Build the result's files, ``figure-6a`` or ``table-1`` and ``figure-12b``; see the module's head."""
    document = {
        **document_head(environment, warnings),
        "figure": study.figure,
        "config": study.config,
        "overrides": list(study.overrides),
        "threshold": study.threshold,
        "seconds": study.seconds,
        "cores": study.cores,
        "rows": [{**row.document(), "over_predicted": ratio(row, predictions)} for row in rows],
        "refused": [{**split_document(split), "why": why} for split, why in study.refused.items()],
        "predicted": [_point(point) for point in predictions.points],
        "prediction": {
            "assumes": list(predictions.assumes),
            "rho": predictions.rho,
            "environment": dict(predictions.environment),
        },
        "measurements": predictions.measurements,
    }
    is_table = study.figure in SAME_TRAININGS

    def draw(path: Path) -> None:
        from tianji_lab.scaling import plots  # noqa: PLC0415 - imports matplotlib, a second

        (plots.draw_learning if is_table else plots.draw)(study, rows, predictions, path)

    figure = f"figure-{study.figure}"
    name = "table-1" if is_table else figure
    return Result(
        name=name,
        document=document,
        figures={"figure-12b" if is_table else figure: draw},
        tables={name: Table(COLUMNS, list(_csv_rows(document)))},
    )


def _point(point: Predicted) -> dict[str, Any]:
    prediction = point.prediction
    return {
        **split_document(point.split),
        "nodes": point.nodes,
        "produced_per_s": prediction.steps_per_s,
        "received_per_s": prediction.steps_per_s,
        "consumed_per_s": prediction.throughput,
        "limits": finite(prediction.limits),
        "bottleneck": prediction.bottleneck.kind,
        "extrapolated": list(point.extrapolated),
    }


def _csv_rows(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for row in document["rows"]:
        flat = {**row, "kind": "measured"}
        for name in RANGES:
            if row[name] is not None:
                flat |= {f"{name}{of}": row[name][key] for of, key in zip(ENDS, NAMES, strict=True)}
        yield flat
    rho = document["prediction"]["rho"]
    for point in document["predicted"]:
        yield {**point, "kind": "predicted", "rho": rho}


RECEIVED: Final = (
    "a rollout's steps count as its first update begins, so that reception keeps the learner's pace; "
    "a replay's count as they come"
)
MARK: Final = "*"
"""Mark after the name of a setting that asks for more cores than there are."""
EXTRAPOLATED: Final = "~"
"""Mark after the name of a predicted point some of whose costs were reckoned, not measured."""
NUMBERS: Final = re.compile(r"\d+")


def print_all(study: Study, rows: Sequence[Row], predictions: Predictions) -> None:
    """Print the results on stdout."""
    seeds = study.seeds
    which = f"seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}"
    sys.stdout.write(f"# {study.config}, {which}, {study.seconds:g} s each; medians [least, most]\n")
    if study.figure in SAME_TRAININGS:
        _print_table_1(study, rows)
    else:
        _print_rows(study, rows)
    _print_predicted(predictions)
    _print_beside(rows, predictions)


def _print_rows(study: Study, rows: Sequence[Row]) -> None:
    headings = ["setting", "learner cores", "cores", "produced/s", "received/s", "uses/s"]
    if study.threshold is not None:
        headings.append(f"s to {exact(study.threshold)}{_of_first(rows)}")
    cells = []
    for row in rows:
        rates = (row.produced_per_s, row.received_per_s, row.consumed_per_s)
        cells.append(
            [
                _marked(row),
                str(row.split.learner_cores),
                str(row.setting.cores),
                *map(_rate, rates),
                *([] if study.threshold is None else [time_cell(row, study.seconds)]),
            ]
        )
    print_table(headings, cells, f"figure {study.figure}: {study.of.title}", right=range(1, len(headings)))
    sys.stdout.write(f"# received: {RECEIVED}\n")


def _marked(row: Row) -> str:
    return row.setting.name + MARK * row.setting.oversubscribed


def _of_first(rows: Sequence[Row]) -> str:
    return " (first of G groups)" if any(row.split.groups > 1 for row in rows) else ""


def _print_table_1(study: Study, rows: Sequence[Row]) -> None:
    """Print a line for each training, as in the paper, and the medians below."""
    headings = [
        "Setting",
        "Final Time(s)",
        "Production Throughput(steps/s)",
        "Consumption Throughput(steps/s)",
    ]
    cells = []
    assert study.threshold is not None, "the table is of times to it"
    for row in rows:
        name = _marked(row)
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


def _print_predicted(predictions: Predictions) -> None:
    if not predictions.points:
        return
    sys.stdout.write("\n# PREDICTED, from what was measured on this machine:\n")
    for assumption in predictions.assumes:
        sys.stdout.write(f"# - {assumption}\n")
    cells = [
        [
            point.split.name + EXTRAPOLATED * bool(point.extrapolated),
            str(point.split.learner_cores),
            str(point.split.cores),
            str(point.nodes),
            count(point.prediction.steps_per_s),
            count(point.prediction.throughput),
            point.prediction.bottleneck.kind,
        ]
        for point in predictions.points
    ]
    headings = ["predicted", "learner cores", "cores", "nodes", "env steps/s", "uses/s", "bottleneck"]
    print_table(headings, cells, "predicted, a core for every role", right=range(1, len(headings) - 1))
    if reckoned := _reckoned(predictions.points):
        sys.stdout.write(
            f"# {EXTRAPOLATED} extrapolated: some of its costs were reckoned and not measured:\n"
        )
        sys.stdout.writelines(f"#   - {what}\n" for what in reckoned)


def _reckoned(points: Sequence[Predicted]) -> list[str]:
    """List the reckoned costs of all points, each once; where only numbers differ, the last point's."""
    costs = {NUMBERS.sub("", what): what for point in points for what in point.extrapolated}
    return list(costs.values())


def _print_beside(rows: Sequence[Row], predictions: Predictions) -> None:
    """Print the ratios of measured to predicted rates, of settings with a core for every role."""
    compared = {row.setting.name: found for row in rows if (found := ratio(row, predictions)) is not None}
    if compared:
        sys.stdout.write("\n")
        cells = [[name, f"{found:.2f}"] for name, found in compared.items()]
        print_table(["measured / predicted", "uses"], cells, "measured over predicted", right=(1,))


def time_cell(row: Row, seconds: float) -> str:
    """Write a setting's times to the threshold; "not in ... s" in place of one that was not reached."""
    times, never = row.time_to_s, f"not in {seconds:g} s"
    if times is None:
        return ""
    if math.isfinite(times.middle):
        return times.written(lambda time: number(time) if math.isfinite(time) else never)
    return f"{never} ({row.reached} of {row.repeats} in {number(times.low)})" if row.reached else never


def _rate(of: Range | None) -> str:
    return "no figures" if of is None else of.written(count)


def compare(
    study: Study,
    machines: Machines | None,
    earlier: Path | None,
    *,
    out: Path | None,
    json_to: str | None,
    quiet: bool,
) -> None:
    """Predict, train, and show the results; the prediction comes first, so that its errors show at once.

    Args:
        machines: to predict for; None predicts nothing.
        earlier: file with the measurements for the prediction; None measures.

    Raises:
        UsageError: other hosts cannot see the runs, or the file has no measurements to predict from.
        TianjiError: nothing could be measured, or some trainings have no figures (the others' are shown).
    """
    others = () if study.others is None else study.others.names
    if others and out is None:
        raise UsageError(
            "--hosts needs --out on a file system that all hosts see; others would take part: "
            + ", ".join(others)
        )
    check_places(out, json_to)
    busy = busy_share()
    predictions = Predictions()
    if machines is not None:
        measured = None if earlier is None else read_earlier(earlier, study.job)
        predictions = predict_study(study, machines, measured, quiet=quiet)
    found = measure(study, None if out is None else out / "runs", quiet=quiet)
    rows = rows_of(found, study.threshold)
    transport = study.job.distribution.transport
    engines = [transport.local, *([transport.remote] if others else [])]
    environment = describe(engines, busy, hosts=["here", *others])
    all_warnings = [*warnings(busy), *cautions(study, rows), *predictions.warnings]
    result_of(study, environment, all_warnings, rows, predictions).hand_over(out=out, json_to=json_to)
    if json_to != "-":
        print_header(environment, all_warnings)
        print_all(study, rows, predictions)
    if missing := [f"{row.setting.name}, seed {one.seed}: {one.why}" for row in rows for one in row.failed]:
        raise RunFailed(f"no figures of {several(len(missing), 'training')}:\n" + "\n".join(missing))

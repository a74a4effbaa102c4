"""Metrics of trials: their final values, and values while they run, read from files of their runs."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import TianjiError, errors_as
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.metrics import EVALUATION, EvaluationRow, MetricsFollower, read_history

BUILT_IN: Final = ("evaluation", "mean_100", "best_mean_100")
TIME_TO: Final = "time_to."
POINTS: Final = 20
"""Points at which trials without evaluations during training are compared: shares of their env steps."""


class CutOffError(TianjiError):
    """An evaluation was cut off, so that its mean would be that of the shorter episodes."""


def final_value(run: RunDirectory, metric: str) -> float | None:
    """Read the final value of a run that is over; None if it has none, as when no episode has ended.

    Raises:
        CutOffError: it is an evaluation, and was cut off by its limits.
        TianjiError: its files cannot be read.
    """
    strange = (OSError, ValueError, KeyError, TypeError)
    with errors_as(TianjiError, f"cannot read what {run.path} came to", *strange):
        summary = read_json(run.summary)
        found = _of_summary(run, summary, metric)
    return None if found is None or math.isnan(found) else float(found)


def _of_summary(run: RunDirectory, summary: Mapping[str, Any], metric: str) -> float | None:
    found: float | None
    if metric == "evaluation":
        found = _of_evaluations(run, summary["evaluation"])
    elif metric.startswith(TIME_TO):
        found = summary["time_to"][metric.removeprefix(TIME_TO)]
    elif metric in BUILT_IN:
        found = summary["returns"][metric]
    else:
        found = (summary["returns"].get("metrics") or {}).get(metric)
    return found


def _of_evaluations(run: RunDirectory, final: Mapping[str, Any] | None) -> float | None:
    """Return the mean of the final evaluation, or without one that of the last evaluation not cut off."""
    if final is not None:
        of, known, limits = final, _known_mean(final), "experiment.eval_max_s or eval_max_steps"
    else:
        rows = read_history(run.metrics)[1]
        means = [mean for row in rows if (mean := _known_mean(row)) is not None]
        of, known = rows[-1] if rows else {}, means[-1] if means else None
        limits = "experiment.evaluation.max_s"
    if known is None and of.get("left_out"):
        wanted = of["episodes"] + of["left_out"]
        raise CutOffError(
            f"{of['left_out']} of {wanted} episodes of its evaluation had not ended after {of['cut_off']}, "
            f"and the others are the shorter ones; {limits} may be larger"
        )
    return known


def _known_mean(evaluation: Mapping[str, Any]) -> float | None:
    """Mean return of an evaluation; None if some of its episodes have not ended."""
    mean: float | None = evaluation["mean"]
    return None if evaluation.get("left_out") else mean


class MetricCurve:
    """Follows a run, and keeps its values at the points at which trials are compared.

    Attributes:
        values: value by number of the point: of an evaluation, from 1 on, or of a share of env steps. An
            evaluation that was cut off has none.
        passed: number of the last point that the run has passed.
    """

    def __init__(self, run: RunDirectory, metric: str, job: JobConfig) -> None:
        self._rows = MetricsFollower(run.metrics)
        self._metric = metric
        self._goal = job.experiment.stop.env_steps
        self._evaluations: list[tuple[int, float | None]] = []
        self.values: dict[int, float] = {}
        self.passed = 0

    def look(self) -> None:
        """Read the rows that were written since the last call.

        Raises:
            TianjiError: they cannot be read.
        """
        for row in self._rows.rows():
            values = row.model_dump(by_alias=True)
            if isinstance(row, EvaluationRow):
                if self._metric == EVALUATION:
                    self._evaluate(values)
            elif self._metric != EVALUATION and self._goal is not None:
                self._pass(values, self._goal)

    def _evaluate(self, row: Mapping[str, Any]) -> None:
        # A resumed run repeats some of its steps.
        while self._evaluations and self._evaluations[-1][0] >= row["env_steps"]:
            self._evaluations.pop()
        self._evaluations.append((row["env_steps"], _known_mean(row)))
        numbered = enumerate(self._evaluations, 1)
        self.values = {number: mean for number, (_, mean) in numbered if mean is not None}
        self.passed = len(self._evaluations)

    def _pass(self, row: Mapping[str, Any], goal: int) -> None:
        value = row.get(f"returns.{self._metric}", (row.get("returns.metrics") or {}).get(self._metric))
        passed = min(POINTS, row["env_steps"] * POINTS // goal)
        if value is not None:
            for point in range(self.passed + 1, passed + 1):
                self.values[point] = float(value)
            self.passed = max(self.passed, passed)


def means_at_points(curves: Mapping[int, MetricCurve], going: Collection[int]) -> dict[int, float]:
    """Average the runs of a trial at the points that all unfinished ones have passed.

    A point at which one evaluation was cut off has no mean: the mean of the others is not the trial's.

    Args:
        curves: curves by their seeds.
        going: seeds that are not over.
    """
    means: dict[int, float] = {}
    for point in sorted({point for curve in curves.values() for point in curve.values}):
        if any(curves[seed].passed < point for seed in going):
            break
        passed = [curve for curve in curves.values() if curve.passed >= point]
        known = [curve.values[point] for curve in passed if point in curve.values]
        if len(known) == len(passed):
            means[point] = sum(known) / len(known)
    return means


def points_of(metric: str, job: JobConfig) -> int | None:
    """Most points of a trial; None if the config sets no limit."""
    experiment = job.experiment
    if metric != EVALUATION:
        return POINTS
    every = experiment.evaluation.every_env_steps if experiment.evaluation is not None else None
    if every is None or experiment.stop.env_steps is None:
        return None
    return max(1, experiment.stop.env_steps // every)

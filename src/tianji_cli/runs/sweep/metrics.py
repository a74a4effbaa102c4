"""What trials are judged by: their final values, and values while they run, read from files of their runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import TianjiError, describe
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.metrics import EVALUATION, MetricsFollower, read_history

BUILT_IN: Final = ("evaluation", "mean_100", "best_mean_100")
TIME_TO: Final = "time_to."
POINTS: Final = 20
"""At which trials are compared where nothing is evaluated while they run: shares of their env steps."""


def final_value(run: RunDirectory, metric: str) -> float | None:
    """Read what a run that is over came to; None if it does not have it, as when no episode has ended.

    Raises:
        TianjiError: its files cannot be read.
    """
    try:
        summary = read_json(run.summary)
        found = _of_summary(run, summary, metric)
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise TianjiError(f"cannot read what {run.path} came to: {describe(cause)}") from cause
    return None if found is None or math.isnan(found) else float(found)


def _of_summary(run: RunDirectory, summary: Mapping[str, Any], metric: str) -> float | None:
    found: float | None
    if metric == "evaluation":
        if summary["evaluation"] is not None:
            found = summary["evaluation"]["mean"]
        else:
            means = [row["mean"] for row in read_history(run.metrics)[1] if row["mean"] is not None]
            found = means[-1] if means else None
    elif metric.startswith(TIME_TO):
        found = summary["time_to"][metric.removeprefix(TIME_TO)]
    elif metric in BUILT_IN:
        found = summary["returns"][metric]
    else:
        found = (summary["returns"].get("metrics") or {}).get(metric)
    return found


class Course:
    """Follows a run, and has what it came to at the points at which trials are compared.

    Attributes:
        values: by the number of the point: of the evaluation, from 1 on, or of the share of env steps.
    """

    def __init__(self, run: RunDirectory, metric: str, job: JobConfig) -> None:
        self._rows = MetricsFollower(run.metrics, _parsed)
        self._metric = metric
        self._goal = job.experiment.stop.env_steps
        self._evaluations: list[tuple[int, float]] = []
        self.values: dict[int, float] = {}

    def look(self) -> None:
        """Read what has come since the last time.

        Raises:
            TianjiError: it cannot be read.
        """
        for row in self._rows.rows():
            if self._metric == EVALUATION:
                if row.get("kind") == EVALUATION:
                    self._evaluate(row)
            elif row.get("kind") is None and self._goal is not None:
                self._pass(row, self._goal)

    def _evaluate(self, row: Mapping[str, Any]) -> None:
        if row.get("mean") is None:
            return
        # A run that was resumed goes through some of its steps once more.
        while self._evaluations and self._evaluations[-1][0] >= row["env_steps"]:
            self._evaluations.pop()
        self._evaluations.append((row["env_steps"], float(row["mean"])))
        self.values = {number: mean for number, (_, mean) in enumerate(self._evaluations, 1)}

    def _pass(self, row: Mapping[str, Any], goal: int) -> None:
        value = row.get(self._metric, (row.get("metrics") or {}).get(self._metric))
        passed = min(POINTS, row["env_steps"] * POINTS // goal)
        if value is not None:
            for point in range(max(self.values, default=0) + 1, passed + 1):
                self.values[point] = float(value)


def points_of(metric: str, job: JobConfig) -> int | None:
    """How many points a trial has at most; None if nothing says it."""
    experiment = job.experiment
    if metric != EVALUATION:
        return POINTS
    every = experiment.evaluation.every_env_steps if experiment.evaluation is not None else None
    if every is None or experiment.stop.env_steps is None:
        return None
    return max(1, experiment.stop.env_steps // every)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "env_steps" in row else None

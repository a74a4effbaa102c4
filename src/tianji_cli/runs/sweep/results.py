"""Results of a sweep: ``best.toml``, ``trials.csv``, ``summary.json`` and figures, all from its journal."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import optuna
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, TrialState

from tianji_cli.errors import TianjiError, errors_as
from tianji_cli.files.campaigns import SweepDirectory
from tianji_cli.files.rundir import write_whole
from tianji_cli.quantities import finite
from tianji_cli.runs.results import Table
from tianji_cli.runs.sweep.plots import draw_history, draw_importances, draw_parallel, height_of_bars
from tianji_cli.runs.sweep.space import Plan
from tianji_cli.runs.sweep.study import REASON, SweepStudy, counted
from tianji_cli.telemetry.figures import write_figure

SCHEMA: Final = 1
LEAST_FOR_IMPORTANCES: Final = 4
WORDS: Final = {
    TrialState.COMPLETE: "finished",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
    TrialState.RUNNING: "running",
    TrialState.WAITING: "waiting",
}


def write_results(directory: SweepDirectory, plan: Plan, study: SweepStudy) -> dict[str, Any]:
    """Write all results; returns the document of ``summary.json``, in which None replaces infinite numbers.

    Raises:
        TianjiError: they cannot be written.
    """
    trials = study.trials
    document: dict[str, Any] = finite(_document(plan, study, trials))
    with errors_as(TianjiError, f"cannot write into {directory.path}", OSError):
        write_whole(directory.table, _csv(plan, study, trials).encode())
        text = json.dumps(document, indent=2, allow_nan=False) + "\n"
        write_whole(directory.summary, text.encode())
        if study.best is not None:
            write_whole(directory.best, plan.config_with(study.values_of(study.best)).encode())
        _draw(directory, plan, study, document["importances"])
    return document


def _document(plan: Plan, study: SweepStudy, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
    best = study.best
    over = counted(trials, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    found = None
    if best is not None:
        found = {"trial": best.number, "value": best.value, "params": study.values_of(best)}
    return {
        "schema": SCHEMA,
        "experiment": plan.job.experiment.name,
        "status": "finished" if over == len(trials) else "stopped",
        "metric": plan.sweep.metric,
        "direction": "minimize" if plan.sweep.minimizes else "maximize",
        "sampler": plan.sweep.sampler,
        "best": found,
        "trials": over,
        "of": len(trials),
        "pruned": counted(trials, TrialState.PRUNED),
        "failed": counted(trials, TrialState.FAIL),
        "importances": _importances(plan, trials),
    }


def _importances(plan: Plan, trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """Importance of each unconditional parameter, by PED-ANOVA; empty with too few trials or equal values."""
    always = [one.key for one in plan.space.dimensions if not one.parameter.when]
    known = [one for one in trials if one.state == TrialState.COMPLETE and one.value is not None]
    values = [one.value for one in known if one.value is not None and math.isfinite(one.value)]
    if len(values) < LEAST_FOR_IMPORTANCES or min(values) == max(values):
        return {}
    worst = max(values) if plan.sweep.minimizes else min(values)

    def value(trial: FrozenTrial) -> float:
        return trial.value if trial.value is not None and math.isfinite(trial.value) else worst

    study = optuna.create_study(direction="minimize" if plan.sweep.minimizes else "maximize")
    study.add_trials(known)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(), params=always, target=value
        )
    return {name: float(share) for name, share in found.items()}


def _csv(plan: Plan, study: SweepStudy, trials: Sequence[FrozenTrial]) -> str:
    keys = [one.key for one in plan.space.dimensions]
    rows = [
        _row(trial) | {key: _written(value) for key, value in study.values_of(trial).items()}
        for trial in trials
    ]
    return Table(("trial", "status", "value", "points", "seconds", "reason", *keys), rows).csv()


def _row(trial: FrozenTrial) -> dict[str, Any]:
    took = trial.duration
    return {
        "trial": trial.number,
        "status": WORDS[trial.state],
        "value": "" if trial.value is None else trial.value,
        "points": len(trial.intermediate_values),
        "seconds": "" if took is None else round(took.total_seconds(), 1),
        "reason": trial.user_attrs.get(REASON, ""),
    }


def _written(value: Any) -> Any:
    return value if isinstance(value, str | int | float) else json.dumps(value)


def _draw(directory: SweepDirectory, plan: Plan, study: SweepStudy, importances: Mapping[str, float]) -> None:
    trials = [one for one in study.trials if one.value is not None and math.isfinite(one.value)]
    if not trials:
        return
    metric, minimizes = plan.sweep.metric, plan.sweep.minimizes
    directory.plots.mkdir(exist_ok=True)
    write_figure(
        lambda figure: draw_history(figure, trials, metric, minimizes=minimizes),
        2.4,
        directory.plots / "history.png",
    )
    write_figure(
        lambda figure: draw_parallel(figure, trials, plan.space, metric, minimizes=minimizes),
        2.4,
        directory.plots / "parallel_coordinates.png",
    )
    if importances:
        write_figure(
            lambda figure: draw_importances(figure, importances),
            height_of_bars(len(importances)),
            directory.plots / "importances.png",
        )

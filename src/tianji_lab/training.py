"""One training of a benchmark: runs it in a process of its own, and reads its results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import find_config
from tianji_cli.errors import RunFailed, UsageError, os_errors_as
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import run_child
from tianji_cli.quantities import exact
from tianji_cli.runs.campaign import training_command
from tianji_cli.runs.comparison.curves import Curve, read_curve
from tianji_cli.telemetry.metrics import read_metrics

END_S: Final = 30.0
"""Seconds in which an interrupted training has to stop and save before it is killed."""


@contextmanager
def lasting_config(config: str) -> Iterator[str]:
    """Name a config that other processes can read, too: the content of a pipe is copied into a file."""
    found = find_config(config, Path.cwd())
    if found is None or found.is_file():
        yield config
        return
    with temporary_directory() as place:
        kept = place / f"{found.name}.toml"
        with os_errors_as(UsageError, f"{config}: cannot be read"):
            kept.write_bytes(found.read_bytes())
        yield str(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Figures of one training that came to its end.

    Attributes:
        reached: whether the training reached the threshold; if not, ``time_to_s`` and ``steps_to`` are those
            of its end.
        time_to_s: seconds from the first environment step to the threshold.
        steps_to: environment steps received until then, interpolated between two reports.
        train_s: seconds of the whole training.
        env_steps: environment steps of the whole training.
        mean_100: mean return of its last 100 episodes.
        best_mean_100: the highest ``mean_100`` of the training.
        staleness: mean policy lag of the samples used, in versions.
        produced_per_s: environment steps made per second.
        consumed_per_s: sample uses per second.
        curve: its learning curve.
    """

    seed: int
    run: str
    reached: bool
    time_to_s: float
    steps_to: float
    train_s: float
    env_steps: int
    mean_100: float
    best_mean_100: float
    staleness: float
    produced_per_s: float
    consumed_per_s: float
    curve: Curve


def threshold_of(config: str, job: JobConfig, threshold: float | None) -> float:
    """Find the return that trainings have to reach.

    Args:
        threshold: the user's; None for the config's first.

    Raises:
        UsageError: the threshold is not finite, or there is none.
    """
    if threshold is None:
        if not job.experiment.thresholds:
            raise UsageError(
                f"{config} has no experiment.thresholds: --threshold says which return is waited for"
            )
        return job.experiment.thresholds[0]
    if not math.isfinite(threshold):
        raise UsageError(f"--threshold {threshold:g} is no return that a training could come to")
    return threshold


def train_once(
    config: str, overrides: Sequence[str], *, name: str, place: Path, trace_s: float | None = None
) -> RunDirectory:
    """Run `tianji train` to its end.

    Args:
        trace_s: seconds of the training to trace; None for no trace.

    Returns:
        The run's directory.

    Raises:
        RunFailed: the training failed, or was stopped.
    """
    traced = () if trace_s is None else ("--trace", f"{trace_s:g}")
    command = training_command(overrides, config, "--name", name, "--out", str(place), "--quiet", *traced)
    ended, _ = run_child(command, patience_s=END_S)
    if ended.status != 0:
        raise RunFailed(f"a training of {name} failed, so there are no figures:\n{ended.last_words}")
    return RunDirectory.find(name, place)


def read_training(run: RunDirectory, seed: int, threshold: float) -> Training:
    """Read the figures of a training from its run directory.

    Args:
        threshold: one of its ``experiment.thresholds``.

    Raises:
        RunFailed: there are no figures: samples were lost or are unaccounted for, or nothing was learned.
    """
    summary = read_summary(run)
    returns, staleness = summary["returns"], summary["staleness"]["mean"]
    if returns["best_mean_100"] is None or staleness is None:
        raise RunFailed(
            f"{run.path} ended before 100 episodes or one update: experiment.stop should allow for more"
        )
    curve = read_curve(read_metrics(run.metrics), summary)
    crossed = summary["time_to"][exact(threshold)]
    time_to_s = summary["train_s"] if crossed is None else crossed
    return Training(
        seed=seed,
        run=str(run.path),
        reached=crossed is not None,
        time_to_s=time_to_s,
        steps_to=curve.steps_at(time_to_s),
        train_s=summary["train_s"],
        env_steps=summary["env_steps"],
        mean_100=returns["mean_100"],
        best_mean_100=returns["best_mean_100"],
        staleness=staleness,
        produced_per_s=summary["produced_per_s"],
        consumed_per_s=summary["consumed_per_s"],
        curve=curve,
    )


def read_summary(run: RunDirectory) -> dict[str, Any]:
    """Read the summary of a run that lost nothing.

    Raises:
        RunFailed: samples were lost or are unaccounted for, a group was lost, or the evaluation was cut off.
    """
    summary: dict[str, Any] = read_json(run.summary)
    missing = summary["produced"] - sum(summary[name] for name in ("received", "in_flight", "dropped"))
    if missing:
        raise RunFailed(f"{run.path} misses {missing} samples, so there are no figures")
    if lost := (summary.get("averaging") or {}).get("lost"):
        groups = ", ".join(map(str, lost))
        raise RunFailed(f"{run.path} lost its group {groups} on the way, so there are no figures")
    refuse_cut_off(summary.get("evaluation") or {}, str(run.path))
    return summary


def refuse_cut_off(evaluation: Mapping[str, Any], who: str) -> None:
    """Refuse an evaluation that was cut off: its mean is that of the shorter episodes.

    Args:
        evaluation: of the summary, or of ``tianji eval --json``.

    Raises:
        RunFailed: episodes were left out.
    """
    if evaluation.get("left_out"):
        what = f"{evaluation['left_out']} greedy episodes had not ended after {evaluation['cut_off']}"
        raise RunFailed(
            f"{who}: {what}, so there are no figures: experiment.eval_max_s and eval_max_steps may be larger"
        )

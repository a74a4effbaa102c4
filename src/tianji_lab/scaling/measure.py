"""Trains every setting of a scaling study in turns, and reads what each training came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tianji_cli.errors import RunFailed
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.quantities import duration, exact, rate
from tianji_cli.telemetry.metrics import read_metrics
from tianji_lab.progress import Progress
from tianji_lab.scaling.hosts import train_over_hosts
from tianji_lab.scaling.study import Setting, Study
from tianji_lab.training import Curve, read_curve, read_summary, train_once

SETTLES: Final = 0.25
"""Share of a training's time, from its first update on, that its throughput is not taken of: the pipeline has
to fill, as in the simulation."""
COUNTED: Final = ("elapsed_s", "train_s", "env_steps", "produced", "consumed")
"""Of a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """Figures of one training.

    Attributes:
        time_to_s: seconds from the first environment step to the threshold; None if it was not reached, or
            none was named.
        train_s: seconds that it took in all.
        env_steps: environment steps that it took in all.
        produced_per_s: environment steps made per second.
        received_per_s: environment steps received per second: those of a rollout count as its first update
            begins, those of a replay as they come.
        consumed_per_s: sample uses per second.
        rho: uses that each sample is to get.
        mean_100: mean return of its last 100 episodes; None before any has ended.
        best_mean_100: the highest that this mean came to; None before so many have ended.
        staleness: mean policy lag of the samples used, in versions.
        averaging: of the groups' parameters: ``rounds``, how many of them each group ``missed``, and groups
            that were ``lost`` (none: such a training has no figures); None with one group.
        curve: how it learned; None before an episode has ended.
    """

    seed: int
    run: str
    time_to_s: float | None
    train_s: float
    env_steps: int
    updates: int
    produced_per_s: float
    received_per_s: float
    consumed_per_s: float
    rho: float
    mean_100: float | None
    best_mean_100: float | None
    staleness: float | None
    averaging: Mapping[str, Any] | None
    curve: Curve | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A training that has no figures, and why."""

    seed: int
    why: str


@dataclass
class Outcome:
    """Trainings of a setting: those with figures, and those without."""

    trainings: list[Trained] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


Found = Mapping[Setting, Outcome]


def measure(study: Study, place: Path, *, quiet: bool) -> dict[Setting, Outcome]:
    """Train every setting with every seed, the settings in turns.

    A training that fails costs its own figures and no other's.
    """
    found = {setting: Outcome() for setting in study.settings}
    with Progress(len(study.settings) * len(study.seeds), quiet) as progress:
        for seed in study.seeds:
            for setting, outcome in found.items():
                progress.begin(f"{setting.name}, seed {seed}")
                try:
                    run = _train(study, setting, seed, place)
                    training = read_trained(run, seed, study.threshold, settles=not study.of.until_threshold)
                except RunFailed as error:
                    outcome.failed.append(Failed(seed, str(error)))
                    progress.done("failed")
                else:
                    outcome.trainings.append(training)
                    progress.done(_said(training, study.threshold))
    return found


def _train(study: Study, setting: Setting, seed: int, place: Path) -> RunDirectory:
    overrides = study.overrides_of(setting, seed)
    if study.others is None:
        return train_once(study.config, overrides, name=setting.directory, place=place)
    return train_over_hosts(study.config, overrides, study.others, name=setting.directory, place=place)


def read_trained(run: RunDirectory, seed: int, threshold: float | None, *, settles: bool) -> Trained:
    """Read what a training left behind.

    Args:
        settles: rates are of the time after it had settled; otherwise, as for a training that is over as
            soon as it has learned, of all of its time.

    Raises:
        RunFailed: samples were lost or are unaccounted for, a group was lost, or it was over before its
            throughput was known.
    """
    summary, rows = read_summary(run), read_metrics(run.metrics)
    returns, lag = summary["returns"], summary["staleness"]
    if settles:
        produced, received, consumed = settled_rates(rows, run)
    else:
        produced, received, consumed = (
            summary[f"{name}_per_s"] for name in ("produced", "received", "consumed")
        )
    return Trained(
        seed=seed,
        run=str(run.path),
        time_to_s=None if threshold is None else summary["time_to"][exact(threshold)],
        train_s=summary["train_s"],
        env_steps=summary["env_steps"],
        updates=summary["updates"],
        produced_per_s=produced,
        received_per_s=received,
        consumed_per_s=consumed,
        rho=summary["replay_ratio"]["target"],
        mean_100=returns["mean_100"],
        best_mean_100=returns["best_mean_100"],
        staleness=None if lag is None else lag["mean"],
        averaging=summary.get("averaging"),
        curve=None if returns["mean_100"] is None else read_curve(rows, summary),
    )


def settled_rates(rows: Sequence[Mapping[str, Any]], run: RunDirectory) -> tuple[float, float, float]:
    """Take the rates of a training from its reports: of env steps made and received, and of sample uses.

    Before the first update a replay warms up, after the last one what is still on its way is counted; in
    between, the first quarter is left out.

    Raises:
        RunFailed: it was too short.
    """
    training = [row for row in rows if 0 < row["updates"] < rows[-1]["updates"]]
    if training:
        began, ended = training[0]["elapsed_s"], training[-1]["elapsed_s"]
        training = [row for row in training if row["elapsed_s"] >= began + SETTLES * (ended - began)]
    if len(training) < 2 or training[-1]["env_steps"] == training[0]["env_steps"]:
        raise RunFailed(f"{run.path} was over before its throughput could be told; --seconds gives it longer")
    grown = {name: training[-1][name] - training[0][name] for name in COUNTED}
    # Steps made and uses go on all the time, and are as old as the row, or a report. Receptions are counted
    # together with ``train_s``, which stands still between them.
    seconds = grown["elapsed_s"]
    return grown["produced"] / seconds, grown["env_steps"] / grown["train_s"], grown["consumed"] / seconds


def _said(training: Trained, threshold: float | None) -> str:
    used = f"{rate(training.consumed_per_s)} used"
    if threshold is None:
        return used
    if training.time_to_s is None:
        return f"{used}, {exact(threshold)} not in {duration(training.train_s)}"
    return f"{used}, {exact(threshold)} after {duration(training.time_to_s, 2)}"

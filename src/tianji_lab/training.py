"""Trainings of a benchmark: trains a table of settings in turns, and reads each run into one record.

`bench scaling`, `bench staleness` and the benchmarks are such tables: settings of configs, times seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import find_config
from tianji_cli.errors import RunFailed, UsageError, os_errors_as
from tianji_cli.files.directories import temporary_directory
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import run_child
from tianji_cli.quantities import duration, exact, rate
from tianji_cli.runs.campaign import training_command
from tianji_cli.runs.comparison.curves import Curve, read_curve
from tianji_cli.telemetry.metrics import read_metrics
from tianji_cli.telemetry.progress import Progress

KeyT = TypeVar("KeyT")

END_S: Final = 30.0
"""Seconds in which an interrupted training has to stop and save before it is killed."""
TRAINS_ONLY: Final = ("experiment.eval_episodes=0", "experiment.evaluation=false", "experiment.plots=false")
"""Overrides of a training that neither evaluates nor draws."""


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


@dataclass(frozen=True, slots=True)
class Entry:
    """A setting of a table: a config and the overrides that make the setting.

    Attributes:
        name: of the experiment, and so of a directory.
    """

    name: str
    config: str
    overrides: tuple[str, ...]

    def with_seed(self, seed: int) -> tuple[str, ...]:
        """List the overrides of one training."""
        return (*self.overrides, f"experiment.seed={seed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Figures of one training.

    Attributes:
        time_to_s: seconds from the first environment step to the threshold; None if the training did not
            reach it, or there is no threshold.
        train_s: seconds of the whole training.
        env_steps: environment steps of the whole training.
        produced_per_s: environment steps made per second.
        received_per_s: environment steps received per second: the steps of a rollout count when its first
            update begins, the steps of a replay when they arrive.
        consumed_per_s: sample uses per second.
        rho: target uses of each sample.
        mean_100: mean return of its last 100 episodes; None before an episode has ended.
        best_mean_100: the highest ``mean_100`` of the training; None before 100 episodes have ended.
        staleness: mean policy lag of the samples used, in versions; None before an update.
        averaging: of the groups' parameters: ``rounds``, the rounds that each group ``missed``, and groups
            that were ``lost`` (none: such a training has no figures); None with one group.
        curve: its learning curve; None before an episode has ended.
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

    @property
    def reached(self) -> bool:
        """Whether the training reached the threshold."""
        return self.time_to_s is not None

    @property
    def seconds_until(self) -> float:
        """Seconds to the threshold, or to the end of a training that did not reach it."""
        return self.train_s if self.time_to_s is None else self.time_to_s

    @property
    def steps_until(self) -> float:
        """Environment steps received until then, interpolated between two reports."""
        return float(self.env_steps) if self.curve is None else self.curve.steps_at(self.seconds_until)


@dataclass(frozen=True, slots=True)
class Failed:
    """A training without figures, and the reason."""

    seed: int
    why: str


@dataclass
class Outcome:
    """Trainings of an entry, with and without figures."""

    trainings: list[Training] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)


def train_in_turns(
    table: Mapping[KeyT, Entry],
    seeds: Sequence[int],
    place: Path | None,
    *,
    read: Callable[[RunDirectory, int], Training],
    threshold: float | None = None,
    train: Callable[..., RunDirectory] | None = None,
    keep_going: bool = False,
    quiet: bool = True,
) -> dict[KeyT, Outcome]:
    """Train every entry of a table with every seed, one training at a time, each with the whole machine.

    The entries take turns, so that other load on the machine disturbs all of them alike.

    Args:
        place: directory of the runs; None for a temporary one.
        read: reads a run with its seed.
        threshold: return that progress lines speak of; None for none.
        train: trains once, as ``train_once`` does; None for that.
        keep_going: go on after a training without figures.

    Returns:
        The trainings of each entry, by its key in the table.

    Raises:
        RunFailed: a training has no figures, unless ``keep_going``.
    """
    train = train or train_once
    found = {key: Outcome() for key in table}
    with ExitStack() as stack:
        place = place or stack.enter_context(temporary_directory())
        progress = stack.enter_context(Progress(len(table) * len(seeds), quiet, ticks=True))
        for seed in seeds:
            for key, entry in table.items():
                progress.begin(f"{entry.name}, seed {seed}")
                try:
                    run = train(entry.config, entry.with_seed(seed), name=entry.name, place=place)
                    training = read(run, seed)
                except RunFailed as error:
                    if not keep_going:
                        raise
                    found[key].failed.append(Failed(seed, str(error)))
                    progress.done("failed")
                else:
                    found[key].trainings.append(training)
                    progress.done(_summary(training, threshold))
    return found


def _summary(training: Training, threshold: float | None) -> str:
    used = f"{rate(training.consumed_per_s)} used"
    if threshold is None:
        return used
    if training.time_to_s is None:
        return f"{used}, {exact(threshold)} not in {duration(training.train_s)}"
    return f"{used}, {exact(threshold)} after {duration(training.time_to_s, 2)}"


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


def with_thresholds(job: JobConfig, *more: float) -> str:
    """Write the override that adds thresholds to those of a config."""
    return f"experiment.thresholds={json.dumps(sorted({*job.experiment.thresholds, *more}))}"


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


def read_training(
    run: RunDirectory, seed: int, *, threshold: float | None = None, settles: bool = False
) -> Training:
    """Read the figures of a training from its run directory.

    Args:
        threshold: one of its ``experiment.thresholds``; None measures no time.
        settles: take the rates of the time after the training has settled; otherwise of its whole time, as
            for a training that ends as soon as it has learned.

    Raises:
        RunFailed: samples were lost or are unaccounted for, a group was lost, or the training was too short
            for its throughput.
    """
    summary, rows = read_summary(run), read_metrics(run.metrics)
    returns, lag = summary["returns"], summary["staleness"]
    if settles:
        produced, received, consumed = settled_rates(rows, run)
    else:
        produced, received, consumed = (
            summary[f"{name}_per_s"] for name in ("produced", "received", "consumed")
        )
    return Training(
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


def read_learned(run: RunDirectory, seed: int, *, threshold: float) -> Training:
    """Read the figures of a training that has to have learned.

    Raises:
        RunFailed: as of ``read_training``, or it ended before 100 episodes or one update.
    """
    training = read_training(run, seed, threshold=threshold)
    if training.best_mean_100 is None or training.staleness is None:
        raise RunFailed(
            f"{run.path} ended before 100 episodes or one update: experiment.stop should allow for more"
        )
    return training


SETTLES: Final = 0.25
"""Share of a training's time after its first update that its throughput leaves out: the pipeline has to fill
first, as in a longer training."""
COUNTED: Final = ("wall_s", "train_s", "env_steps", "produced", "consumed")
"""Columns of a metrics row whose growth gives the rates."""


def settled_rates(rows: Sequence[Mapping[str, Any]], run: RunDirectory) -> tuple[float, float, float]:
    """Compute the rates of a training from its metrics: of env steps made and received, and of sample uses.

    Before the first update a replay warms up, and after the last one samples in flight still count. The rates
    also leave out the first quarter (``SETTLES``) of the time in between.

    Raises:
        RunFailed: the training was too short.
    """
    training = [row for row in rows if 0 < row["updates"] < rows[-1]["updates"]]
    if training:
        began, ended = training[0]["wall_s"], training[-1]["wall_s"]
        training = [row for row in training if row["wall_s"] >= began + SETTLES * (ended - began)]
    if len(training) < 2 or training[-1]["env_steps"] == training[0]["env_steps"]:
        raise RunFailed(f"{run.path} was over before its throughput could be told; --seconds gives it longer")
    grown = {name: training[-1][name] - training[0][name] for name in COUNTED}
    # Steps made and uses grow all the time, and are as old as the row, or a report. Receptions are counted
    # together with ``train_s``, which stands still between two of them.
    seconds = grown["wall_s"]
    return grown["produced"] / seconds, grown["env_steps"] / grown["train_s"], grown["consumed"] / seconds


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

"""Proves predictions: trains for a few seconds with each of several splits, and measures what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import RunFailed
from tianji_cli.files.directories import temporary_directory
from tianji_cli.quantities import rate
from tianji_cli.runs.timeline.chrome import read_chrome
from tianji_cli.runs.timeline.timeline import Timeline
from tianji_cli.telemetry.metrics import read_metrics
from tianji_cli.telemetry.progress import Progress
from tianji_lab.model.costs import Split
from tianji_lab.model.prediction import Prediction
from tianji_lab.profile.measurements import Repeated
from tianji_lab.profile.search import Candidate
from tianji_lab.training import read_summary, train_once

ROUNDS: Final = 5
"""Trainings with each split, one after another in turns: a machine that drifts is fair to all."""

SETTLES_S: Final = 1.5
"""Of training after the warm-up of a replay, before it counts."""

TRACED_S: Final = 2.0
"""Of a training that is traced; it goes on until it has settled, too."""

WINDOW_S: Final = 5.0
"""Of training that counts, at least ..."""

CYCLES: Final = 5
"""... so many rollouts or fragments, ..."""

MOST_S: Final = 30.0
"""... and no longer than this."""


@dataclass(frozen=True)
class Verified:
    """A prediction beside what each run of its split measured: sample uses and environment steps a second."""

    prediction: Prediction
    uses_per_s: Repeated
    steps_per_s: Repeated

    @property
    def split(self) -> Split:
        """The split."""
        return self.prediction.split

    @property
    def predicted(self) -> float:
        """Sample uses a second, as predicted."""
        return self.prediction.throughput

    @property
    def measured(self) -> float:
        """Sample uses a second, the median of the runs."""
        return self.uses_per_s.median

    @property
    def error(self) -> float:
        """How much more was predicted than measured, as a share of what was measured."""
        return self.predicted / self.measured - 1


class Rates(NamedTuple):
    """What one training gave: sample uses and environment steps a second."""

    uses_per_s: float
    steps_per_s: float


@dataclass(frozen=True)
class _Trial:
    """How a split is trained with.

    Attributes:
        is_balanced: uses are held at so many for each step.
    """

    candidate: Candidate
    overrides: tuple[str, ...]
    is_balanced: bool

    @property
    def name(self) -> str:
        """Say it in a line of progress."""
        split = self.candidate.split
        pins = "pinned" if split.pinned else "unpinned"
        cores, environments = split.learner_cores, split.num_envs
        return f"{split.name} {pins}, {cores} to a learner, {environments} environments an actor"


def verify(
    config: str,
    overrides: Sequence[str],
    candidates: Sequence[Candidate],
    *,
    progress: Progress,
    rounds: int = ROUNDS,
    window_s: float = WINDOW_S,
    place: Path | None = None,
) -> list[Verified]:
    """Train with each of several splits, and measure what they give.

    Args:
        window_s: of each training that are to count.
        place: where the runs are left; nothing is left by default.

    Returns:
        In the order of the candidates.

    Raises:
        RunFailed: a training failed, lost samples or was too slow to be measured.
    """
    trials = [_trial(config, overrides, candidate, window_s) for candidate in candidates]
    found: list[list[Rates]] = [[] for _ in trials]
    with temporary_directory() if place is None else nullcontext(place) as directory:
        for number in range(1, rounds + 1):
            for i, trial in enumerate(trials):
                progress.begin(f"training with {trial.name}: run {number} of {rounds}")
                run = train_once(config, trial.overrides, name=f"split-{i + 1}", place=directory)
                read_summary(run)
                found[i].append(rates_of(read_metrics(run.metrics), is_balanced=trial.is_balanced))
                progress.done(f"{rate(found[i][-1].uses_per_s)} used")
    return [
        Verified(
            trial.candidate.prediction,
            uses_per_s=Repeated(values=tuple(of_run.uses_per_s for of_run in of_trial)),
            steps_per_s=Repeated(values=tuple(of_run.steps_per_s for of_run in of_trial)),
        )
        for trial, of_trial in zip(trials, found, strict=True)
    ]


def trace_once(config: str, overrides: Sequence[str], candidate: Candidate) -> tuple[str, Timeline]:
    """Train with a split once more, and trace it: a trace costs throughput, so it is none of those measured.

    Returns:
        A title, and the timeline.

    Raises:
        RunFailed: the training failed. TianjiError: nothing came of the trace.
    """
    trial = _trial(config, overrides, candidate, TRACED_S)
    with temporary_directory() as place:
        run = train_once(config, trial.overrides, name="traced", place=place, trace_s=TRACED_S)
        return trial.name, read_chrome(run.trace)


def rates_of(rows: Sequence[Mapping[str, Any]], *, is_balanced: bool) -> Rates:
    """Take the rates of a training from its learner's reports.

    A learner notes the time whenever it counts steps that came. How many uses it has made since, within a
    rollout or between two fragments, depends on the moment of its report. Where uses are held at so many for
    each step, they are therefore taken from the steps.

    Args:
        is_balanced: uses are held at so many for each step.

    Raises:
        RunFailed: it was too short.
    """
    # Before the first update a replay warms up; after the last one what is still on its way is counted.
    training = [row for row in rows if 0 < row["updates"] < rows[-1]["updates"]]
    settled = [row for row in training if row["train_s"] >= training[0]["train_s"] + SETTLES_S]
    if not settled or settled[-1]["env_steps"] == settled[0]["env_steps"]:
        raise RunFailed("a training was too slow to be measured within its time, so there are no figures")
    first, last = settled[0], settled[-1]
    seconds = last["train_s"] - first["train_s"]
    steps = last["env_steps"] - first["env_steps"]
    uses = steps * last["replay_ratio_target"] if is_balanced else last["consumed"] - first["consumed"]
    return Rates(uses / seconds, steps / seconds)


def _trial(config: str, overrides: Sequence[str], candidate: Candidate, window_s: float) -> _Trial:
    settings = [*overrides, *candidate.settings]
    job = load_config(config, settings)
    prediction = candidate.prediction
    groups = prediction.split.groups  # Each has its own cycles and its own warm-up.
    cycles_s = CYCLES * groups * _cycle_steps(job) * prediction.rho / prediction.throughput
    warmup_steps = job.replay_settings.warmup_steps if job.learns_from_replay else 0
    # Twice: predictions may be wrong, and the machine is busy with starting.
    warmup_s = 2 * groups * warmup_steps / prediction.production
    wall_s = warmup_s + SETTLES_S + min(max(window_s, cycles_s), MOST_S)
    settings += [
        f"experiment.stop={{ wall_s = {wall_s:g} }}",
        "experiment.thresholds=[]",
        "experiment.eval_episodes=0",
        "experiment.evaluation=false",
        "experiment.plots=false",
        "experiment.checkpoint_every_s=1e9",
    ]
    is_balanced = not job.learns_from_replay or job.distribution.balance == "held"
    return _Trial(candidate, tuple(settings), is_balanced)


def _cycle_steps(job: JobConfig) -> float:
    """Env steps after which what a job does begins anew."""
    if not job.learns_from_replay:
        return job.fragments_per_rollout * job.fragment_steps
    return job.fragment_steps if job.tolerance is None else job.tolerance

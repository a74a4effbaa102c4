"""Lists trainings with stale samples and a poor mapping, whose cost the paper's Figures 12(a) and 6(d) show.

A buffer that holds k rollouts hands out samples of which one in k is new (D.1): 1 is called New, k is Lagk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig, OnPolicySettings
from tianji_cli.errors import UsageError
from tianji_cli.launch.mpi import launched
from tianji_cli.limits import usable_cores
from tianji_lab.training import Entry, threshold_of

LAGS: Final[Mapping[str, tuple[int, ...]]] = {"12a": (1, 2, 4, 8), "6d": (1, 8)}
"""Lags of a figure unless the user names others. Figure 6(d) has 1:1 and 1:8 (4.3.2)."""
MIN_SEEDS: Final = 2
OVERSUBSCRIBED: Final = 4
"""Actors on each core in the default poor mapping."""


@dataclass(frozen=True)
class Setting:
    """A setting to compare: a mapping, and k, the rollouts that the buffer holds."""

    mapping: str
    lag: int
    overrides: tuple[str, ...] = ()

    @property
    def samples(self) -> str:
        """The paper's name of the lag."""
        return "New" if self.lag == 1 else f"Lag{self.lag}"

    @property
    def name(self) -> str:
        """Name of the experiment, and so of a directory."""
        return (
            self.samples.lower()
            if self.mapping == "recommended"
            else f"{self.mapping}-{self.samples.lower()}"
        )


@dataclass(frozen=True)
class Comparison:
    """Plan of the trainings, checked as far as possible before they run.

    Attributes:
        overrides: the user's, for all settings.
        threshold: mean return of 100 episodes; the time until a training first reaches it is measured.
    """

    figure: str
    config: str
    job: JobConfig
    overrides: tuple[str, ...]
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...]
    threshold: float

    def entry(self, setting: Setting) -> Entry:
        """Make the entry of a setting in the table of trainings."""
        thresholds = sorted({*self.job.experiment.thresholds, self.threshold})
        overrides = (
            "experiment.eval_episodes=0",
            "experiment.evaluation=false",
            "experiment.plots=false",
            *self.overrides,
            *setting.overrides,
            f"experiment.thresholds={json.dumps(thresholds)}",
            f"distribution.buffer.rollouts={setting.lag}",
        )
        return Entry(setting.name, self.config, overrides)


def plan_comparison(
    config: str,
    *,
    figure: str,
    lags: Sequence[int],
    seeds: int,
    threshold: float | None,
    overrides: Sequence[str],
    poor: Sequence[str],
) -> Comparison:
    """Plan the trainings, and check that all of them can run.

    Args:
        lags: () for the figure's.
        seeds: number of seeds; the first is the config's.
        threshold: None for the first of the config's.
        poor: settings ``SECTION.KEY=VALUE`` of the poor mapping; () for oversubscribed actors.

    Raises:
        UsageError: the arguments do not fit together.
        ConfigError: one of the settings cannot be trained.
    """
    if figure == "12a" and poor:
        raise UsageError("--poor is a mapping of figure 6d; --figure 6d compares it")
    if seeds < MIN_SEEDS:
        raise UsageError(f"--seeds {seeds} has no interval: at least {MIN_SEEDS} are needed, 5 are usual")
    lags = tuple(dict.fromkeys(lags)) or LAGS[figure]
    if min(lags) < 1:
        raise UsageError(f"--lag {min(lags)}: a buffer holds at least 1 rollout")
    job = load_config(config, overrides)
    threshold = threshold_of(config, job, threshold)
    _check(job, threshold)
    settings = [Setting("recommended", lag) for lag in lags]
    if figure == "6d":
        mapping = tuple(poor) or oversubscribed(job, len(usable_cores()))
        settings += [Setting("poor", lag, mapping) for lag in lags]
    first = job.experiment.seed
    every = tuple(range(first, first + seeds))
    comparison = Comparison(figure, config, job, tuple(overrides), tuple(settings), every, threshold)
    for setting in settings:
        load_config(config, comparison.entry(setting).with_seed(every[-1]))
    return comparison


def oversubscribed(job: JobConfig, cores: int) -> tuple[str, ...]:
    """Make a poor mapping of a config: several actors on each core share the environments."""
    actor, training = job.distribution.actor, job.training.settings
    num = OVERSUBSCRIBED * max(cores, actor.num)
    most = max(1, actor.num * job.environment.num_envs // num)
    rollout = training.rollout_steps if isinstance(training, OnPolicySettings) else 0
    unit = actor.send_size * (num if job.distribution.mode == "sync" else 1)
    # If no number divides the rollout, the config's own check names one that does.
    num_envs = next((count for count in range(most, 0, -1) if rollout % (unit * count) == 0), most)
    return (f"distribution.actor.num={num}", f"environment.num_envs={num_envs}")


def _check(job: JobConfig, threshold: float) -> None:
    """Refuse a job that the comparison cannot train."""
    launch = launched()
    if (launch is not None and launch.size > 1) or job.distribution.hosts > 1:
        raise UsageError("bench staleness trains on one host: start it once, with distribution.hosts = 1")
    if not isinstance(job.training.settings, OnPolicySettings):
        raise UsageError(
            f"bench staleness varies the rollouts that a buffer holds, and {job.training.type!r} learns "
            'from a replay: a config with type = "ppo" would be right'
        )
    end = job.experiment.stop.mean_return
    if end is not None and end < threshold:
        raise UsageError(
            f"experiment.stop.mean_return = {end:g} ends a training before {threshold:g} is reached"
        )

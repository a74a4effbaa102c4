"""Plans trainings with stale samples and in a poor mapping, and sums them up: Figures 12(a) and 6(d).

A buffer that holds k rollouts hands out samples of which one in k is new (D.1): 1 is called New, k is Lagk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig, OnPolicySettings
from tianji_cli.errors import UsageError
from tianji_cli.launch.ranks import launched
from tianji_cli.limits import usable_cores
from tianji_cli.runs.comparison.statistics import LEAST_FOR_VERDICT
from tianji_lab.ranges import Range
from tianji_lab.training import TRAINS_ONLY, Entry, Training, threshold_of, with_thresholds

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

    @property
    def words(self) -> str:
        """Name of the samples, and of the mapping unless it is the recommended one."""
        return (
            self.samples if self.mapping == "recommended" else f"{self.samples} in the {self.mapping} mapping"
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
        overrides = (
            *TRAINS_ONLY,
            *self.overrides,
            *setting.overrides,
            with_thresholds(self.job, self.threshold),
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
    num = OVERSUBSCRIBED * max(cores, actor.num.max)
    most = max(1, actor.num.max * job.environment.num_envs // num)
    rollout = training.rollout_steps if isinstance(training, OnPolicySettings) else 0
    unit = actor.send_size * (num if job.distribution.mode == "sync" else 1)
    # If no number divides the rollout, the config's own check names one that does.
    num_envs = next((count for count in range(most, 0, -1) if rollout % (unit * count) == 0), most)
    return (f"distribution.actor.num={num}", f"environment.num_envs={num_envs}")


def _check(job: JobConfig, threshold: float) -> None:
    """Refuse a job that the comparison cannot train."""
    launch = launched()
    if (launch is not None and launch.size > 1) or job.distribution.hosts.max > 1:
        raise UsageError("bench staleness trains on one host: start it once, with distribution.hosts = 1")
    if job.distribution.actor.num.varies:
        raise UsageError("bench staleness compares fixed mappings: give distribution.actor.num one number")
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


# -- what they come to -----------------------------------------------------------------------------------

Found = Mapping[Setting, Sequence[Training]]

NAMES: Final = ("iqm", "low", "high")
"""Keys of an estimate."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Results of one setting: interquartile means over its trainings, with 95 % intervals.

    Attributes:
        time_to_s: seconds from the first environment step to the threshold.
        steps_to: environment steps to the threshold.
        mean_100: mean return of the last 100 episodes of a training.
        staleness: mean policy lag of the samples used, in versions.
        produced_per_s: environment steps made per second.
        consumed_per_s: sample uses per second.
        times_the_first: ``time_to_s`` over that of the first setting; None if that is only a lower bound.
        overlaps_first: whether the two settings' intervals have times in common; None without a verdict.
        no_verdict: why there is no verdict; empty if there is one.
    """

    setting: Setting
    trainings: Sequence[Training]
    time_to_s: Range
    steps_to: Range
    mean_100: Range
    staleness: Range
    produced_per_s: Range
    consumed_per_s: Range
    times_the_first: float | None = None
    overlaps_first: bool | None = None
    no_verdict: str = ""

    @property
    def seeds(self) -> int:
        """Number of trainings."""
        return len(self.trainings)

    @property
    def reached(self) -> int:
        """Number of trainings that reached the threshold. The others count as if they had at their end."""
        return sum(training.reached for training in self.trainings)

    @property
    def at_least(self) -> bool:
        """Whether some trainings did not reach the threshold, so that time and steps are lower bounds."""
        return self.reached < self.seeds

    def document(self) -> dict[str, Any]:
        """Build the row of the JSON file."""
        bounded = {"time_to_s", "steps_to"}
        return {
            **{name: getattr(self.setting, name) for name in ("mapping", "samples", "lag", "overrides")},
            "seeds": self.seeds,
            "reached": self.reached,
            **{
                name: {**each.document(NAMES), "at_least": self.at_least and name in bounded}
                for name, each in vars(self).items()
                if isinstance(each, Range)
            },
            **{name: getattr(self, name) for name in ("times_the_first", "overlaps_first", "no_verdict")},
        }


def cautions(found: Found, threshold: float) -> list[str]:
    """List the settings whose times are too short, since trainings did not reach the threshold."""
    missed = {setting: sum(not one.reached for one in trainings) for setting, trainings in found.items()}
    return [
        f"{missing} of {len(found[setting])} trainings of {setting.words} did not reach {threshold:g}: "
        "they count as if they had at their end, and the true times are longer"
        for setting, missing in missed.items()
        if missing
    ]


def rows_of(found: Found, warnings: Sequence[str]) -> list[Row]:
    """Sum up the trainings of each setting, and compare each setting with the first."""
    rows: list[Row] = []
    for setting, trainings in found.items():
        row = Row(
            setting=setting,
            trainings=trainings,
            time_to_s=_estimate(trainings, "seconds_until"),
            steps_to=_estimate(trainings, "steps_until"),
            mean_100=_estimate(trainings, "mean_100"),
            staleness=_estimate(trainings, "staleness"),
            produced_per_s=_estimate(trainings, "produced_per_s"),
            consumed_per_s=_estimate(trainings, "consumed_per_s"),
        )
        first = rows[0] if rows else row
        why = _no_verdict(row, first, warnings)
        compared = replace(
            row,
            times_the_first=None if first.at_least else row.time_to_s.middle / first.time_to_s.middle,
            overlaps_first=None if why else row.time_to_s.overlaps(first.time_to_s),
            no_verdict=why,
        )
        rows.append(compared)
    return rows


def _estimate(trainings: Sequence[Training], name: str) -> Range:
    return Range.estimated([getattr(training, name) for training in trainings])


def _no_verdict(row: Row, first: Row, warnings: Sequence[str]) -> str:
    if row.seeds < LEAST_FOR_VERDICT:
        return f"{row.seeds} seeds, and {LEAST_FOR_VERDICT} are the least"
    if warnings:
        return "the header has warnings"
    for one in (first, row):
        if one.time_to_s.low == one.time_to_s.high:
            return f"the interval of {one.setting.words} has no width"
    return ""

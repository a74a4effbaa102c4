"""Plans and trains the paper's scaling experiments: Figures 4(c), 6(a) to 6(c) and 12(b), and Table 1.

Each setting is a split of cores between learners and actors, in one group or several. All settings train with
the same seeds and take turns, so that other load on the machine disturbs all of them alike. A study keeps a
setting that the config refuses, with the reason, and marks one that asks for more cores than there are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig, OnPolicySettings
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.launch.ranks import launched
from tianji_cli.limits import usable_cores
from tianji_cli.plan.graph import EXAMINER
from tianji_cli.plan.plan import expected_hosts, make_plan
from tianji_lab.profile.split import (
    ACTORS,
    GROUPS,
    HOSTS,
    LEARNERS,
    Split,
    as_settings,
    host_values,
    powers_of_two,
    split_of,
)
from tianji_lab.scaling.hosts import Others, train_over_hosts
from tianji_lab.training import (
    TRAINS_ONLY,
    Entry,
    Outcome,
    read_training,
    threshold_of,
    train_in_turns,
    with_thresholds,
)

MOST_ACTORS: Final = 8
"""Most actors that a figure tries on any machine; it tries more where there are cores for them."""

Axis = Literal["actors", "groups"]


@dataclass(frozen=True)
class Figure:
    """A figure or table of the paper.

    Attributes:
        actors: of a group, unless the user names others; () for powers of two up to the machine's cores.
        groups: unless the user names others; () for the config's.
        learners: of a group, unless the user names others; None for the config's.
        times_cores: factor of the config's cores of a learner.
        scales_batch: whether batches grow with the cores of a group's learners.
        until_threshold: whether a training ends when it has reached the threshold.
    """

    axis: Axis
    title: str
    actors: tuple[int, ...] = ()
    groups: tuple[int, ...] = ()
    learners: int | None = None
    times_cores: int = 1
    scales_batch: bool = False
    until_threshold: bool = False


_L2: Final = Figure("actors", "two learners and 2 to 24 actors", actors=(2, 4, 8, 16, 24), learners=2)
FIGURES: Final[Mapping[str, Figure]] = {
    "6a": Figure("actors", "throughput and time against actors"),
    "6b": Figure(
        "actors",
        "throughput and time against actors, with more learner cores and larger batches",
        times_cores=2,
        scales_batch=True,
    ),
    "6c": Figure("groups", "throughput and time against groups", groups=(1, 2, 4), scales_batch=True),
    "4c": Figure("actors", "time to the threshold against actors", until_threshold=True),
    "table1": _L2,
    "12b": _L2,
}
"""Figures and tables by name; ``table1`` and ``12b`` show the same trainings."""


@dataclass(frozen=True)
class Request:
    """Request of the command line; None and () stand for the figure's values.

    Attributes:
        threshold: mean return of 100 episodes; the time until a training first reaches it is measured. None
            for the config's first.
    """

    repeats: int
    seconds: float
    figure: str = "6a"
    actors: Sequence[int] = ()
    groups: Sequence[int] = ()
    learners: int | None = None
    learner_cores: int | None = None
    threshold: float | None = None
    overrides: Sequence[str] = ()
    others: Others | None = None


@dataclass(frozen=True)
class Setting:
    """A point of a figure.

    Attributes:
        cores: that all roles ask for.
        oversubscribed: whether roles ask for more cores than one of the hosts has, so that they take turns.
    """

    split: Split
    cores: int
    oversubscribed: bool

    @property
    def name(self) -> str:
        """Name in the paper's notation: L2A8."""
        return self.split.name

    @property
    def directory(self) -> str:
        """Name of the experiment, and so of a directory."""
        return self.split.name.lower().replace(" ", "")


@dataclass(frozen=True)
class Study:
    """Plan of the trainings, checked as far as possible before they run.

    Attributes:
        job: the config, loaded with ``overrides``.
        overrides: the user's, those of hosts and those of larger batches.
        threshold: mean return of 100 episodes; the time until a training first reaches it is measured. None
            measures no time.
        refused: points of the figure that the config does not allow, with the message of its checks.
        cores: usable ones of all hosts.
    """

    figure: str
    config: str
    job: JobConfig
    overrides: tuple[str, ...]
    settings: tuple[Setting, ...]
    refused: Mapping[Split, str]
    seeds: tuple[int, ...]
    threshold: float | None
    seconds: float
    cores: int
    others: Others | None = None

    @property
    def of(self) -> Figure:
        """Figure of the study."""
        return FIGURES[self.figure]

    def entry(self, setting: Setting) -> Entry:
        """Make the entry of a setting in the table of trainings."""
        more = () if self.threshold is None else (self.threshold,)
        stop = f"wall_s = {json.dumps(self.seconds)}"
        if self.of.until_threshold:
            stop += f", mean_return = {json.dumps(self.threshold)}"
        overrides = (
            *TRAINS_ONLY,
            "experiment.checkpoint_every_s=1e9",
            *self.overrides,
            *setting.split.settings,
            with_thresholds(self.job, *more),
            f"experiment.stop={{ {stop} }}",
        )
        return Entry(setting.directory, self.config, overrides)


def plan_study(config: str, request: Request) -> Study:
    """Plan the trainings, and find the settings that the config refuses.

    Raises:
        UsageError: the request does not fit together.
        ConfigError: the config is refused, or every setting of it.
    """
    figure = FIGURES[request.figure]
    _check(request, figure)
    overrides = list(request.overrides)
    hosts = 1
    if request.others is not None:
        hosts += len(request.others.names)
        overrides += as_settings(host_values(load_config(config, overrides), hosts))
    job = load_config(config, overrides)
    if job.distribution.hosts.max != hosts:
        raise UsageError(f"{HOSTS} is {job.distribution.hosts.max}: --hosts names the hosts that take part")
    threshold = None
    if request.threshold is not None or job.experiment.thresholds or not request.figure.startswith("6"):
        threshold = threshold_of(config, job, request.threshold)
    like = _split_like(job, request, figure)
    if figure.scales_batch:
        overrides += batch_settings(job, like)
    cores = hosts * len(usable_cores())
    settings: list[Setting] = []
    refused: dict[Split, str] = {}
    problem = None
    for split in _splits(like, request, figure, cores):
        try:
            own = load_config(config, [*overrides, *split.settings])
        except ConfigError as error:
            problem = problem or error
            refused[split] = error.problems[0].what
            continue
        wanted = split.cores + split.groups * sum(section.cores_of_all for section in own.roles.values())
        settings.append(Setting(split, wanted, _is_oversubscribed(own)))
    if problem is not None and not settings:
        raise problem
    first = job.experiment.seed
    return Study(
        request.figure,
        config,
        load_config(config, overrides),
        tuple(overrides),
        tuple(settings),
        refused,
        tuple(range(first, first + request.repeats)),
        threshold,
        request.seconds,
        cores,
        request.others,
    )


def batch_settings(job: JobConfig, split: Split) -> list[str]:
    """List settings that scale a group's batch, and its replay, with the cores of its learners.

    So P, the batch's share of the buffer (Equation 2), remains the config's.

    Args:
        split: of the trainings, with the number and the cores of the learners.
    """
    learner = job.distribution.learner
    times = split.learners * split.learner_cores / (learner.num * learner.cores)
    values = job.training.settings.model_dump()
    if times == 1:
        return []
    if not isinstance(job.training.settings, OnPolicySettings):
        return [
            f"training.batch_size={round(times * values['batch_size'])}",
            f"distribution.buffer.capacity={round(times * job.distribution.buffer.capacity)}",
        ]
    rollout, minibatch = values["rollout_steps"], values.get("minibatch_size")
    if minibatch is None:
        return [f"training.rollout_steps={round(times * rollout)}"]
    larger = round(times * minibatch)
    # A rollout that is no whole number of minibatches would be cut into smaller minibatches again.
    more = [] if rollout % larger == 0 else [f"training.rollout_steps={round(times * rollout)}"]
    return [f"training.minibatch_size={larger}", *more]


def _split_like(job: JobConfig, request: Request, figure: Figure) -> Split:
    """Make the split that all settings of a figure share, except for the axis of the figure."""
    own = split_of(job)
    return replace(
        own,
        learners=request.learners or figure.learners or own.learners,
        learner_cores=request.learner_cores or figure.times_cores * own.learner_cores,
        actors=next(iter(request.actors), own.actors),
        groups=next(iter(request.groups), own.groups),
    )


def _splits(like: Split, request: Request, figure: Figure, cores: int) -> list[Split]:
    if figure.axis == "groups":
        numbers = sorted(set(request.groups)) or figure.groups
        return [replace(like, groups=groups) for groups in numbers]
    most = max(MOST_ACTORS, cores)
    numbers = sorted(set(request.actors)) or figure.actors or powers_of_two(most)
    return [replace(like, actors=actors) for actors in numbers]


def _is_oversubscribed(job: JobConfig) -> bool:
    """Whether the roles on a host ask for more cores than it has; all hosts count as like this one."""
    distribution = job.distribution
    if distribution.one_process:
        return False  # All roles share one thread, and ask for no more.
    wants = {"buffer": distribution.buffer.cores, "actor": distribution.actor.cores}
    wants |= {name: section.cores for name, section in job.roles.items()} | {EXAMINER: 0}
    hosts = expected_hosts(job)
    wanted = dict.fromkeys((host.name for host in hosts), 0)
    for process in make_plan(job, hosts).trainers:
        learns = "learner" in process.roles or process.roles == ("follower",)
        wanted[process.host] += distribution.learner.cores if learns else wants[process.roles[0]]
    return any(wanted[host.name] > len(host.cores) for host in hosts)


def _check(request: Request, figure: Figure) -> None:
    """Refuse a request that the study cannot train."""
    launch = launched()
    if launch is not None and launch.size > 1:
        raise UsageError(
            f"a launcher has started {launch.size} of these: start bench scaling once, and name other hosts "
            "with --hosts (in a Slurm allocation it finds them)"
        )
    others = {"actors": ("--groups", request.groups), "groups": ("--actors", request.actors)}
    option, numbers = others[figure.axis]
    if len(set(numbers)) > 1:
        raise UsageError(
            f"figure {request.figure} is over {figure.axis}: {option} names one number for all points"
        )
    if not (request.seconds > 0 and math.isfinite(request.seconds)):
        raise UsageError(f"--seconds {request.seconds:g} is no time to train for")
    taken = {ACTORS: "--actors"} if figure.axis == "actors" else {GROUPS: "--groups"}
    if figure.learners is not None:
        taken[LEARNERS] = "--learners"
    for override in request.overrides:
        key = override.partition("=")[0].strip()
        if key.startswith("experiment.stop"):
            raise UsageError(f"--set {override}: --seconds says when the trainings of bench scaling end")
        if key in taken:
            raise UsageError(f"--set {override}: in figure {request.figure}, {taken[key]} says that")


def measure(study: Study, place: Path | None, *, quiet: bool) -> dict[Setting, Outcome]:
    """Train every setting with every seed; the settings take turns.

    If a training fails, the others still have figures.
    """
    return train_in_turns(
        {setting: study.entry(setting) for setting in study.settings},
        study.seeds,
        place,
        read=partial(read_training, threshold=study.threshold, settles=not study.of.until_threshold),
        threshold=study.threshold,
        train=None if study.others is None else partial(train_over_hosts, others=study.others),
        keep_going=True,
        quiet=quiet,
    )

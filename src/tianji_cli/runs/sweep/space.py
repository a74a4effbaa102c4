"""The parameters of a sweep as values of a config; errors in them are found before a sweep begins."""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tomli_w

from tianji_cli.config.loader import SWEEP, resolve, sweep_of
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import Tree
from tianji_cli.config.sweep import Parameter, Sweep, holds, in_order, wanted_of
from tianji_cli.errors import ConfigError, Problem
from tianji_cli.quantities import exact
from tianji_cli.runs.sweep.metrics import BUILT_IN, TIME_TO

MOST_POINTS: Final = 10_000
"""Maximum size of a grid, in trials."""
USUAL_TRIALS: Final = 40
NOT_SEARCHED: Final = {
    "experiment.seed": "set sweep.seeds, how many a trial has",
    "experiment.plots": "no trial draws any",
    "distribution.hosts": "each trial of a sweep is on one host",
}
"""Keys that a sweep sets itself in every trial, each with a remedy."""

Values = dict[str, Any]
"""Values of a trial, by the keys of its parameters."""


@dataclass(frozen=True)
class Dimension:
    """A parameter and the type of its key.

    Attributes:
        whole: its values are whole numbers.
    """

    key: str
    parameter: Parameter
    whole: bool

    def label(self, choice: Any) -> str | int | float | bool:
        """Return a choice as a label for Optuna, which has no lists and tables."""
        return choice if isinstance(choice, str | int | float | bool) else json.dumps(choice, sort_keys=True)

    def choice(self, label: Any) -> Any:
        """Return the choice that a label stands for."""
        assert self.parameter.choices is not None
        return next(one for one in self.parameter.choices if self.label(one) == label)

    def points(self) -> Sequence[Any]:
        """List the values of a grid.

        Raises:
            ValueError: neither a step nor a number of points limits the values.
        """
        if self.parameter.choices is not None:
            return self.parameter.choices
        low, high, step = self.parameter.low, self.parameter.high, self.parameter.step
        assert low is not None
        assert high is not None
        if self.parameter.points is not None:
            spaced = np.geomspace if self.parameter.log else np.linspace
            found = [float(one) for one in np.clip(spaced(low, high, self.parameter.points), low, high)]
        elif step is None and (self.parameter.log or not self.whole):
            raise ValueError("a grid has no end of values between low and high; say how many: points = 5")
        else:
            number = math.floor((high - low) / (step or 1) + 1e-9) + 1
            if number > MOST_POINTS:
                raise ValueError(f"{number} values are more than a grid may have; say how many: points = 5")
            found = [low + place * (step or 1) for place in range(number)]
        return sorted({round(value) for value in found}) if self.whole else found


@dataclass(frozen=True)
class Space:
    """All parameters; each comes after those that its conditions name."""

    dimensions: tuple[Dimension, ...]

    def grid(self) -> list[Values]:
        """List the distinct combinations of values, up to one more than ``MOST_POINTS``."""
        return list(itertools.islice(self._combinations(0, {}), MOST_POINTS + 1))

    def _combinations(self, place: int, values: Values) -> Iterator[Values]:
        if place == len(self.dimensions):
            yield values
            return
        dimension = self.dimensions[place]
        if not holds(dimension.parameter, values):
            yield from self._combinations(place + 1, values)
            return
        for point in dimension.points():
            yield from self._combinations(place + 1, {**values, dimension.key: point})


@dataclass(frozen=True)
class Plan:
    """A sweep that can be run.

    Attributes:
        tree: contents of files and options, from which the config of every trial is made.
        job: the config without any parameter set.
        trials: number of trials.
    """

    tree: Tree
    job: JobConfig
    sweep: Sweep
    space: Space
    trials: int

    def toml(self) -> str:
        """Return the config that all processes share, as TOML."""
        return tomli_w.dumps(self.tree.values)

    def config_with(self, values: Mapping[str, Any]) -> str:
        """Return the config of a trial, as TOML."""
        return tomli_w.dumps(_with(self.tree, values).values)

    @property
    def seeds(self) -> range:
        """Seeds of each trial."""
        first = self.job.experiment.seed
        return range(first, first + self.sweep.seeds)


def plan_sweep(tree: Tree, trials: int | None) -> Plan:
    """Check that a sweep can be run: every parameter is a key, and both ends of its range can be loaded.

    Args:
        trials: number of trials in place of the config's.

    Raises:
        ConfigError: with every problem that was found.
    """
    job = resolve(tree)
    sweep = sweep_of(tree) if SWEEP in tree.values else None
    if sweep is None:
        raise ConfigError([Problem(tree.origin(()), SWEEP, "missing", _EXAMPLE)])
    if not sweep.parameters:
        raise ConfigError([Problem(tree.origin((SWEEP,)), "sweep.parameters", "there are none", _EXAMPLE)])
    _check_metric(tree, sweep, job)
    _check_pruner(tree, sweep, job)
    if job.distribution.hosts.max > 1:
        tree.problem("distribution.hosts", NOT_SEARCHED["distribution.hosts"], "set it to 1")
    space = Space(tuple(_dimension(tree, sweep, key) for key in in_order(sweep.parameters)))
    number = trials or sweep.trials or USUAL_TRIALS
    if sweep.sampler == "grid" and not tree.problems:
        number = _size_of_grid(tree, space, trials or sweep.trials)
    if tree.problems:
        raise ConfigError(tree.problems)
    return Plan(tree, job, sweep, space, number)


_EXAMPLE: Final = (
    "for example [sweep.parameters] with training.learning_rate = { low = 1e-5, high = 1e-2, log = true }"
)


def _with(tree: Tree, values: Mapping[str, Any]) -> Tree:
    """Set parameters in a copy of a config, without ``[sweep]``."""
    changed = copy.deepcopy(tree)
    changed.values.pop(SWEEP, None)
    for key, value in values.items():
        changed.assign(tuple(key.split(".")), value, f"sweep.parameters.{key}")
    return changed


def _dimension(tree: Tree, sweep: Sweep, key: str) -> Dimension:
    """Check that a key takes its values, and add a problem if it does not."""
    parameter = sweep.parameters[key]
    if key in NOT_SEARCHED or key.partition(".")[0] == SWEEP:
        remedy = NOT_SEARCHED.get(key, "a trial has no [sweep]")
        tree.problem((SWEEP, "parameters", *key.split(".")), "it is the same in all trials", remedy)
        return Dimension(key, parameter, whole=False)
    others = _met(sweep.parameters, key)
    for value in parameter.ends:
        wrong = _objection(tree, {**others, key: value})
        if wrong is not None:
            tree.problem((SWEEP, "parameters", *key.split(".")), *_out_of_range(key, value, wrong))
            return Dimension(key, parameter, whole=False)
    if parameter.choices is not None:
        return Dimension(key, parameter, whole=False)
    wrong = _objection(tree, {**others, key: parameter.inside})
    if wrong is not None and not parameter.is_whole:
        tree.problem((SWEEP, "parameters", *key.split(".")), *_out_of_range(key, parameter.inside, wrong))
    return Dimension(key, parameter, parameter.is_whole and (wrong is not None or parameter.step is not None))


def _met(parameters: Mapping[str, Parameter], key: str) -> Values:
    """Return values of other parameters that meet one parameter's conditions."""
    found: Values = {}
    for other, wanted in parameters[key].when.items():
        found |= _met(parameters, other)
        found[other] = wanted_of(wanted)[0]
    return found


def _objection(tree: Tree, values: Values) -> Problem | None:
    """Return the first problem of a config with these values; None if it is valid."""
    changed = _with(tree, values)
    changed.problems.clear()
    try:
        resolve(changed)
    except ConfigError as error:
        return error.problems[0]
    return None


def _out_of_range(key: str, value: Any, wrong: Problem) -> tuple[str, str]:
    of = "" if wrong.key == key else f"{wrong.key}: "
    shown = exact(value) if isinstance(value, float) else repr(value)
    return f"{shown} is out of its range: {of}{wrong.what}", wrong.remedy


def _check_metric(tree: Tree, sweep: Sweep, job: JobConfig) -> None:
    experiment = job.experiment
    known = [f"{TIME_TO}{exact(threshold)}" for threshold in experiment.thresholds]
    known += [*BUILT_IN, *job.environment.metrics]
    if experiment.evaluation is None and experiment.eval_episodes == 0:
        known.remove("evaluation")
    if sweep.metric not in known:
        of = ", ".join(sorted(known))
        remedy = {
            "evaluation": "set experiment.eval_episodes",
            "mean_return": "'best_mean_100' would be right, the highest mean return of 100 episodes",
        }.get(sweep.metric, f"of this config: {of}")
        tree.problem("sweep.metric", f"no trial has a metric {sweep.metric!r}", remedy)


def _check_pruner(tree: Tree, sweep: Sweep, job: JobConfig) -> None:
    if sweep.pruner == "none":
        return
    if sweep.of_time:
        remedy = 'another metric has values while a trial runs; or pruner = "none"'
        tree.problem("sweep.pruner", f"{sweep.metric} is not known before it is over", remedy)
    elif sweep.metric == "evaluation" and job.experiment.evaluation is None:
        remedy = "set [experiment.evaluation], for example every_env_steps = 10_000"
        tree.problem("sweep.pruner", "nothing is evaluated while a trial runs", remedy)
    elif sweep.metric != "evaluation" and job.experiment.stop.env_steps is None:
        remedy = "set experiment.stop.env_steps"
        tree.problem(
            "sweep.pruner", "trials are compared at shares of their env steps, which have no end", remedy
        )


def _size_of_grid(tree: Tree, space: Space, trials: int | None) -> int:
    for dimension in space.dimensions:
        try:
            dimension.points()
        except ValueError as error:
            tree.problem((SWEEP, "parameters", *dimension.key.split(".")), str(error))
    if tree.problems:
        return 0
    size = len(space.grid())
    if size > MOST_POINTS:
        tree.problem("sweep.sampler", f"the grid has more than {MOST_POINTS} points", "take fewer of each")
    return size if trials is None else min(size, trials)

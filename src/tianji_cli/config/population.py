"""``[population]``: hyperparameters of the members, at the start and later, and a member's config.

Members are groups of one job: they share its plan and the layout of all messages. So only settings that an
agent or an update rule calls ``adjustable`` can be perturbed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from tianji_cli.config.schema import (
    Component,
    Distribution,
    Experiment,
    JobConfig,
    Perturbed,
    Population,
)
from tianji_cli.config.source import Conflict
from tianji_plugins import did_you_mean

if TYPE_CHECKING:  # A shell that completes a word reads configs without it.
    import numpy as np

Hyperparameters = dict[str, Any]
"""Hyperparameters of a member, by perturbed key."""

PERTURBED_SECTIONS: Final = ("training", "agent")

_SHOWN: Final = 100
"""Maximum characters of the reason why a value does not fit."""


def _members_are_groups(population: Population, distribution: Distribution) -> Iterator[Conflict]:
    """Members are several groups, each of one learner and its buffer."""
    groups = distribution.groups
    if groups < 2:
        what = "its members are groups, and there is one"
        keys = ["population", "distribution.groups"]
        yield Conflict(keys, what, "distribution.groups = 4 would be right")
    if distribution.learner.num > 1:
        what = f"a member has one learner, and there are {distribution.learner.num} in a group"
        yield Conflict(["population", "distribution.learner.num"], what, "learner.num = 1 would be right")
    if not distribution.buffer.colocate:
        what = "a member's buffer takes turns with its learner, and here it has a process of its own"
        keys = ["population", "distribution.buffer.colocate"]
        yield Conflict(keys, what, "buffer.colocate = true would be right")
    for key, perturbed in population.perturb.items():
        if perturbed.initial is not None and len(perturbed.initial) != groups:
            what = f"initial: it has {len(perturbed.initial)} values, and there are {groups} members"
            yield Conflict([f"population.perturb.{key}"], what, "one for each is right")


def _members_are_compared(
    population: Population, experiment: Experiment, distribution: Distribution | None = None
) -> Iterator[Conflict]:
    """Members are compared before the run ends, by a metric that there is."""
    if population.metric == "evaluation" and experiment.evaluation is None:
        what = "nothing is evaluated while training"
        yield Conflict(["population.metric"], what, 'set [experiment.evaluation]; or metric = "mean_100"')
    end, groups = experiment.stop.env_steps, 1 if distribution is None else distribution.groups
    if end is not None and population.interval * groups >= end:
        what = f"{groups} members of {population.interval} env steps each have as many as the run, {end}"
        keys = ["population.interval", "experiment.stop.env_steps", "distribution.groups"]
        yield Conflict(keys, f"{what}: it would end before they are compared", "a shorter interval is right")


def _members_may_differ(
    population: Population, training: Component | None = None, agent: Component | None = None
) -> Iterator[Conflict]:
    """Perturbed keys are there, may change during training, and take all of their values."""
    components = {"training": training, "agent": agent}
    can = sorted(f"{one}.{key}" for one, of in components.items() if of for key in adjustable(of))
    these = f"these can: {', '.join(can)}" if can else "nothing of this config can be"
    for key, perturbed in population.perturb.items():
        section, _, name = key.partition(".")
        wrong: tuple[str, str] | None = None
        if section not in components:
            wrong = "members cannot differ in it: it is part of the plan they share", these
        elif (component := components[section]) is not None:  # None has a problem of its own.
            wrong = _refusal(component, section, name, perturbed, these)
        if wrong is not None:
            yield Conflict([f"population.perturb.{key}"], *wrong)


def _refusal(
    component: Component, section: str, name: str, perturbed: Perturbed, these: str
) -> tuple[str, str] | None:
    """Return why members cannot differ in a setting, with a remedy; None if they can.

    Args:
        these: names the settings in which they can.
    """
    known = type(component.settings).model_fields
    if name not in known:
        return f"{section} has no key {name!r}", did_you_mean(name, list(known), "keys")
    if name not in adjustable(component):
        return f"{component.type!r} cannot change it while it trains", these
    if (section, name) == ("training", "gamma") and _may_normalize_rewards(component.settings):
        what = "actors scale rewards by returns of this discount, and it stays theirs"
        return what, "training.normalize_rewards = false would be right"
    for value in (*perturbed.ends, *(perturbed.initial or ())):
        if (wrong := _objection(component, name, value)) is not None:
            return f"{value!r} is out of its range: {wrong}", ""
    return None


RULES: Final = (_members_are_groups, _members_are_compared, _members_may_differ)
"""Rules of ``checks`` that a population keeps."""


def _may_normalize_rewards(settings: Any) -> bool:
    """Whether an update rule's settings normalise rewards, or with "auto" may do so."""
    asked = getattr(settings, "normalize_rewards", False)
    return bool(settings.may_scale_rewards if asked == "auto" else asked)


def adjustable(component: Component) -> frozenset[str]:
    """Names of the settings of an agent or an update rule that may change during training."""
    named: frozenset[str] = getattr(type(component.settings), "adjustable", frozenset())
    return named & type(component.settings).model_fields.keys()


def _objection(component: Component, name: str, value: Any) -> str | None:
    """Return why a setting does not take a value; None if it does."""
    try:
        _with_setting(component.settings, {name: value})
    except ValidationError as error:
        return str(error.errors()[0]["msg"])[:_SHOWN]
    return None


def _with_setting(settings: BaseModel, values: Mapping[str, Any]) -> BaseModel:
    """Validate settings with other values, like those of a config."""
    table = settings.model_dump(mode="json", by_alias=True) | dict(values)
    return type(settings).model_validate_json(to_json(table))


def config_with(config: JobConfig, hyperparameters: Mapping[str, Any]) -> JobConfig:
    """Return a member's config: the job's, with its hyperparameters.

    Raises:
        ValidationError: the hyperparameters do not fit one another; has the settings' own message.
    """
    changes: dict[str, Component] = {}
    for section in PERTURBED_SECTIONS:
        own = {
            key.partition(".")[2]: value
            for key, value in hyperparameters.items()
            if key.startswith(f"{section}.")
        }
        if own:
            component: Component = getattr(config, section)
            settings = _with_setting(component.settings, own)
            changes[section] = Component(type=component.type, settings=settings)
    return config.model_copy(update=changes) if changes else config


class Explorer:
    """Draws hyperparameters from the ranges of a population, and perturbs them within the ranges."""

    def __init__(self, config: JobConfig) -> None:
        assert config.population is not None
        self._population = config.population
        self._whole = {key: _is_whole(config, key, one) for key, one in config.population.perturb.items()}

    def first(self, members: int, rng: np.random.Generator) -> tuple[Hyperparameters, ...]:
        """Draw the hyperparameters of all members, or take the config's ``initial`` values."""
        return tuple(
            {
                key: one.initial[member] if one.initial is not None else self._draw(key, one, rng)
                for key, one in self._population.perturb.items()
            }
            for member in range(members)
        )

    def near(self, hyperparameters: Mapping[str, Any], rng: np.random.Generator) -> Hyperparameters:
        """Explore: with probability ``resample`` draw each anew, else move it one step."""
        return {
            key: self._draw(key, one, rng)
            if key not in hyperparameters or rng.random() < self._population.resample
            else self._perturb(key, one, hyperparameters[key], rng)
            for key, one in self._population.perturb.items()
        }

    def _draw(self, key: str, one: Perturbed, rng: np.random.Generator) -> Any:
        if one.choices is not None:
            return one.choices[int(rng.integers(len(one.choices)))]
        assert one.low is not None
        assert one.high is not None
        if self._whole[key] and not one.log:
            return int(rng.integers(int(one.low), int(one.high) + 1))
        share = rng.random()
        if one.log:
            return self._fit(key, one, one.low * (one.high / one.low) ** share)
        return self._fit(key, one, one.low + share * (one.high - one.low))

    def _perturb(self, key: str, one: Perturbed, value: Any, rng: np.random.Generator) -> Any:
        if one.choices is None:
            factor = one.factors[int(rng.integers(len(one.factors)))]
            found = self._fit(key, one, value * factor)
            if found == value and factor != 1 and self._whole[key]:
                # A small whole number, times 0.8 and rounded, would never change.
                return self._fit(key, one, value + math.copysign(1, (factor - 1) * (value or 1)))
            return found
        step = 2 * int(rng.integers(2)) - 1
        if value not in one.choices:  # The session before had another config.
            return self._draw(key, one, rng)
        return one.choices[min(max(one.choices.index(value) + step, 0), len(one.choices) - 1)]

    def _fit(self, key: str, one: Perturbed, value: float) -> int | float:
        assert one.low is not None
        assert one.high is not None
        within = min(max(value, one.low), one.high)
        return math.floor(within + 0.5) if self._whole[key] else float(within)


def _is_whole(config: JobConfig, key: str, perturbed: Perturbed) -> bool:
    """Whether a hyperparameter takes whole numbers alone."""
    if perturbed.choices is not None or not perturbed.is_whole:
        return False
    section, _, name = key.partition(".")
    return _objection(getattr(config, section), name, perturbed.inside) is not None

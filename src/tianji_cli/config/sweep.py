"""``[sweep]``: which parameters a sweep searches, in what range, and what it judges trials by.

TOML's dotted keys are tables in tables, so ``[sweep.parameters]`` is a tree whose leaves are parameters.
Every command reads the section and refuses what is wrong in it; only `tianji sweep` acts on it, and looks
whether the parameters are keys of the config.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tianji_cli.config.schema import Count, Natural, Section


class Parameter(Section):
    """A key that is searched: a range, or a list of choices.

    Attributes:
        low: least value.
        high: greatest value. With whole numbers at both ends, 3.0 among them, and a key that takes no others,
            values are whole.
        log: whether all orders of magnitude are as likely.
        step: of values, from ``low`` on.
        points: of a grid over a range, its ends among them.
        choices: values in place of a range, of any kind.
        when: choices of other parameters with which this one matters, one value or a list of them each; a
            trial that has others leaves the config's own value.
    """

    low: float | None = None
    high: float | None = None
    log: bool = False
    step: Annotated[float | None, Field(gt=0)] = None
    points: Annotated[int | None, Field(ge=2, le=10_000)] = None
    choices: Annotated[tuple[Any, ...] | None, Field(strict=False)] = None
    when: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_a_range_or_choices(self) -> Self:
        if self.choices is not None:
            if {"low", "high", "log", "step", "points"} & self.model_fields_set:
                raise ValueError("choices: they have no range; leave out low, high, log, step and points")
            if not self.choices:
                raise ValueError("choices: there are none")
            if any(choice in self.choices[:place] for place, choice in enumerate(self.choices)):
                raise ValueError("choices: one is there twice")
            return self
        if self.low is None or self.high is None:
            raise ValueError(
                "a range has low and high; write { low = 1e-5, high = 1e-2 } or { choices = [...] }"
            )
        if self.low >= self.high:
            raise ValueError(f"low: {self.low:g} is not less than high, {self.high:g}")
        if self.log and self.low <= 0:
            raise ValueError(f"low: {self.low:g} has no logarithm; with log = true it is above 0")
        if self.step is not None and (self.log or self.points is not None):
            raise ValueError("step: it goes neither with log nor with points")
        if self.step is not None:
            steps = (self.high - self.low) / self.step
            if not math.isclose(steps, round(steps), rel_tol=1e-6) or steps < 1:
                raise ValueError(f"step: high is not a whole number of steps of {self.step:g} above low")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether both ends, and the step if there is one, are whole numbers."""
        return all(float(number or 0).is_integer() for number in (self.low, self.high, self.step))


def _flat(tree: object) -> object:
    """Turn a tree of parameters into a table by dotted keys; what is no table is left to be refused."""
    return dict(_leaves(tree, ())) if isinstance(tree, dict) else tree


def _leaves(tree: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = (*at, key)
        if isinstance(value, dict) and value and not _is_leaf(value):
            yield from _leaves(value, path)
        else:
            yield ".".join(path), value


def _is_leaf(table: Mapping[str, Any]) -> bool:
    """Whether a table is a parameter: a key called ``low`` may be on the way to one, as a table."""
    return any(key in Parameter.model_fields and not isinstance(table[key], dict) for key in table)


class Sweep(Section):
    """A search for good values of some keys; ``tianji sweep`` runs it.

    Attributes:
        metric: what trials are judged by: "evaluation", "mean_100", "best_mean_100", "time_to.475" (a
            threshold of ``experiment.thresholds``), or one of ``environment.metrics``.
        direction: of what is better: "maximize", or "minimize", which is the default of a ``time_to``.
        sampler: draws parameters: "tpe", "cmaes", "random" or "grid".
        pruner: ends trials that do worse than others did by then: "hyperband", "median" or "none".
        trials: how many; 40, or all of a grid, by default.
        seeds: of each trial, from ``experiment.seed`` on. Its value is their mean.
        seed: of the sampler's draws.
        parameters: by their keys, such as ``training.learning_rate``.
    """

    metric: Annotated[str, Field(min_length=1)] = "evaluation"
    direction: Literal["maximize", "minimize"] | None = None
    sampler: Literal["tpe", "cmaes", "random", "grid"] = "tpe"
    pruner: Literal["hyperband", "median", "none"] = "none"
    trials: Annotated[Count | None, Field(le=10_000)] = None
    seeds: Annotated[Count, Field(le=1000)] = 1
    seed: Annotated[Natural, Field(le=2**32 - 1)] = 0
    parameters: Annotated[dict[str, Parameter], BeforeValidator(_flat)] = Field(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _conditions_are_met_by_others(cls, parameters: dict[str, Parameter]) -> dict[str, Parameter]:
        for key, parameter in parameters.items():
            for other, wanted in parameter.when.items():
                if other not in parameters or parameters[other].choices is None:
                    raise ValueError(
                        f"{key} depends on {other!r}, which is no parameter with a list of values"
                    )
                if not any(one in (parameters[other].choices or ()) for one in wanted_of(wanted)):
                    raise ValueError(f"{key} depends on {other} being {wanted!r}, which it never is")
        in_order(parameters)
        return parameters

    @property
    def of_time(self) -> bool:
        """Whether the metric is a time, and not a return."""
        return self.metric.startswith("time_to.")

    @property
    def minimizes(self) -> bool:
        """Whether less is better."""
        return self.direction == "minimize" or (self.direction is None and self.of_time)


def wanted_of(condition: Any) -> tuple[Any, ...]:
    """List the values of another parameter that a condition takes."""
    return tuple(condition) if isinstance(condition, list | tuple) else (condition,)


def in_order(parameters: Mapping[str, Parameter]) -> list[str]:
    """Sort parameters so that each comes behind those that its conditions are about.

    Raises:
        ValueError: conditions go in a circle.
    """
    found: list[str] = []
    while len(found) < len(parameters):
        ready = [key for key in parameters if key not in found and set(parameters[key].when) <= set(found)]
        if not ready:
            raise ValueError("they depend on one another in a circle")
        found += ready
    return found


def holds(parameter: Parameter, values: Mapping[str, Any]) -> bool:
    """Whether a parameter matters, beside the values of the others."""
    return all(
        other in values and values[other] in wanted_of(wanted) for other, wanted in parameter.when.items()
    )


def between(parameter: Parameter) -> float:
    """Return a value inside a range: the second one of those in steps, else one that is no whole number."""
    assert parameter.low is not None
    assert parameter.high is not None
    if parameter.step is not None:
        return parameter.low + parameter.step
    inside = (parameter.low + parameter.high) / 2
    return inside if not math.isclose(inside, round(inside)) else inside - 0.25

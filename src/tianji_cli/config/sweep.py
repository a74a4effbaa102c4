"""``[sweep]``: parameters of a sweep, their ranges, and the metric of its trials.

TOML's dotted keys are tables in tables, so ``[sweep.parameters]`` is a tree whose leaves are parameters.
Every command reads the section and refuses errors in it; only `tianji sweep` acts on it, and checks that the
parameters are keys of the config.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from tianji_cli.config.schema import Count, Natural, Range, Section, by_dotted_key


class Parameter(Range):
    """A key that is searched: a range, or a list of choices.

    Attributes:
        step: of values, from ``low`` on.
        points: of a grid over a range, its ends among them.
        when: choices of other parameters with which this one matters, one value or a list of them each; a
            trial that has others leaves the config's own value.
    """

    step: Annotated[float | None, Field(gt=0)] = None
    points: Annotated[int | None, Field(ge=2, le=10_000)] = None
    when: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_steps_of_a_range(self) -> Self:
        if self.choices is not None:
            if {"step", "points"} & self.model_fields_set:
                raise ValueError("choices: they have no range; leave out step and points")
            return self
        assert self.low is not None
        assert self.high is not None
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
        return super().is_whole and float(self.step or 0).is_integer()

    @property
    def inside(self) -> float:
        """A value inside the range: the second one of a range in steps, else one that is no whole number."""
        if self.step is None:
            return super().inside
        assert self.low is not None
        return self.low + self.step


class Sweep(Section):
    """A search for good values of some keys; ``tianji sweep`` runs it.

    Attributes:
        metric: what trials are judged by: "evaluation", "mean_100", "best_mean_100", "time_to.475" (a
            threshold of ``experiment.thresholds``), or one of ``environment.metrics``.
        direction: of what is better: "maximize", or "minimize", which is the default of a ``time_to``.
        sampler: draws parameters: "tpe", "random" or "grid".
        pruner: ends trials that do worse than others did by then: "hyperband", "median" or "none".
        trials: how many; 40, or all of a grid, by default.
        seeds: of each trial, from ``experiment.seed`` on. Its value is their mean.
        seed: of the sampler's draws.
        parameters: by their keys, such as ``training.learning_rate``.
    """

    metric: Annotated[str, Field(min_length=1)] = "evaluation"
    direction: Literal["maximize", "minimize"] | None = None
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    pruner: Literal["hyperband", "median", "none"] = "none"
    trials: Annotated[Count | None, Field(le=10_000)] = None
    seeds: Annotated[Count, Field(le=1000)] = 1
    seed: Annotated[Natural, Field(le=2**32 - 1)] = 0
    parameters: Annotated[dict[str, Parameter], by_dotted_key(Parameter)] = Field(default_factory=dict)

    @field_validator("sampler", mode="before")
    @classmethod
    def _is_not_cmaes(cls, sampler: object) -> object:
        if sampler == "cmaes":
            raise ValueError("CMA-ES is no sampler any more; 'tpe' also draws what follows the best trials")
        return sampler

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
        """Whether the metric is a time; otherwise it is a return or another metric."""
        return self.metric.startswith("time_to.")

    @property
    def minimizes(self) -> bool:
        """Whether less is better."""
        return self.direction == "minimize" or (self.direction is None and self.of_time)


def wanted_of(condition: Any) -> tuple[Any, ...]:
    """List the values of another parameter that meet a condition."""
    return tuple(condition) if isinstance(condition, list | tuple) else (condition,)


def in_order(parameters: Mapping[str, Parameter]) -> list[str]:
    """Sort parameters so that each comes after the parameters that its conditions name.

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
    """Whether a parameter's conditions hold, with these values of the others."""
    return all(
        other in values and values[other] in wanted_of(wanted) for other, wanted in parameter.when.items()
    )

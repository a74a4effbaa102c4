"""What the best policy of a run is judged by: sessions that differ in it have each a best of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tianji_cli.config.loader import shown_value
from tianji_cli.config.schema import JobConfig

NO_DIFFERENCE = {"num_envs", "metrics"}
"""Keys of ``[environment]`` that leave an episode's return as it is."""


def differences(before: JobConfig, now: JobConfig) -> tuple[str, ...]:
    """Say in what two sessions judge policies otherwise: environment and rewards, and evaluations.

    No key of ``[training]`` is among it: returns are sums of the environment's own rewards.
    """
    return tuple(
        f"{key} was {_shown(one)} and is {_shown(other)}"
        for key, one, other in _apart("", _judged_by(before), _judged_by(now))
    )


def _judged_by(job: JobConfig) -> dict[str, Any]:
    environment = job.environment.model_dump(mode="json", exclude=NO_DIFFERENCE)
    evaluation, explores = job.experiment.evaluation, getattr(job.agent.settings, "eval_epsilon", None)
    if evaluation is None:
        return {"environment": environment}
    by = evaluation.model_dump(include={"episodes", "deterministic"})
    return {"environment": environment, "experiment.evaluation": by, "agent": {"eval_epsilon": explores}}


def _apart(at: str, one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys at which two tables differ, and the values there; None where there is none."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in dict.fromkeys((*one, *other)):
            yield from _apart(f"{at}.{key}" if at else key, one.get(key), other.get(key))
    elif one != other:
        yield at, one, other


def _shown(value: Any) -> str:
    return "not set" if value is None else shown_value(value)

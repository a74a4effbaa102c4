"""Settings by which a run judges its policies: sessions that differ in one have each their own best."""

from __future__ import annotations

from typing import Any

from tianji_cli.config.problems import shown_value
from tianji_cli.config.schema import JobConfig
from tianji_cli.config.source import differing

NO_DIFFERENCE = {
    *("num_envs", "metrics", "start_limit_s", "step_limit_s", "on_error"),
    *("step_ms", "step_jitter", "step_work"),
}
"""Keys of ``[environment]`` that leave an episode's return as it is."""


def differences(before: JobConfig, now: JobConfig) -> tuple[str, ...]:
    """Describe the settings by which two sessions judge policies differently.

    They are those of the environment, of the actions' scale and of evaluations. No key of ``[training]`` is
    among them: returns are sums of the environment's own rewards.
    """
    apart = differing(_judged_by(before), _judged_by(now))
    shown = {key: ["not set" if one is None else shown_value(one) for one in apart[key]] for key in apart}
    return tuple(f"{key} was {was} and is {now_is}" for key, (was, now_is) in shown.items())


def _judged_by(job: JobConfig) -> dict[str, Any]:
    evaluation = job.experiment.evaluation
    keys = ("scale_actions",) if evaluation is None else ("scale_actions", "eval_epsilon")
    judged = {f"agent.{key}": getattr(job.agent.settings, key, None) for key in keys}
    judged["environment"] = job.environment.model_dump(mode="json", exclude=NO_DIFFERENCE)
    if evaluation is not None:
        judged["experiment.evaluation"] = evaluation.model_dump(include={"episodes", "deterministic"})
    return judged

"""Makes environments as the section ``[environment]`` of a config says."""

from __future__ import annotations

from typing import Any

from tianji_cli.config.schema import Environment
from tianji_envs import registry as environments
from tianji_envs.core import VectorEnvironment


def build_environment(
    section: Environment, num_envs: int, render: bool = False, *, evaluation: bool = False, threads: int = 1
) -> VectorEnvironment:
    """Make ``num_envs`` of a section's environments; see ``EnvironmentFactory.make``.

    Raises:
        EnvironmentFailure: it cannot be found or built.
    """
    # Given only where the config asks: a factory says whether it takes them.
    asked: dict[str, Any] = {}
    if section.wrappers:
        asked["wrappers"] = [
            environments.find_wrapper(index, wrapper.type, wrapper.keywords)
            for index, wrapper in enumerate(section.wrappers)
        ]
    if section.metrics:
        asked["metrics"] = section.metrics
    return environments.find(section.type).make(
        section.id or "",
        num_envs,
        section.max_episode_steps,
        section.options,
        render,
        evaluation=evaluation,
        threads=threads,
        **asked,
    )

"""Makes the environments that the section ``[environment]`` of a config describes."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tianji_cli.config.schema import Environment
from tianji_cli.errors import UsageError
from tianji_cli.signals import HangsError, limit
from tianji_envs import registry as environments
from tianji_envs.core import VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError
from tianji_envs.wrappers import with_statistics


def build_environment(
    section: Environment, num_envs: int, render: bool = False, *, evaluation: bool = False, threads: int = 1
) -> VectorEnvironment:
    """Make ``num_envs`` of a section's environments; see ``EnvironmentFactory.make``.

    Raises:
        EnvironmentFailure: it cannot be found or built, or has statistics of its own that are not trusted.
    """
    # Passed on only if the config sets them: not every factory takes them.
    asked: dict[str, Any] = {}
    if section.wrappers:
        asked["wrappers"] = [
            environments.find_wrapper(index, wrapper.type, wrapper.keywords)
            for index, wrapper in enumerate(section.wrappers)
        ]
    if section.metrics:
        asked["metrics"] = section.metrics
    try:
        made = environments.find(section.type).make(
            section.id or "",
            num_envs,
            section.max_episode_steps,
            section.options,
            render,
            evaluation=evaluation,
            threads=threads,
            **asked,
        )
    except SystemExit as left:
        what = f"{section.id or section.type} called sys.exit({left.code!r}) when it was built"
        raise BrokenEnvironmentError(what) from left
    if not section.trust_wrappers and (found := with_statistics(made)):
        made.close()
        raise BrokenEnvironmentError(
            f"{section.id or section.type}: each copy's {' and '.join(found)} would keep statistics that are "
            "not saved: evaluations and loaded policies would see other numbers than training did; in its "
            "place training.normalize_observations = true or normalize_rewards = true would be right, whose "
            "statistics are saved; environment.trust_wrappers = true trains with it all the same"
        )
    return made


@contextmanager
def start_limit(section: Environment) -> Iterator[None]:
    """Limit the time in which a process builds its parts; a call that hangs in C ends it a minute later.

    Raises:
        UsageError: the time is up; names the line that has not returned.
    """
    try:
        with limit(section.start_limit_s):
            yield
    except HangsError as cause:
        *_, hangs, _ = traceback.extract_tb(cause.__traceback__)  # The last one is the alarm's.
        raise UsageError(
            f"environment.start_limit_s: a call had not returned after {section.start_limit_s:g} s: "
            f"{hangs.filename}:{hangs.lineno}, in {hangs.name}: {hangs.line}"
        ) from cause

"""Environment types ``"my_module:MyEnv"``: a user's own single environment, N times."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from tianji_envs.core import BaseEnv, EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import BrokenEnvironmentError, EnvironmentFailure, UnknownEnvironmentError
from tianji_envs.serial import GymnasiumEnv, SerialVectorEnvironment


class UserFactory(EnvironmentFactory):
    """Makes environments of one class.

    Args:
        name: the type as the config names it.
        environment: the class; its constructor gets the config's options.
    """

    def __init__(self, name: str, environment: type[BaseEnv] | type[gymnasium.Env[Any, Any]]) -> None:
        self._name = name
        self._environment = environment

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Refuse any id."""
        if id:
            raise UnknownEnvironmentError(f"type {self._name!r} is one environment and has no id {id!r}")

    def make(
        self,
        id: str,  # noqa: A002 - the config's word for it
        num_envs: int,
        max_episode_steps: int | None = None,
        options: Mapping[str, Any] | None = None,
        render: bool = False,
        *,
        evaluation: bool = False,  # noqa: ARG002 - episodes are whole, and rewards the environment's own
        threads: int = 1,  # noqa: ARG002 - all are stepped by the caller's thread
    ) -> VectorEnvironment:
        """Build N of the class."""
        self.check_id(id)
        keywords = dict(options or {})
        try:
            return SerialVectorEnvironment(
                self._name, lambda: self._create(keywords, render), num_envs, max_episode_steps
            )
        except EnvironmentFailure:
            raise
        except Exception as cause:
            raise BrokenEnvironmentError(
                f"{self._name} cannot be built with options {keywords}: {type(cause).__name__}: {cause}"
            ) from cause

    def _create(self, keywords: dict[str, Any], render: bool) -> BaseEnv:
        if issubclass(self._environment, BaseEnv):
            return self._environment(**keywords)
        if render:
            keywords = keywords | {"render_mode": "rgb_array"}
        return GymnasiumEnv(self._environment(**keywords))

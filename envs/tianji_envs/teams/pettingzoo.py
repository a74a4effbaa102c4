"""Environment type ``"pettingzoo"``: parallel environments as PettingZoo defines them, from any module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, ClassVar, Final

from tianji_envs.core import EnvironmentFactory, VectorEnvironment
from tianji_envs.errors import (
    BrokenEnvironmentError,
    EnvironmentFailure,
    MissingExtraError,
    UnknownEnvironmentError,
    WrongOptionError,
)
from tianji_envs.teams.pettingzoo_team import ParallelEnv, PettingZooTeam
from tianji_envs.serial import SerialVectorEnvironment
from tianji_envs.suggestions import nearest, nearest_or_all

_OF_EXTRA: Final = ("pettingzoo", "mpe2")
"""Packages that tianji's extra ``marl`` brings."""


class PettingZooFactory(EnvironmentFactory):
    """Makes environments of modules that have a ``parallel_env``."""

    makes_teams: ClassVar[bool | None] = True

    def check_id(self, id: str) -> None:  # noqa: A002 - the config's word for it
        """Import the module that the id names."""
        find_parallel_env(id)

    def check_options(self, id: str, options: Mapping[str, Any]) -> None:  # noqa: A002 - the config's word for it
        """Check names; which values there are, only the environment knows."""
        _check_keywords_of(id, find_parallel_env(id), options)

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
        """Build N with the options as keyword arguments of ``parallel_env``."""
        module = find_parallel_env(id)
        _check_keywords_of(id, module, options)
        return SerialVectorEnvironment(
            id, lambda: create_team(id, module.parallel_env, options, render), num_envs, max_episode_steps
        )


def find_parallel_env(id: str) -> ModuleType:  # noqa: A002 - the config's word for it
    """Import the module that an id names.

    Args:
        id: such as ``"pettingzoo.sisl.multiwalker_v9"``.

    Raises:
        UnknownEnvironmentError: no such module, or it has no ``parallel_env``; names the nearest.
        MissingExtraError: its package, or one that it needs, is not installed.
        BrokenEnvironmentError: it does not import.
    """
    try:
        module = importlib.import_module(id) if id else None
    except ModuleNotFoundError as cause:
        if cause.name not in _OF_EXTRA and f"{id}.".startswith(f"{cause.name}."):
            raise UnknownEnvironmentError(f"no module {cause.name!r}{_nearest(id)}") from cause
        raise missing(id, cause) from cause
    except Exception as cause:
        raise BrokenEnvironmentError(f"{id!r} does not import: {type(cause).__name__}: {cause}") from cause
    if module is None or not hasattr(module, "parallel_env"):
        raise UnknownEnvironmentError(
            f'{id!r} is no module with a parallel_env, as "mpe2.simple_spread_v3" is'
        )
    return module


def missing(id: str, cause: ModuleNotFoundError) -> MissingExtraError:  # noqa: A002 - the config's word for it
    """Say how to install the module that an environment lacks."""
    package, *families = id.split(".")
    if cause.name in _OF_EXTRA or package == "mpe2":
        command = "pip install 'tianji[marl]'"
    elif package == "pettingzoo" and families:
        command = f"pip install 'pettingzoo[{families[0]}]'"
    else:
        command = f"pip install {cause.name}"
    return MissingExtraError(f"{id} needs {cause.name!r}: {command}")


def _nearest(id: str) -> str:  # noqa: A002 - the config's word for it
    """Name what is most like an id among the modules of its package."""
    package, _, name = id.rpartition(".")
    try:
        spec = importlib.util.find_spec(package) if package else None
    except ModuleNotFoundError:
        return ""
    paths = spec.submodule_search_locations if spec else None
    names = [module.name for module in pkgutil.iter_modules(paths or [])]
    return nearest(name, names, lambda near: f"'{package}.{near}'")


def _check_keywords_of(id: str, module: ModuleType, options: Mapping[str, Any] | None) -> None:  # noqa: A002
    # Where parallel_env wraps a raw_env, it takes whatever that takes, and does not say what.
    check_keywords(id, getattr(module, "raw_env", module.parallel_env), options)


def check_keywords(name: str, create: Callable[..., object], options: Mapping[str, Any] | None) -> None:
    """Refuse options that ``create`` does not take by name, if it says which it takes.

    Raises:
        WrongOptionError: names the nearest.
    """
    parameters = inspect.signature(create).parameters.values()
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [parameter.name for parameter in parameters if parameter.name != "render_mode"]
    for option in options or {}:
        if option not in known:
            raise WrongOptionError(option, f"{name} has no option {option!r}{nearest_or_all(option, known)}")


def create_team(
    name: str, create: Callable[..., ParallelEnv], options: Mapping[str, Any] | None, render: bool
) -> PettingZooTeam:
    """Build one environment, and translate what goes wrong.

    Raises:
        MissingExtraError: it needs a library.
        UnsupportedSpaceError: says which agent and space.
        BrokenEnvironmentError: it cannot be built with these options.
    """
    keywords = dict(options or {}) | ({"render_mode": "rgb_array"} if render else {})
    try:
        return PettingZooTeam(name, create(**keywords))
    except EnvironmentFailure:
        raise
    except ModuleNotFoundError as cause:
        raise missing(name, cause) from cause
    except Exception as cause:
        raise BrokenEnvironmentError(
            f"{name} cannot be built with options {keywords}: {type(cause).__name__}: {cause}"
        ) from cause

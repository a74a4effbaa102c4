"""Registry of environment types by the name in a config; imports gymnasium only when a type is asked for.

A type is a built-in's name, a name in the entry-point group ``tianji.environments``, or
``"my_module:MyEnv"``. The last two lead to an ``EnvironmentFactory`` subclass, to a ``BaseEnv`` or
``gymnasium.Env`` subclass, to a class that follows the paper's Figure 8, or to a function that makes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tianji_envs.errors import BrokenEnvironmentError, UnknownEnvironmentError
from tianji_plugins import Plugins

if TYPE_CHECKING:
    from tianji_envs.core import EnvironmentFactory
    from tianji_envs.wrappers import Wrapper

TYPES: Final = Plugins(
    kind="environment type",
    group="tianji.environments",
    unknown=UnknownEnvironmentError,
    broken=BrokenEnvironmentError,
    built_in={
        "atari": "tianji_envs.atari.environment:AtariFactory",
        "gym": "tianji_envs.gym:GymFactory",
        "matrix_game": "tianji_envs.teams.matrix_game:MatrixGameFactory",
        "mpe": "tianji_envs.teams.mpe:MPEFactory",
        "pettingzoo": "tianji_envs.teams.pettingzoo:PettingZooFactory",
        "smac": "tianji_envs.teams.smac:SMACFactory",
        "smax": "tianji_envs.teams.smax:SMAXFactory",
    },
)


def names() -> list[str]:
    """List the registered types in alphabetical order."""
    return TYPES.names()


def find(type: str) -> EnvironmentFactory:  # noqa: A002 - the config's word for it
    """Find the factory that checks ids and makes environments of a type.

    Args:
        type: ``"gym"``, ``"atari"``, the name of an entry point, ``"my_module:MyEnv"`` or
            ``"my_module:make"``.

    Raises:
        UnknownEnvironmentError: no type has that name; names the nearest type or class.
        BrokenEnvironmentError: the type does not import, or is no environment.
    """
    return _as_factory(type, TYPES.load(type))


def find_wrapper(index: int, name: str, keywords: Mapping[str, Any]) -> Wrapper:
    """Find the wrapper that an entry of ``environment.wrappers`` names; see ``wrappers.find``."""
    from tianji_envs import wrappers  # noqa: PLC0415 - it imports gymnasium

    return wrappers.find(index, name, keywords)


def _as_factory(type: str, found: object) -> EnvironmentFactory:  # noqa: A002 - the config's word for it
    import gymnasium  # noqa: PLC0415 - naming a type must not cost what using one does

    from tianji_envs.core import BaseEnv, EnvironmentFactory  # noqa: PLC0415
    from tianji_envs.serial import UserFactory, follows_figure_8  # noqa: PLC0415

    if inspect.isclass(found):
        if issubclass(found, EnvironmentFactory):
            _check_make(type, found)
            _check_check_options(type, found)
            return found()
        if issubclass(found, BaseEnv | gymnasium.Env) or follows_figure_8(found):
            return UserFactory(type, found)
    elif callable(found):
        return UserFactory(type, found)
    raise BrokenEnvironmentError(
        f"{type} is {found!r}; a subclass of BaseEnv, gymnasium.Env or EnvironmentFactory is wanted, "
        "or a function that makes a BaseEnv or gymnasium.Env"
    )


def _check_make(type: str, factory: type[EnvironmentFactory]) -> None:  # noqa: A002 - the config's word for it
    """Refuse a factory whose ``make`` lacks a keyword that callers pass."""
    parameters = inspect.signature(factory.make).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    wanted = ["evaluation", "threads"]
    wanted += ["wrappers"] * factory.takes_wrappers + ["metrics"] * factory.takes_metrics
    lacking = [f"{name}=" for name in wanted if name not in parameters]
    if lacking:
        raise BrokenEnvironmentError(f"{type}: {factory.__name__}.make() should take {' and '.join(lacking)}")


def _check_check_options(type: str, factory: type[EnvironmentFactory]) -> None:  # noqa: A002
    """Refuse a factory whose ``check_options`` does not take an id beside the options."""
    try:
        inspect.signature(factory.check_options).bind(None, "", {})
    except TypeError:
        raise BrokenEnvironmentError(
            f"{type}: {factory.__name__}.check_options() should take id and options"
        ) from None

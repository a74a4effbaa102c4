"""Finds environments by the type that a config names; imports gymnasium only when one is asked for.

A type is a built-in's name, a name in the entry-point group ``tianji.environments``, or
``"my_module:MyEnv"``. The last two lead to an ``EnvironmentFactory`` subclass, or to a ``BaseEnv`` or
``gymnasium.Env`` subclass.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from tianji_envs.errors import BrokenEnvironmentError, UnknownEnvironmentError
from tianji_plugins import Plugins

if TYPE_CHECKING:
    from tianji_envs.core import EnvironmentFactory

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
    """Find what checks ids and makes environments of a type.

    Args:
        type: ``"gym"``, ``"atari"``, the name of an entry point, or ``"my_module:MyEnv"``.

    Raises:
        UnknownEnvironmentError: nothing is called that; names the nearest type or class.
        BrokenEnvironmentError: it is there, and does not import or is no environment.
    """
    return _as_factory(type, TYPES.load(type))


def _as_factory(type: str, found: object) -> EnvironmentFactory:  # noqa: A002 - the config's word for it
    import gymnasium  # noqa: PLC0415 - naming a type must not cost what using one does

    from tianji_envs.core import BaseEnv, EnvironmentFactory  # noqa: PLC0415
    from tianji_envs.serial import UserFactory  # noqa: PLC0415

    if inspect.isclass(found):
        if issubclass(found, EnvironmentFactory):
            _check_make(type, found)
            _check_check_options(type, found)
            return found()
        if issubclass(found, BaseEnv | gymnasium.Env):
            return UserFactory(type, found)
    raise BrokenEnvironmentError(
        f"{type} is {found!r}; a subclass of BaseEnv, gymnasium.Env or EnvironmentFactory is wanted"
    )


def _check_make(type: str, factory: type[EnvironmentFactory]) -> None:  # noqa: A002 - the config's word for it
    """Refuse a factory whose ``make`` does not take what it is called with."""
    parameters = inspect.signature(factory.make).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    lacking = [f"{name}=" for name in ("evaluation", "threads") if name not in parameters]
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

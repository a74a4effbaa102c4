"""Finds the classes of user roles, and their settings, by the names that a config gives them."""

from __future__ import annotations

import re
from typing import ClassVar, Final

from pydantic import BaseModel

from tianji_cli.errors import UsageError
from tianji_plugins import Plugins

ROLES: Final = Plugins("role", "tianji.roles", UsageError, UsageError)

BUILT_IN: Final = ("root", "actor", "buffer", "learner", "follower", "evaluator")
"""Names that are taken."""

OTHER_REFUSERS: Final = ("endpoint", "batches", "shares", "priorities")
"""What counts refused messages besides roles: a role of such a name could not be told from it."""

OWN_KEYS: Final = ("type", "receives", "reads", "cores")
"""What every ``[roles.NAME]`` may say, whatever its class."""


class HasSettings:
    """What a config has to know of a role's class: the settings it takes. ``UserRole`` derives from it."""

    settings_type: ClassVar[type[BaseModel]]
    """What ``[roles.NAME]`` may say beside ``OWN_KEYS``."""


def refusal_of_name(name: str) -> str | None:
    """Return why a role cannot be called that, or None if it can: its name is part of channels and files."""
    if name in BUILT_IN:
        return "is the name of a role of every job"
    if name in OTHER_REFUSERS:
        return "is a name that reports use for something else"
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name) is None:
        return "names no role; 1 to 32 letters, digits and '_' do, beginning with a letter"
    return None


def names() -> list[str]:
    """List the roles that installed packages bring."""
    return ROLES.names()


def load(name: str) -> type[HasSettings]:
    """Import a role's class.

    Args:
        name: ``module:Class``, or a name of the entry-point group.

    Raises:
        UsageError: there is none, it does not import, or it is no role with settings.
    """
    found = ROLES.load(name)
    if not (isinstance(found, type) and issubclass(found, HasSettings)):
        raise UsageError(f"role {name!r} is {found!r}, not a subclass of UserRole")
    settings = getattr(found, "settings_type", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise UsageError(f"role {name!r} declares no `settings_type`, a pydantic model of its settings")
    taken = sorted({*settings.model_fields} & {*OWN_KEYS})
    if taken:
        raise UsageError(f"role {name!r} has a setting {taken[0]!r}, which every role has: call it otherwise")
    return found

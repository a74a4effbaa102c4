"""Finds the classes of roles of the user's own, and their settings, by the names that a config gives them."""

from __future__ import annotations

import importlib
import re
from importlib.metadata import entry_points
from typing import ClassVar, Final

from pydantic import BaseModel

from tianji_cli.config.problems import nearest
from tianji_cli.errors import UsageError

GROUP: Final = "tianji.roles"
"""Entry points of roles that packages bring."""

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
    """Say why a role cannot be called that, or None if it can: its name is part of channels and files."""
    if name in BUILT_IN:
        return "is the name of a role of every job"
    if name in OTHER_REFUSERS:
        return "is a name that reports use for something else"
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", name) is None:
        return "names no role; 1 to 32 letters, digits and '_' do, beginning with a letter"
    return None


def names() -> list[str]:
    """List the roles that installed packages bring."""
    return sorted(entry_points(group=GROUP).names)


def load(name: str) -> type[HasSettings]:
    """Import a role's class.

    Args:
        name: ``module:Class``, or a name of the entry-point group.

    Raises:
        UsageError: there is none, it does not import, or it is no role with settings.
    """
    found = _import(name, _target(name))
    if not (isinstance(found, type) and issubclass(found, HasSettings)):
        raise UsageError(f"role {name!r} is {found!r}, not a subclass of UserRole")
    settings = getattr(found, "settings_type", None)
    if not (isinstance(settings, type) and issubclass(settings, BaseModel)):
        raise UsageError(f"role {name!r} declares no `settings_type`, a pydantic model of its settings")
    taken = sorted({*settings.model_fields} & {*OWN_KEYS})
    if taken:
        raise UsageError(f"role {name!r} has a setting {taken[0]!r}, which every role has: call it otherwise")
    return found


def _target(name: str) -> str:
    if ":" in name:
        return name
    points = {point.name: point.value for point in entry_points(group=GROUP)}
    if name in points:
        return points[name]
    near = nearest(name, points)
    known = f"there are: {', '.join(sorted(points))}" if points else "no package brings any"
    hint = known if near is None else f"did you mean {near!r}?"
    raise UsageError(f"no role is named {name!r}; {hint} (your own: 'module:Class')")


def _import(name: str, target: str) -> object:
    module_name, _, attribute = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as cause:
        if cause.name is not None and (module_name == cause.name or module_name.startswith(f"{cause.name}.")):
            raise UsageError(
                f"role {name!r}: there is no module {module_name!r} (is its folder on PYTHONPATH?)"
            ) from cause
        raise UsageError(f"role {name!r} does not import: {cause}") from cause
    except Exception as cause:
        raise UsageError(f"role {name!r} does not import: {cause!r}") from cause
    if not hasattr(module, attribute):
        near = nearest(attribute, vars(module))
        hint = f"; did you mean {module_name}:{near}?" if near else ""
        raise UsageError(f"role {name!r}: module {module_name!r} has no {attribute!r}{hint}")
    found: object = getattr(module, attribute)
    return found

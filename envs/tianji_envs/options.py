"""Options of an environment as a dataclass, checked by name, type and value, and what a wrong name meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

import tianji_plugins
from tianji_envs.errors import WrongOptionError


def nearest(name: str, known: Iterable[str], show: Callable[[str], str] = repr, most: int = 1) -> str:
    """Suggest the nearest of what there is; empty if nothing is near.

    >>> nearest("clmbing", ["climbing", "penalty"])
    "; did you mean 'climbing'?"
    >>> nearest("zzz", ["climbing", "penalty"])
    ''
    >>> nearest("pitfal", ["pitfall", "pitfall2", "pong"], show=str.title, most=3)
    '; did you mean Pitfall or Pitfall2?'

    Args:
        show: writes one of these; in quotes by default.
    """
    near = tianji_plugins.nearest(name, known, most)
    return f"; did you mean {' or '.join(map(show, near))}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest of what there is, or else list all of it.

    >>> nearest_or_all("zzz", ["climbing", "penalty"])
    '; they are climbing, penalty'
    """
    known = list(known)
    return nearest(name, known) or f"; they are {', '.join(known)}"


OptionsT = TypeVar("OptionsT")

_WANTED: Final = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a string"}


def read_typed(
    kind: type[OptionsT],
    options: Mapping[str, Any] | None,
    of: str,
    wanted: Callable[[str, Any], str],
) -> OptionsT:
    """Check options and complete them.

    Args:
        kind: a dataclass whose fields are of the types bool, int, float and str.
        of: what error messages call the environment.
        wanted: says what the value of an option should be, if it has the right type; empty if it is.

    Raises:
        WrongOptionError: an option that does not exist, or a value that does not fit it.
    """
    types = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]  # a dataclass
    given = dict(options or {})
    for name, value in given.items():
        if name not in types:
            raise WrongOptionError(name, f"{of} has no option {name!r}{nearest_or_all(name, types)}")
        should = wanted(name, value) if _has_type(value, types[name]) else _WANTED[types[name]]
        if should:
            raise WrongOptionError(name, f"{of}'s option {name} = {value!r}: it should be {should}")
    return kind(**given)


def _has_type(value: object, name: str) -> bool:
    # Not isinstance: true is no number.
    return type(value).__name__ in ((name, "int") if name == "float" else (name,))

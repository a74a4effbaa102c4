"""Options of an environment as a dataclass: what a config says is checked by name, type and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

from tianji_envs.errors import WrongOptionError
from tianji_envs.suggestions import nearest_or_all

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
        options: what the config says.
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

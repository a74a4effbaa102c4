"""Options of an environment as a dataclass, checked by name, type and value, with hints for wrong names."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final, TypeVar

import tianji_plugins
from tianji_envs.errors import BrokenEnvironmentError, WrongOptionError

ACTOR: Final = "TIANJI_ACTOR"
"""Environment variable with the number of the actor that a copy is built for."""

COPIES: Final = "TIANJI_COPIES"
"""Environment variable with the number of copies that each actor has."""

COPY: Final = "TIANJI_COPY"
"""Environment variable with the number of a copy in its actor, while it is built."""

_PORTS: Final = range(20_000, 65_536, 10_000)
"""Ports to try for the first copy; each further copy adds its index to them."""


def nearest(name: str, known: Iterable[str], show: Callable[[str], str] = repr, most: int = 1) -> str:
    """Suggest the nearest of the known names; empty if none is near.

    >>> nearest("clmbing", ["climbing", "penalty"])
    "; did you mean 'climbing'?"
    >>> nearest("zzz", ["climbing", "penalty"])
    ''
    >>> nearest("pitfal", ["pitfall", "pitfall2", "pong"], show=str.title, most=3)
    '; did you mean Pitfall or Pitfall2?'

    Args:
        show: formats a name; in quotes by default.
    """
    near = tianji_plugins.nearest(name, known, most)
    return f"; did you mean {' or '.join(map(show, near))}?" if near else ""


def nearest_or_all(name: str, known: Iterable[str]) -> str:
    """Suggest the nearest of the known names, or else list all.

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
        of: name of the environment in error messages.
        wanted: describes the right values of an option if a value of the right type is wrong; else empty.

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
    # Not isinstance(), which takes True for a number.
    return type(value).__name__ in ((name, "int") if name == "float" else (name,))


def numbered(value: Any) -> Any:
    """Fill in the numbers of the copy under construction, in a value and all values inside it.

    ``{index}`` differs between all copies of a job, ``{copy}`` between those of one actor, ``{actor}``
    between actors, and ``{port}`` is a free port, another for each copy. A text of one placeholder alone
    becomes a number.

    >>> numbered({"name": "world-{copy}", "ids": ["{index}"], "{copy}": True})
    {'name': 'world-0', 'ids': [0], '{copy}': True}

    Raises:
        BrokenEnvironmentError: all ports of the copy are taken.
    """
    if isinstance(value, Mapping):
        return {key: numbered(item) for key, item in value.items()}
    if isinstance(value, list):
        return [numbered(item) for item in value]
    if not isinstance(value, str) or "{" not in value:
        return value
    actor, copies, copy = (int(os.environ.get(name, "0")) for name in (ACTOR, COPIES, COPY))
    numbers = {"{index}": actor * copies + copy, "{actor}": actor, "{copy}": copy}
    if "{port}" in value:
        numbers["{port}"] = _free_port(numbers["{index}"])
    for mark, number in numbers.items():
        if value == mark:
            return number
        value = value.replace(mark, str(number))
    return value


def _free_port(index: int) -> int:
    for first in _PORTS:
        with socket.socket() as probe, suppress(OSError, OverflowError):
            probe.bind(("", first + index % _PORTS.step))
            return first + index % _PORTS.step
    raise BrokenEnvironmentError(f"no port is free for copy {index} of the environment")

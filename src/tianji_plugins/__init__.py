"""Finds the plug-ins of a config: built in, from an installed package, or a user's own ``module:attribute``.

All engines, environments, agents, update rules, models and roles of users are found here, so that a wrong
name, a missing module and a module that does not import read alike. Each package keeps its own exceptions:
a ``Plugins`` knows which to raise. Only ``load`` imports a plug-in.
"""

from __future__ import annotations

import difflib
import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType


def nearest(name: str, known: Iterable[str], most: int = 1) -> list[str]:
    """Find the known names near a name, upper or lower case, the nearest first; none if nothing is near.

    >>> nearest("Clmbing", ["climbing", "penalty"])
    ['climbing']
    >>> nearest("zzz", ["climbing", "penalty"])
    []
    """
    by_folded = {candidate.casefold(): candidate for candidate in known}
    return [by_folded[found] for found in difflib.get_close_matches(name.casefold(), by_folded, n=most)]


def did_you_mean(name: str, known: Iterable[str], kind: str) -> str:
    """Suggest the nearest known name, or else list all of them.

    >>> did_you_mean("pppo", ["ppo", "dqn"], "agents")
    "did you mean 'ppo'?"
    >>> did_you_mean("zzz", ["ppo", "dqn"], "agents")
    'the agents are: dqn, ppo'
    """
    known = sorted(known)
    if near := nearest(name, known):
        return f"did you mean {near[0]!r}?"
    return f"the {kind} are: {', '.join(known)}" if known else f"there are no {kind}"


@dataclass(frozen=True)
class Plugins:
    """The plug-ins of one kind that a config may name.

    Attributes:
        kind: word for one of them in messages.
        group: group of the entry points by which packages bring others.
        unknown: error for a name that does not exist.
        broken: error for a plug-in that exists and does not import.
        built_in: plug-ins that come with tianji, ``module:attribute`` by name.
        library: makes the error of a plug-in (its name) that lacks a library (its name); None for ``broken``.
    """

    kind: str
    group: str
    unknown: type[Exception]
    broken: type[Exception]
    built_in: Mapping[str, str] = field(default_factory=dict)
    library: Callable[[str, str], Exception] | None = None

    def names(self) -> list[str]:
        """List all names in alphabetical order, without importing anything."""
        return sorted({*self.built_in, *_brought(self.group)})

    def target(self, name: str) -> str:
        """Find the ``module:attribute`` of a name, without importing it.

        Raises:
            Exception: ``unknown``, if nothing has the name; ``broken``, if two installed packages contain the
                plug-in, so that each has overwritten the other's files.
        """
        if name in self.built_in:
            return self.built_in[name]
        if ":" in name:
            return name
        brought = _brought(self.group)
        if name in brought:
            value = brought[name].value
            packages = [
                _package(one) for one in _entries(self.group) if (one.name, one.value) == (name, value)
            ]
            if len(packages) > 1:
                what = f"is in two packages, {' and '.join(packages)}, with the same files"
                remedy = f"pip uninstall {' '.join(packages)}, then install one of them again"
                raise self.broken(f"{self.kind} {name!r} {what}: {remedy}")
            return value
        hint = did_you_mean(name, self.names(), f"{self.kind}s")
        raise self.unknown(f"no {self.kind} is named {name!r}; {hint} (your own: 'module:Class')")

    def source(self, name: str) -> str:
        """Name the installed distribution that brings a name."""
        brought = _brought(self.group).get(name)
        if name in self.built_in or brought is None:
            return "tianji"
        return _package(brought)

    def load(self, name: str, target: str | None = None) -> object:
        """Import the plug-in of a name.

        Args:
            target: another ``module:attribute`` of the plug-in, such as its settings.

        Raises:
            Exception: ``unknown`` or ``broken``, with the cause.
        """
        where, _, attribute = (target or self.target(name)).partition(":")
        module = self._import(name, where)
        if not hasattr(module, attribute):
            near = nearest(attribute, vars(module))
            hint = f"; did you mean {where}:{near[0]}?" if near else ""
            raise self.unknown(f"{self.kind} {name!r}: module {where!r} has no {attribute!r}{hint}")
        return getattr(module, attribute)

    def _import(self, name: str, module: str) -> ModuleType:
        if os.sep in module:
            raise self.unknown(f"{self.kind} {name!r}: {module!r} is a path; {_as_module(name)}")
        if module == "__main__":
            why = "'__main__' is another program in each process of a training; name its file, without .py"
            raise self.unknown(f"{self.kind} {name!r}: {why}")
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as cause:
            missing = cause.name or ""
            if module == missing or module.startswith(f"{missing}."):
                hint = "is its folder on PYTHONPATH?"
                raise self.unknown(f"{self.kind} {name!r}: there is no module {module!r} ({hint})") from cause
            if self.library is not None:
                raise self.library(name, missing.partition(".")[0]) from cause
            raise self.broken(f"{self.kind} {name!r} does not import: {cause}") from cause
        except (Exception, SystemExit) as cause:
            raise self.broken(
                f"{self.kind} {name!r} does not import: {type(cause).__name__}: {cause}"
            ) from cause


def _as_module(name: str) -> str:
    """Hint at the module name of a plug-in that was named by a path."""
    path, _, attribute = name.partition(":")
    way = Path(path.removesuffix(".py"))
    if way.is_absolute() or ".." in way.parts:
        return f"put {way.parent} on PYTHONPATH, and name {way.name}:{attribute}"
    return f"a module is named with dots: {'.'.join(way.parts)}:{attribute}"


def _package(entry: EntryPoint) -> str:
    """Name the installed distribution of an entry point, or else its module."""
    return entry.dist.name if entry.dist is not None else entry.module


@cache
def _entries(group: str) -> tuple[EntryPoint, ...]:
    """Entry points of all installed packages; takes some 10 ms, and forked processes inherit it."""
    return tuple(entry_points(group=group))


@cache
def _brought(group: str) -> Mapping[str, EntryPoint]:
    """Entry points of all installed packages, by name; the last one of a name counts."""
    return {entry.name: entry for entry in _entries(group)}

"""Find an engine by name: entry points of the group ``tianji.transports``, imported on first use.

A name may also be ``module:Class``. There are three ways to fail, and they are different errors:
no such name, its library is not installed, its library does not load.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.errors import (
    BrokenEngineError,
    MissingExtraError,
    TransportError,
    UnknownTransportError,
)
from tianji_transports.wiring import Wiring

GROUP = "tianji.transports"

PIP_NAMES: Mapping[str, str] = {
    "iceoryx2": "tianji",
    "zmq": "tianji",
    "mpi4py": "tianji[mpi]",
    "ucxx": "tianji[ucx]",
}
"""What to install for a library that an engine imports; the extras of pyproject.toml."""


LOADS_FIRST = "ucx"
"""MPICH's wheel brings an older UCX, and a process can hold one: MPICH can do with the newer."""


@dataclass(frozen=True)
class Availability:
    """Whether an engine can be used here: its capabilities, or the error that loading it raised."""

    name: str
    capabilities: Capabilities | None
    error: TransportError | None


def names() -> list[str]:
    """List the registered engines, without importing any."""
    return sorted(_registered().names)


@cache
def _registered() -> EntryPoints:
    """Ask all installed packages, which takes some 10 ms; processes that are forked later know it."""
    return entry_points(group=GROUP)


def load(name: str) -> type[Transport]:
    """Import an engine.

    Args:
        name: a registered name, or ``module:Class``.

    Raises:
        UnknownTransportError: there is no such name.
        MissingExtraError: the engine's library is not installed; the message is the pip command.
        BrokenEngineError: the library or the engine is there and does not load.
    """
    if ":" in name:
        return _import(EntryPoint(name, name, GROUP))
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names())}"
        raise UnknownTransportError(f"no transport {name!r}; {hint}")
    return _import(_registered()[name])


def create(
    name: str, wiring: Wiring, rank: int, incarnation: int = 0, options: EngineOptions | None = None
) -> Transport:
    """Load an engine and open an endpoint of it."""
    return load(name)(wiring, rank, incarnation, options)


def available() -> list[Availability]:
    """Try every registered engine, for ``tianji list transports`` and ``tianji doctor``."""
    rows = []
    for name in sorted(names(), key=lambda name: (name != LOADS_FIRST, name)):
        try:
            rows.append(Availability(name, load(name).capabilities, None))
        except TransportError as error:
            rows.append(Availability(name, None, error))
    return sorted(rows, key=lambda row: row.name)


def explain(entry: EntryPoint, cause: Exception) -> TransportError:
    """Say why an engine cannot be imported: it is not there, its library is not, or it does not load."""
    if not isinstance(cause, ModuleNotFoundError):
        return BrokenEngineError(f"transport {entry.name!r} does not load: {cause}")
    missing = (cause.name or "").partition(".")[0]
    if missing == entry.module.partition(".")[0]:
        return UnknownTransportError(f"no transport {entry.value!r}: {cause}")
    package = PIP_NAMES.get(missing, missing)
    return MissingExtraError(f"transport {entry.name!r} needs {missing}: pip install '{package}'")


def _import(entry: EntryPoint) -> type[Transport]:
    try:
        engine = getattr(importlib.import_module(entry.module), entry.attr)
    except Exception as error:
        raise explain(entry, error) from error
    if not (isinstance(engine, type) and issubclass(engine, Transport)):
        raise BrokenEngineError(f"transport {entry.name!r}: {entry.value} is no Transport")
    return engine

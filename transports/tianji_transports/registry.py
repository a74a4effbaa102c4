"""Find an engine by name: entry points of the group ``tianji.transports``, imported on first use.

A name may also be ``module:Class``. There are three ways to fail, and they are different errors:
no such name, its library is not installed, its library does not load.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tianji_plugins import Plugins
from tianji_transports.core import Capabilities, EngineOptions, Transport
from tianji_transports.errors import (
    BrokenEngineError,
    MissingExtraError,
    TransportError,
    UnknownTransportError,
)
from tianji_transports.wiring import Wiring

EXTRAS: Mapping[str, str] = {"iceoryx2": "", "zmq": "", "mpi4py": "[mpi]", "ucxx": "[ucx]"}
"""Extra that brings a library which an engine imports, of ``tianji`` and of ``tianji-transports``."""


def lacks(engine: str, library: str) -> MissingExtraError:
    """Build the error of an engine whose library is not installed."""
    package = ENGINES.source("shm") + EXTRAS[library] if library in EXTRAS else library
    return MissingExtraError(f"transport {engine!r} needs {library}: pip install '{package}'")


ENGINES = Plugins("transport", "tianji.transports", UnknownTransportError, BrokenEngineError, library=lacks)

LOADS_FIRST = "ucx"
"""Engine to load first: MPICH's wheel brings an older UCX, a process can hold only one, and MPICH works
with the newer."""


@dataclass(frozen=True)
class Availability:
    """Whether an engine can be used here: its capabilities, or the error that loading it raised."""

    name: str
    capabilities: Capabilities | None
    error: TransportError | None


def names() -> list[str]:
    """List the registered engines, without importing any."""
    return ENGINES.names()


def load(name: str) -> type[Transport]:
    """Import an engine.

    Args:
        name: a registered name, or ``module:Class``.

    Raises:
        UnknownTransportError: there is no such name.
        MissingExtraError: the engine's library is not installed; the message is the pip command.
        BrokenEngineError: the library or the engine is there and does not load.
    """
    engine = ENGINES.load(name)
    if not (isinstance(engine, type) and issubclass(engine, Transport)):
        raise BrokenEngineError(f"transport {name!r} is {engine!r}, not a subclass of Transport")
    return engine


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

"""A peer of a test: one rank in a process of its own, which executes the commands that the test sends."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from tianji_transports import registry
from tianji_transports.core import EngineOptions, Transport
from tianji_transports.errors import TransportError
from tianji_transports.testing import verbs
from tianji_transports.wiring import Wiring

STATIONS = "TIANJI_STATIONS"
"""Environment variable: number and socket of the processes that wait to be peers; see ``stations``."""


def serve(
    control: Connection, engine: str, wiring: Wiring, rank: int, incarnation: int, options: EngineOptions
) -> None:
    """Run one rank: execute the test's commands, and wait at the endpoint in between, as a role would."""
    endpoint = registry.create(engine, wiring, rank, incarnation, options)
    with endpoint:
        control.send(endpoint.address)
        verb = ""
        while True:
            if verb != "close" and not control.poll():
                endpoint.wait(5.0, also=[control.fileno()])
                continue
            verb, arguments = control.recv()
            if verb == "stop":
                return
            try:
                control.send(execute(endpoint, verb, arguments))
            except (TransportError, AssertionError, TimeoutError) as error:
                control.send(error)


def execute(endpoint: Transport, verb: str, arguments: tuple[Any, ...]) -> Any:
    """Execute one command: a function of ``verbs``, or a method of the endpoint."""
    if verb == "connect":
        endpoint.connect(*arguments)
        return None
    return getattr(verbs, verb)(endpoint, *arguments)

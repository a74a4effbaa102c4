"""Peers for an engine whose processes a launcher starts all at once: each waits at its station for a part.

Under ``mpiexec`` one process runs the tests and all others run this module:

    TIANJI_STATIONS=8:/tmp/x/socket mpiexec -n 1 pytest … : -n 8 python -m tianji_transports.testing.stations

The process of the tests calls ``invite`` before anything else; a ``Job`` there finds its peers by itself.
"""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from tianji_transports.mpi.world import finalise, initialise
from tianji_transports.testing.peer import STATIONS, serve

IDLE = "the station is idle"


class Station:
    """A process of the launcher's and the part it plays; see ``job.Runner``."""

    def __init__(self, control: Connection) -> None:
        self.control = control
        self.pid: int = control.recv()

    def is_alive(self) -> bool:
        """Whether the part is still played: always so, since only ``join`` learns of its end."""
        return True

    def kill(self) -> None:
        """End the part. The process goes on: its death would end the job."""
        os.kill(self.pid, signal.SIGCONT)
        self.control.send(("stop", ()))

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the part; returns whether it came."""
        while self.control.poll(timeout_s):
            if self.control.recv() == IDLE:
                _idle.append(self)
                return True
        return False


_idle: list[Station] = []


def _where() -> tuple[int, str]:
    """Read the number of stations, and the socket at which they report."""
    count, _, path = os.environ[STATIONS].partition(":")
    return int(count), path


def invite() -> None:
    """Begin MPI and wait for all stations to report."""
    count, path = _where()
    with Listener(path, backlog=count) as listener:
        initialise()  # the stations begin it before they report, so the socket is there
        _idle.extend(Station(listener.accept()) for _ in range(count))


def recruit(arguments: tuple[Any, ...]) -> Station:
    """Assign a part to an idle station."""
    if not _idle:
        raise RuntimeError("the test needs more processes than mpiexec was told to start")
    station = _idle.pop(0)
    station.control.send(arguments)
    return station


def dismiss() -> None:
    """End the idle stations."""
    while _idle:
        _idle.pop().control.close()


def main() -> None:
    """Play parts until the process of the tests is gone."""
    initialise()
    with Client(_where()[1]) as control:
        control.send(os.getpid())
        while True:
            try:
                arguments = control.recv()
            except EOFError:
                break
            serve(control, *arguments)
            control.send(IDLE)
    finalise()


if __name__ == "__main__":
    main()

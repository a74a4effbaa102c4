"""The worker processes of a job on this host: started, watched, restarted, ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tianji_cli.cluster.launcher import LocalLauncher, WorkerProcess
from tianji_cli.cluster.worker import Assignment

Assign = Callable[[int, int], Assignment]
"""Makes the assignment of (rank, incarnation)."""


@dataclass(frozen=True)
class Departure:
    """A worker has ended.

    Attributes:
        rank: of the worker.
        incarnation: of it.
        exit_status: minus a signal's number if one killed it.
    """

    rank: int
    incarnation: int
    exit_status: int


class Crew:
    """Owns the worker processes; ends every one of them when it is closed.

    Args:
        launcher: starts processes.
        assign: says what a process is to do.
        max_restarts_per_minute: over all ranks.
    """

    def __init__(self, launcher: LocalLauncher, assign: Assign, max_restarts_per_minute: int) -> None:
        self._launcher = launcher
        self._assign = assign
        self._max_restarts = max_restarts_per_minute
        self._running: dict[int, WorkerProcess] = {}
        self._restarts: deque[float] = deque()

    @property
    def ranks(self) -> set[int]:
        """Ranks whose process has not ended."""
        return set(self._running)

    @property
    def sentinels(self) -> list[int]:
        """Descriptors that become readable when a process ends."""
        return [worker.sentinel for worker in self._running.values()]

    def start(self, rank: int, incarnation: int = 0) -> int:
        """Start a worker and return its process id."""
        worker = self._launcher.start(self._assign(rank, incarnation))
        self._running[rank] = worker
        return worker.pid

    def departures(self) -> list[Departure]:
        """Forget the processes that have ended since the last call, and say how they did."""
        departed = []
        for rank, worker in list(self._running.items()):
            status = worker.exit_status
            if status is not None:
                del self._running[rank]
                worker.reap()
                departed.append(Departure(rank, worker.assignment.incarnation, status))
        return departed

    def may_restart(self) -> bool:
        """Count one more restart; False if that is too many within a minute."""
        now = time.monotonic()
        self._restarts.append(now)
        while self._restarts[0] < now - 60.0:
            self._restarts.popleft()
        return len(self._restarts) <= self._max_restarts

    def kill(self, ranks: set[int] | None = None) -> None:
        """End processes at once: those of ``ranks``, or all."""
        for rank, worker in self._running.items():
            if ranks is None or rank in ranks:
                worker.kill()

    def close(self) -> None:
        """End and reap whatever still runs."""
        self.kill()
        for worker in self._running.values():
            worker.reap()
        self._running.clear()

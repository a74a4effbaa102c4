"""The worker processes of a job on this host: started, watched, restarted, ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tianji_cli.cluster.launcher import LocalLauncher, WorkerProcess
from tianji_cli.cluster.worker import Assignment

Assign = Callable[[int, int], Assignment]
"""Makes the assignment of (rank, incarnation)."""

KILL_LIMIT_S: Final = 5.0
"""How long to wait for a process that was sent SIGKILL; one deep in a driver may take its time."""


@dataclass(frozen=True)
class Departure:
    """A worker has ended.

    Attributes:
        rank: of the worker.
        incarnation: of it.
        exit_status: minus a signal's number if one killed it; None if nobody knows.
        killed: by the root.
        refusal: why the system did not even make it, if so.
    """

    rank: int
    incarnation: int
    exit_status: int | None
    killed: bool = False
    refusal: str = ""


class Crew:
    """Owns the worker processes; ends every one of them when it is closed.

    Args:
        launcher: starts processes; whoever made it closes it.
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
    def pids(self) -> dict[int, int | None]:
        """Process ids by rank; None while a process is being made."""
        return {rank: worker.pid for rank, worker in self._running.items()}

    @property
    def descriptors(self) -> list[int]:
        """Readable when ``departures`` has something to do."""
        return self._launcher.descriptors

    @property
    def headless(self) -> bool:
        """The fork server has died: no worker can be started, and of none is it known how it ended."""
        return self._launcher.lost and not self._launcher.dismissed

    def start(self, rank: int, incarnation: int = 0) -> None:
        """Start a worker."""
        self._running[rank] = self._launcher.start(self._assign(rank, incarnation))

    def departures(self) -> list[Departure]:
        """Forget the processes that have ended since the last call, and say how they did."""
        self._launcher.hear()
        departed = []
        for rank, worker in list(self._running.items()):
            if worker.ended:
                del self._running[rank]
                departed.append(
                    Departure(
                        rank,
                        worker.assignment.incarnation,
                        worker.exit_status,
                        worker.killed,
                        worker.refusal,
                    )
                )
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
                self._launcher.kill(worker)

    def close(self) -> None:
        """End whatever still runs."""
        self.kill()
        deadline = time.monotonic() + KILL_LIMIT_S
        while self._running and time.monotonic() < deadline:
            self._launcher.wait(0.1)
            self.departures()

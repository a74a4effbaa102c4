"""The worker processes of a job, on all its hosts: started, watched, restarted, ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tianji_cli.cluster.launcher import LocalLauncher, WorkerProcess
from tianji_cli.cluster.messages import FromStation
from tianji_cli.cluster.stations import StationLauncher
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
        assign: says what a process is to do.
        max_restarts_per_minute: over all ranks.
        local: starts processes on this host; whoever made it closes it. None if all run at stations.
        stations: start the processes of some ranks elsewhere, by rank.
    """

    def __init__(
        self,
        assign: Assign,
        max_restarts_per_minute: int,
        local: LocalLauncher | None = None,
        stations: Mapping[int, StationLauncher] | None = None,
    ) -> None:
        self._assign = assign
        self._max_restarts = max_restarts_per_minute
        self._local = local
        self._by_rank = stations or {}
        self._stations = {launcher.station.name: launcher for launcher in self._by_rank.values()}
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
        return self._local.descriptors if self._local is not None else []

    @property
    def headless(self) -> bool:
        """The fork server has died: no worker can be started, and of none is it known how it ended."""
        return self._local is not None and self._local.lost and not self._local.dismissed

    @property
    def doomed(self) -> bool:
        """A worker is gone, or should be, that an MPI launcher has started: it has to end the others."""
        return any(launcher.doomed for launcher in self._stations.values())

    def start(self, rank: int, incarnation: int = 0) -> None:
        """Start a worker."""
        self._running[rank] = self._launcher(rank).start(self._assign(rank, incarnation))

    def hear(self, message: FromStation) -> int | None:
        """Take note of what a station says; gives the rank whose worker it says has written or ended."""
        launcher = self._stations.get(message.station)
        worker = launcher.hear(message) if launcher is not None else None
        return worker.assignment.rank if worker is not None else None

    def is_lost(self, rank: int) -> bool:
        """Say whether a rank ran at a station that is gone."""
        return rank in self._by_rank and self._by_rank[rank].lost

    def departures(self) -> list[Departure]:
        """Forget the processes that have ended since the last call, and say how they did."""
        if self._local is not None:
            self._local.hear()
        for launcher in self._stations.values():
            launcher.mind()
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
                self._launcher(rank).kill(worker)

    def close(self) -> None:
        """End whatever still runs; stations see to it themselves when they are dismissed."""
        self.kill()
        for launcher in self._stations.values():
            launcher.dismiss()
        deadline = time.monotonic() + KILL_LIMIT_S
        while self._local is not None and self._here() and time.monotonic() < deadline:
            self._local.wait(0.1)
            self.departures()

    def _here(self) -> set[int]:
        return set(self._running) - set(self._by_rank)

    def _launcher(self, rank: int) -> LocalLauncher | StationLauncher:
        launcher = self._by_rank.get(rank) or self._local
        assert launcher is not None, f"there is no launcher for rank {rank}"
        return launcher

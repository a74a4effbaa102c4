"""The worker processes of a job, on all its hosts: started, watched, restarted, ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tianji_cli.launch.local import LocalLauncher, WorkerProcess
from tianji_cli.plan.spec import JobSpec, ProcessSpec
from tianji_cli.root.stations import StationLauncher
from tianji_cli.wire.messages import FromStation

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
        pid: process id; None if it never began.
    """

    rank: int
    incarnation: int
    exit_status: int | None
    killed: bool = False
    refusal: str = ""
    pid: int | None = None


class Crew:
    """Owns the worker processes; ends every one of them when it is closed.

    Args:
        job: what all processes are told.
        max_restarts_per_minute: over all ranks.
        local: starts processes on this host; whoever made it closes it. None if all run at stations.
        stations: start the processes of some ranks elsewhere, by rank.
    """

    def __init__(
        self,
        job: JobSpec,
        max_restarts_per_minute: int,
        local: LocalLauncher | None = None,
        stations: Mapping[int, StationLauncher] | None = None,
    ) -> None:
        self._max_restarts = max_restarts_per_minute
        self._local = local
        self._by_rank = stations or {}
        self._stations = {launcher.station.name: launcher for launcher in self._by_rank.values()}
        self._running: dict[int, WorkerProcess] = {}
        self._restarts: deque[float] = deque()
        self._launchers: list[LocalLauncher | StationLauncher] = list(self._stations.values())
        if local is not None:
            self._launchers.append(local)
        for launcher in self._launchers:
            launcher.begin(job)

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
        return [self._local.descriptor] if self._local is not None else []

    @property
    def fork_server_lost(self) -> str | None:
        """Why no worker can be started here any more, nor be known how it ends; None if it is not so."""
        if self._local is None or not self._local.lost or self._local.dismissed:
            return None
        return self._local.cause_of_loss()

    @property
    def suspended_servers(self) -> dict[str, int]:
        """Process ids of the fork servers that are suspended, by what they are called."""
        found = {
            f"the fork server on {launcher.station.host.name}": launcher.suspended_server
            for launcher in self._stations.values()
            if launcher.suspended_server is not None
        }
        if self._local is not None and self._local.stopped:
            found["the fork server"] = self._local.pid
        return found

    @property
    def starts_no_more(self) -> bool:
        """The fork server here was ended."""
        return self._local is not None and self._local.dismissed

    @property
    def doomed(self) -> bool:
        """A worker is gone, or should be, that an MPI launcher has started: it has to end the others."""
        return any(launcher.doomed for launcher in self._stations.values())

    def start(self, rank: int, incarnation: int = 0) -> None:
        """Start a worker."""
        self._running[rank] = self._launcher(rank).start(ProcessSpec(rank, incarnation))

    def hear(self, message: FromStation) -> int | None:
        """Take note of what a station says; gives the rank whose worker it says has written or ended."""
        launcher = self._stations.get(message.station)
        worker = launcher.hear(message) if launcher is not None else None
        return worker.spec.rank if worker is not None else None

    def is_lost(self, rank: int) -> bool:
        """Say whether a rank ran at a station that is gone."""
        return rank in self._by_rank and self._by_rank[rank].lost

    def departures(self) -> list[Departure]:
        """Forget the processes that have ended since the last call, and say how they did."""
        if self._local is not None:
            self._local.hear()
        for station in self._stations.values():
            station.mind()
        departures = []
        for launcher in self._launchers:
            ended, launcher.departed[:] = list(launcher.departed), []
            for worker in ended:
                del self._running[worker.spec.rank]
                departures.append(
                    Departure(
                        worker.spec.rank,
                        worker.spec.incarnation,
                        worker.exit_status,
                        worker.killed,
                        worker.refusal,
                        worker.pid,
                    )
                )
        return departures

    def may_restart(self) -> bool:
        """Count one more restart; False if that is too many within a minute."""
        now = time.monotonic()
        self._restarts.append(now)
        while self._restarts[0] < now - 60.0:
            self._restarts.popleft()
        return len(self._restarts) <= self._max_restarts

    def kill(self, ranks: set[int]) -> None:
        """End the processes of some ranks at once."""
        for rank, worker in self._running.items():
            if rank in ranks:
                self._launcher(rank).kill(worker)

    def kill_all(self) -> None:
        """End all processes at once, and start none any more."""
        self.start_no_more()
        self.kill(self.ranks)

    def start_no_more(self) -> None:
        """Take back what was asked for and has not begun."""
        for launcher in self._launchers:
            launcher.start_no_more()

    def end_suspended_servers(self) -> None:
        """End the fork servers that are suspended: they could not say how their workers end."""
        if self._local is not None and self._local.stopped:
            self._local.start_no_more()
        for station in self._stations.values():
            if station.suspended_server is not None:
                station.start_no_more()

    def close(self) -> None:
        """End whatever still runs; stations see to it themselves when they are dismissed."""
        self.kill_all()
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

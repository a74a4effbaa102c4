"""Where workers run besides the root's own fork server, as the root sees it: hosts that joined, MPI ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Final

from tianji_cli.launch.local import WorkerProcess
from tianji_cli.plan.plan import ROOT_RANK, Host
from tianji_cli.plan.spec import JobSpec, ProcessSpec
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import (
    Arrive,
    Began,
    Begin,
    Dismiss,
    Ended,
    FromStation,
    Kill,
    Ping,
    Prepare,
    Present,
    Refuse,
    StartNoMore,
    Wrote,
)

PING_EVERY_S: Final = 0.5
UNREACHABLE_S: Final = 2.0
"""A station whose connection has been closed for so long is lost: its process has ended."""
SILENT_S: Final = 60.0
"""One that is connected and says nothing for so long is lost too: its host may be down, or cut off."""


@dataclass(frozen=True)
class Station:
    """A place where workers can be started.

    Attributes:
        name: of it, on the control channel.
        host: its name, unique in the job, and its cores.
        interface: address that other hosts reach it by.
        pid: of the process that speaks for it.
    """

    name: str
    host: Host
    interface: str
    pid: int


def admit(arrival: Arrive, taken: set[str]) -> Station:
    """Make a station of an arrival; hosts of the same name are told apart by a number."""
    name, number = arrival.host, 2
    while name in taken:
        name, number = f"{arrival.host}#{number}", number + 1
    return Station(arrival.station, Host(name, tuple(arrival.cores)), arrival.interface, arrival.pid)


def objection(arrival: Arrive) -> str:
    """Say why a station cannot take part; empty if it can."""
    ours = version("tianji")
    if arrival.version != ours:
        return f"{arrival.host} has tianji {arrival.version} and the root has {ours}: install the same"
    return ""


class StationLauncher:
    """Starts workers at a station, over the control channel, and learns how they end.

    Args:
        control: the root's end of the control channel.
        station: where.
        can_kill: a worker there can be killed alone. An MPI rank cannot: without it the others would wait
            for ever in their last collective call, so that the launcher has to end them all.

    Attributes:
        station: where.
        lost: the station is gone, and with it whatever ran there.
        reaches_run: it has the run directory under the root's path; None until a host has said so.
        suspended_server: process id of its fork server, if that is suspended.
        doomed: a worker was to be killed that cannot be killed alone, or is gone.
        departed: workers that have ended, for the caller to take out.
    """

    def __init__(self, control: ControlServer, station: Station, *, can_kill: bool = True) -> None:
        self.station = station
        self.lost = False
        self.reaches_run: bool | None = None
        self.suspended_server: int | None = None
        self.doomed = False
        self.departed: list[WorkerProcess] = []
        self._control = control
        self._can_kill = can_kill
        self._workers: list[WorkerProcess] = []
        self._heard = self._reached = time.monotonic()
        self._next_ping = 0.0

    @property
    def workers(self) -> list[WorkerProcess]:
        """Workers that were started here, by number."""
        return self._workers

    def begin(self, job: JobSpec) -> None:
        """Say what all workers from now on are told."""
        here = job.plan.processes[ROOT_RANK].host == self.station.host.name
        adapted = replace(job, interface=self.station.interface, production=job.production if here else None)
        self._control.send(self.station.name, Prepare(job=adapted.to_json()))

    def start(self, own: ProcessSpec) -> WorkerProcess:
        """Ask for a worker; returns at once."""
        worker = WorkerProcess(own, self.departed)
        self._workers.append(worker)
        begin = Begin(number=len(self._workers) - 1, rank=own.rank, incarnation=own.incarnation)
        if self.lost or not self._control.send(self.station.name, begin):
            worker.refusal = f"could not be started: {self.station.host.name} is gone"
            worker.end(None)
        return worker

    def kill(self, worker: WorkerProcess) -> None:
        """End a worker at once."""
        worker.killed = True
        if self._can_kill:
            self._control.send(self.station.name, Kill(number=self._workers.index(worker)))
        else:
            self.doomed = True
            worker.end(None)

    def start_no_more(self) -> None:
        """Take back what was asked for there and has not begun."""
        if self._can_kill:
            self._control.send(self.station.name, StartNoMore())

    def hear(self, message: FromStation) -> WorkerProcess | None:
        """Take note of what the station says; gives the worker that it says has written or ended."""
        self._heard = time.monotonic()
        match message:
            case Began(number=number, pid=pid) if number < len(self._workers):
                self._workers[number].pid = pid
            case Ended(number=number) if number < len(self._workers):
                worker = self._workers[number]
                worker.refusal = message.refusal
                worker.end(message.status)
                return worker
            case Wrote(number=number) if number < len(self._workers):
                return self._workers[number]
            case Present():
                self.reaches_run = message.reaches_run
                self.suspended_server = message.suspended_server
            case Arrive() | Began() | Wrote() | Ended():
                pass
        return None

    def mind(self) -> None:
        """Notice when the station is gone."""
        now = time.monotonic()
        if self.lost or now < self._next_ping:
            return
        self._next_ping = now + PING_EVERY_S
        if self._control.send(self.station.name, Ping()):
            self._reached = now
        silent = self._can_kill and now - self._heard > SILENT_S  # A rank at work speaks as a worker only.
        if now - self._reached > UNREACHABLE_S or silent:
            self._lose()

    def dismiss(self) -> None:
        """Say that the job is over: whatever still runs there ends."""
        self._control.send(self.station.name, Dismiss())

    def _lose(self) -> None:
        self.lost = True
        name = self.station.host.name
        for worker in self._workers:
            if not worker.ended:
                self.doomed = True
                worker.refusal = f"was lost with its host {name}" if self._can_kill else f"has died on {name}"
                worker.end(None)


def refuse_late(control: ControlServer, arrival: Arrive) -> str:
    """Turn a station away that nothing is planned for; says so."""
    reason = f"the job has all its hosts: {arrival.host} came too late, or distribution.hosts is too small"
    control.send(arrival.station, Refuse(reason=reason))
    return f"{arrival.host} wanted to join and was refused: all hosts are there"

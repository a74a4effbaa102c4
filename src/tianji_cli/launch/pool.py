"""The worker processes of a job on all its hosts: started, watched, restarted, ended.

A host that joined, and a rank that an MPI launcher started, is a node: an agent there (``host``, ``mpi``)
starts workers at the root's request.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from tianji_cli.errors import ProcessExit
from tianji_cli.launch.local import LocalLauncher, WorkerProcess
from tianji_cli.plan.plan import ROOT_RANK, Host
from tianji_cli.plan.spec import JobSpec, ProcessSpec
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import (
    Arrive,
    Began,
    Begin,
    Dismiss,
    Exited,
    FromNode,
    Kill,
    Ping,
    Prepare,
    Present,
    Refuse,
    StartNoMore,
    Wrote,
)


class WorkerPool:
    """Owns the worker processes; ends every one of them when it is closed.

    Args:
        max_restarts_per_minute: over all ranks.
        local: starts processes on this host; its maker closes it. None if all run at nodes.
        nodes: start the processes of some ranks elsewhere, by rank.

    The caller has described the job to each launcher before (``begin``).
    """

    def __init__(
        self,
        max_restarts_per_minute: int,
        local: LocalLauncher | None = None,
        nodes: Mapping[int, NodeLauncher] | None = None,
    ) -> None:
        self._max_restarts = max_restarts_per_minute
        self._local = local
        self._by_rank = nodes or {}
        self._nodes = {launcher.node.name: launcher for launcher in self._by_rank.values()}
        self._running: dict[int, WorkerProcess] = {}
        self._restarts: deque[float] = deque()
        self._launchers: list[LocalLauncher | NodeLauncher] = list(self._nodes.values())
        if local is not None:
            self._launchers.append(local)

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
        """Descriptors that are readable when ``take_exited`` has something to do."""
        return [self._local.descriptor] if self._local is not None else []

    @property
    def fork_server_lost(self) -> str | None:
        """Why no worker can be started or watched here any more; None while the fork server is there."""
        if self._local is None or not self._local.lost or self._local.dismissed:
            return None
        return self._local.cause_of_loss()

    @property
    def suspended_servers(self) -> dict[str, int]:
        """Process ids of the fork servers that are suspended, by their names for the user."""
        found = {
            f"the fork server on {launcher.node.host.name}": launcher.suspended_server
            for launcher in self._nodes.values()
            if launcher.suspended_server is not None
        }
        if self._local is not None and self._local.stopped:
            found["the fork server"] = self._local.pid
        return found

    @property
    def starts_no_more(self) -> bool:
        """Whether the fork server here starts no more workers."""
        return self._local is not None and self._local.dismissed

    @property
    def must_abort(self) -> bool:
        """Whether a worker of an MPI launcher is gone, or has to go: the launcher has to end the others."""
        return any(launcher.must_abort for launcher in self._nodes.values())

    def start(self, own: ProcessSpec) -> None:
        """Start a worker."""
        self._running[own.rank] = self._launcher(own.rank).start(own)

    def handle(self, message: FromNode) -> WorkerProcess | None:
        """Handle a message of a node; returns the worker that has written or ended."""
        launcher = self._nodes.get(message.node)
        return launcher.handle(message) if launcher is not None else None

    def is_lost(self, rank: int) -> bool:
        """Whether a rank ran at a node that is gone."""
        return rank in self._by_rank and self._by_rank[rank].lost

    def take_exited(self) -> list[WorkerProcess]:
        """Take out the processes that have ended since the last call."""
        exited = []
        for launcher in self._launchers:
            launcher.check()
            exited += launcher.exited
            launcher.exited.clear()
        for worker in exited:
            del self._running[worker.spec.rank]
        return exited

    def may_restart(self, now_s: float) -> bool:
        """Count one more restart; False if that is too many within a minute.

        Args:
            now_s: seconds in which the job has made progress: a process that hangs or takes long to start
                must not be restarted for ever.
        """
        self._restarts.append(now_s)
        while self._restarts[0] < now_s - 60.0:
            self._restarts.popleft()
        return len(self._restarts) <= self._max_restarts

    def kill(self, ranks: set[int]) -> None:
        """End the processes of some ranks at once."""
        for rank, worker in self._running.items():
            if rank in ranks:
                self._launcher(rank).kill(worker)

    def is_suspended(self, rank: int) -> bool:
        """Whether the process of a rank is stopped, as by SIGSTOP."""
        node, worker = self._by_rank.get(rank), self._running[rank]
        return worker.is_suspended if node is None else node.is_suspended(worker)

    def abort(self, ranks: set[int], hung: str) -> None:
        """End processes that hang, as ``hung`` says; their logs get the place. A second call kills."""
        for rank in ranks & self._running.keys():
            self._launcher(rank).abort(self._running[rank], hung)

    def kill_all(self) -> None:
        """End all processes at once, and start none any more."""
        self.start_no_more()
        self.kill(self.ranks)

    def start_no_more(self) -> None:
        """Cancel the requests for workers that have not begun."""
        for launcher in self._launchers:
            launcher.start_no_more()

    def end_suspended_servers(self) -> None:
        """End the fork servers that are suspended: they could not report how their workers end."""
        if self._local is not None and self._local.stopped:
            self._local.start_no_more()
        for node in self._nodes.values():
            if node.suspended_server is not None:
                node.start_no_more()

    def close(self) -> None:
        """End all workers; nodes end theirs when they are dismissed."""
        self.kill_all()
        for launcher in self._nodes.values():
            launcher.dismiss()
        if self._local is not None:
            self._local.wait_for_server()
            self.take_exited()

    def _launcher(self, rank: int) -> LocalLauncher | NodeLauncher:
        launcher = self._by_rank.get(rank) or self._local
        assert launcher is not None, f"there is no launcher for rank {rank}"
        return launcher


PING_EVERY_S: Final = 0.5
UNREACHABLE_S: Final = 2.0
"""Seconds without a connection after which a node is lost: its process has ended."""
SILENT_S: Final = 60.0
"""Seconds of silence after which a connected node is lost, too: its host may be down, or cut off."""


@dataclass(frozen=True)
class NodeAgent:
    """A process that starts workers at the root's request.

    Attributes:
        name: its name on the control channel.
        host: name of its host, unique in the job, and the cores.
        interface: address that other hosts reach it by.
    """

    name: str
    host: Host
    interface: str


class NodeLauncher:
    """Starts workers at a node, over the control channel, and learns how they end.

    Args:
        can_kill: a worker there can be killed alone. An MPI rank cannot: without it the others would wait
            for ever in their last collective call, so that the launcher has to end them all.

    Attributes:
        lost: the node is gone, and its workers with it.
        reaches_run: it has the run directory under the root's path; None before a host has reported it.
        suspended_server: process id of its fork server, if that is suspended.
        must_abort: a worker that cannot be killed alone has to go, or a worker is gone with its node.
    """

    def __init__(self, control: ControlServer, node: NodeAgent, *, can_kill: bool = True) -> None:
        self.node = node
        self.lost = False
        self.reaches_run: bool | None = None
        self.suspended_server: int | None = None
        self.must_abort = False
        self.exited: list[WorkerProcess] = []
        self._control = control
        self._can_kill = can_kill
        self._workers: list[WorkerProcess] = []
        self._suspended: tuple[int, ...] = ()
        self._last_seen = self._reached = time.monotonic()
        self._next_ping = 0.0

    def begin(self, job: JobSpec) -> None:
        """Describe the job to the node, for all workers from now on."""
        here = job.plan.processes[ROOT_RANK].host == self.node.host.name
        production = job.production if here else None
        adapted = replace(job, interface=self.node.interface, production=production, modules={})
        self._control.send(self.node.name, Prepare(job=adapted.to_json()))

    def start(self, own: ProcessSpec) -> WorkerProcess:
        """Ask for a worker; returns at once."""
        worker = WorkerProcess(own, self.exited)
        self._workers.append(worker)
        number = len(self._workers) - 1
        begin = Begin(number=number, rank=own.rank, incarnation=own.incarnation, env_steps=own.env_steps)
        if self.lost or not self._control.send(self.node.name, begin):
            worker.end(ProcessExit(error=f"could not be started: {self.node.host.name} is gone"))
        return worker

    def kill(self, worker: WorkerProcess) -> None:
        """End a worker at once."""
        worker.killed = True
        if self._can_kill:
            self._control.send(self.node.name, Kill(number=self._workers.index(worker)))
        else:
            self.must_abort = True
            worker.end(ProcessExit())

    def abort(self, worker: WorkerProcess, hung: str) -> None:
        """End a worker that hangs."""
        if not self._can_kill:
            self.kill(worker)
            return
        again = "" if worker.hung else hung
        self._control.send(self.node.name, Kill(number=self._workers.index(worker), hung=again))
        worker.hung = hung

    def is_suspended(self, worker: WorkerProcess) -> bool:
        """Whether a worker is stopped, by its host's last message."""
        return self._workers.index(worker) in self._suspended

    def start_no_more(self) -> None:
        """Cancel the requests for workers there that have not begun."""
        if self._can_kill:
            self._control.send(self.node.name, StartNoMore())

    def handle(self, message: FromNode) -> WorkerProcess | None:
        """Handle a message of the node; returns the worker that has written or ended."""
        self._last_seen = time.monotonic()
        match message:
            case Began(number=number, pid=pid) if number < len(self._workers):
                self._workers[number].pid = pid
            case Exited(number=number) if number < len(self._workers):
                self._workers[number].end(message.exit)
                return self._workers[number]
            case Wrote(number=number) if number < len(self._workers):
                return self._workers[number]
            case Present():
                self.reaches_run = message.reaches_run
                self.suspended_server, self._suspended = message.suspended_server, message.suspended
            case Arrive() | Began() | Wrote() | Exited():
                pass
        return None

    def check(self) -> None:
        """Ping the node, and give it up when it is gone."""
        now = time.monotonic()
        if self.lost or now < self._next_ping:
            return
        self._next_ping = now + PING_EVERY_S
        if self._control.send(self.node.name, Ping()):
            self._reached = now
        silent = self._can_kill and now - self._last_seen > SILENT_S  # A rank at work sends as a worker only.
        if now - self._reached > UNREACHABLE_S or silent:
            self._lose()

    def dismiss(self) -> None:
        """Tell the node that the job is over: it ends its workers."""
        self._control.send(self.node.name, Dismiss())

    def _lose(self) -> None:
        self.lost = True
        name = self.node.host.name
        for worker in self._workers:
            if worker.exit is None:
                self.must_abort = True
                how = f"was lost with its host {name}" if self._can_kill else f"has died on {name}"
                worker.end(ProcessExit(error=how))


def refuse_late(control: ControlServer, arrival: Arrive) -> str:
    """Refuse a node that the plan has no place for; returns a line for the user."""
    reason = f"the job has all its hosts: {arrival.host} came too late, or distribution.hosts is too small"
    control.send(arrival.node, Refuse(reason=reason))
    return f"{arrival.host} wanted to join and was refused: all hosts are there"

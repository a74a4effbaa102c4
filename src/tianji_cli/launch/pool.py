"""The worker processes of a job at all its nodes: started, watched, restarted, ended."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tianji_cli.errors import ProcessExit
from tianji_cli.files.regular import bound_log
from tianji_cli.launch.node import Node, RemoteNode
from tianji_cli.plan.job import Job
from tianji_cli.wire.messages import Began, Begin, Exited, FromNode, Kill, StartNoMore, Wrote


@dataclass(eq=False)
class WorkerProcess:
    """A worker, from the request for it until after its end.

    Attributes:
        begin: the request.
        pid: None until it runs.
        exit: its exit; None while it has not ended.
        killed: whether the root has killed it.
        hung: why the root has aborted it, in words; empty if it has not.
    """

    begin: Begin
    node: Node
    pid: int | None = None
    exit: ProcessExit | None = None
    killed: bool = False
    hung: str = ""

    @property
    def rank(self) -> int:
        """The rank that it has in the plan."""
        return self.begin.rank


class WorkerPool:
    """Owns the worker processes; ends every one of them when it is closed.

    Args:
        job: described to each node at once.
        nodes: start the processes of the ranks; their makers close them.
        max_restarts_per_minute: over all ranks.
    """

    def __init__(self, job: Job, nodes: Mapping[int, Node], max_restarts_per_minute: int) -> None:
        self._job = job
        self._max_restarts = max_restarts_per_minute
        self._by_rank = nodes
        self._nodes = {node.name: node for node in nodes.values()}
        self._workers: dict[tuple[str, int], WorkerProcess] = {}
        self._running: dict[int, WorkerProcess] = {}
        self._exited: list[WorkerProcess] = []
        self._restarts: deque[float] = deque()
        for node in self._nodes.values():
            node.begin(job)

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
        return [descriptor for node in self._nodes.values() for descriptor in node.descriptors]

    @property
    def fork_server_lost(self) -> str | None:
        """Why no worker can be started or watched here any more; None while the fork server is there."""
        return next((node.failure for node in self._nodes.values() if node.failure), None)

    @property
    def suspended_servers(self) -> dict[str, int]:
        """Process ids of the fork servers that are suspended, by their names for the user."""
        found = {node.server_title: node.suspended_server for node in self._nodes.values()}
        return {title: pid for title, pid in found.items() if pid is not None}

    @property
    def must_abort(self) -> bool:
        """Whether a worker of an MPI launcher is gone, or has to go: the launcher has to end the others."""
        return any(node.must_abort for node in self._nodes.values())

    def can_start(self, rank: int) -> bool:
        """Whether a rank's node still starts workers."""
        return not self._by_rank[rank].starts_no_more

    def start(self, rank: int, incarnation: int, env_steps: int) -> None:
        """Start the process of a rank, as ``Begin`` describes it; returns at once."""
        node = self._by_rank[rank]
        begin = node.start(rank, incarnation, env_steps)
        self._workers[node.name, begin.number] = self._running[rank] = WorkerProcess(begin, node)

    def give_seats(self, ranks: Iterable[int], node: Node) -> None:
        """Let a node that has come late start some ranks, whose own node is gone or never came."""
        self._by_rank = {**self._by_rank, **dict.fromkeys(ranks, node)}
        self._nodes[node.name] = node
        node.begin(self._job)

    def handle(self, message: FromNode) -> WorkerProcess | None:
        """Handle a message of a remote node; returns the worker that has begun, written or ended."""
        node = self._nodes.get(message.node)
        if not isinstance(node, RemoteNode):
            return None
        node.note(message)
        return self._note(message) if isinstance(message, Began | Wrote | Exited) else None

    def _note(self, message: Began | Wrote | Exited) -> WorkerProcess | None:
        worker = self._workers.get((message.node, message.number))
        if worker is None or isinstance(message, Wrote):
            return worker
        if isinstance(message, Began):
            worker.pid = message.pid
        elif worker.exit is None:  # Only the first report of its end counts.
            with contextlib.suppress(OSError):  # A user who has removed the log wants none.
                bound_log(self._job.log(worker.rank))
            hung = worker.hung and message.exit.by_signal
            worker.exit = replace(message.exit, error=worker.hung) if hung else message.exit
            self._exited.append(worker)
        return worker

    def is_lost(self, rank: int) -> bool:
        """Whether a rank ran at a node that is gone."""
        node = self._by_rank.get(rank)
        return node is not None and node.lost

    def take_exited(self) -> list[WorkerProcess]:
        """Take out the processes that have ended since the last call."""
        for node in self._nodes.values():
            for message in node.check():
                self._note(message)
        exited, self._exited = self._exited, []
        for worker in exited:
            del self._running[worker.rank]
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
        """End the processes of some ranks at once, or as soon as they begin."""
        for rank in ranks & self._running.keys():
            worker = self._running[rank]
            worker.killed = True
            worker.node.send(Kill(number=worker.begin.number))

    def is_suspended(self, rank: int) -> bool:
        """Whether the process of a rank is stopped, as by SIGSTOP."""
        worker = self._running[rank]
        return worker.node.is_suspended(worker.begin.number)

    def abort(self, ranks: set[int], hung: str) -> None:
        """End processes that hang, as ``hung`` says; their logs get the place. A second call kills."""
        for rank in ranks & self._running.keys():
            worker = self._running[rank]
            worker.node.send(Kill(number=worker.begin.number, hung="" if worker.hung else hung))
            worker.hung = hung

    def kill_all(self) -> None:
        """End all processes at once, and start none any more."""
        self.start_no_more()
        self.kill(self.ranks)

    def start_no_more(self) -> None:
        """Cancel the requests for workers that have not begun."""
        for node in self._nodes.values():
            node.send(StartNoMore())

    def end_suspended_servers(self) -> None:
        """End the fork servers that are suspended: they could not report how their workers end."""
        for node in self._nodes.values():
            if node.suspended_server is not None:
                node.send(StartNoMore())

    def keep_hosts(self) -> None:
        """Ask the hosts that have joined, at the end of the job, to join the next one."""
        for node in self._nodes.values():
            node.joins_next = True

    def close(self) -> None:
        """End all workers, and the job at each node."""
        self.kill_all()
        for node in self._nodes.values():
            node.end_job()
        self.take_exited()

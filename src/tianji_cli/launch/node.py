"""A node of the job: this host, another one that has joined, or a rank that an MPI launcher has started.

Each takes the same requests (``Prepare``, ``Begin``, ``Kill``, ``StartNoMore``) and answers in the same words
(``Began``, ``Exited``). This host's fork server gets them over a socket pair, other nodes over the control
channel. Nothing here waits for a node to read.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tianji_cli.errors import ProcessExit, RunFailed, UsageError
from tianji_cli.launch.children import process_state
from tianji_cli.launch.server_process import ServerProcess
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import ROOT_RANK, Host
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import (
    HERE,
    Began,
    Begin,
    Build,
    BuildReport,
    Built,
    Cleared,
    Dismiss,
    Exited,
    FromForkServer,
    FromNode,
    Kill,
    NodeRequest,
    Ping,
    Prepare,
    Present,
    Refuse,
    StartNoMore,
    ToForkServer,
    decode_from_fork_server,
    encode,
)


class Node(ABC):
    """Starts the workers of some ranks, and reports how they end.

    Args:
        name: its name in messages.

    Attributes:
        lost: the whole node is gone, and its workers with it.
        starts_no_more: requests for workers of this job come too late.
        reaches_run: it has the run directory under the root's path; None before a host has reported it.
        joins_next: at the end of the job it is to ask for a seat in the next one.
        must_abort: a worker that cannot be killed alone has to go, or a worker is gone with its node.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost = False
        self.starts_no_more = False
        self.reaches_run: bool | None = None
        self.must_abort = False
        self.joins_next = False
        self._jobs = 0
        self._started = 0
        self._pids: dict[int, int | None] = {}
        """Process ids of the workers that have not ended, by number; None before they begin."""
        self._news: list[Began | Exited] = []

    def begin(self, job: Job) -> None:
        """Begin a job, which all workers from now on belong to."""
        self._jobs += 1
        self.send(Prepare(job=job.to_json(), number=self._jobs))

    def start(self, rank: int, incarnation: int, env_steps: int) -> Begin:
        """Ask for a worker; returns the request, whose number names the worker in messages."""
        begin = Begin(number=self._started, rank=rank, incarnation=incarnation, env_steps=env_steps)
        self._started += 1
        self.send(begin)
        return begin

    @abstractmethod
    def send(self, request: NodeRequest) -> None:
        """Send a request. Never waits."""

    def check(self) -> list[Began | Exited]:
        """Look after the node; returns its news of workers that do not come over the control channel."""
        news, self._news = self._news, []
        return news

    @abstractmethod
    def end_job(self) -> None:
        """End the job at this node, whose workers have been killed."""

    @abstractmethod
    def is_suspended(self, number: int) -> bool:
        """Whether a worker is stopped, as by SIGSTOP."""

    @property
    @abstractmethod
    def suspended_server(self) -> int | None:
        """Process id of the fork server if it is suspended: it then starts nothing and reports no ends."""

    @property
    @abstractmethod
    def server_title(self) -> str:
        """The fork server in messages to the user."""

    @property
    def descriptors(self) -> Sequence[int]:
        """Readable when ``check`` has something to do."""
        return ()

    @property
    def failure(self) -> str:
        """Why the job cannot go on with this node; empty while it can."""
        return ""

    def _note(self, message: Began | Exited) -> bool:
        """Keep account of a worker; returns False if this job does not wait for it."""
        if message.number not in self._pids:
            return False
        if isinstance(message, Began):
            self._pids[message.number] = message.pid
        else:
            del self._pids[message.number]
        return True

    def _end(self, number: int, exit_: ProcessExit) -> None:
        """Report the end of a worker that the node itself does not report."""
        message = Exited(node=self.name, number=number, exit=exit_)
        if self._note(message):
            self._news.append(message)


SLOW_BUILD_S: Final = 30.0
"""Seconds after which the user hears that the first build takes long."""

CLOSE_LIMIT_S: Final = 5.0
"""Maximum seconds that the fork server has to end processes that workers have left behind."""

LOOK_S: Final = 2.0
"""Seconds between two checks, during a build, whether the fork server is suspended."""

SUSPENDED: Final = frozenset({"T", "t"})
"""States of a process that is stopped, or traced."""


class LocalNode(Node, contextlib.AbstractContextManager["LocalNode"]):
    """This host: owns its fork server.

    One job may follow another: each goes from ``begin`` to ``end_job``. It keeps requests that the server
    does not take at once. It signals workers itself, since the server may be busy or suspended.

    Args:
        server: the fork server, if one was started before; closed with the node.

    Attributes:
        server_lost: the fork server is gone. Workers live on; the status of their ends is then unknown.
        built: report of the last ``build_once``.

    Raises:
        OSError: the server cannot be started.
    """

    def __init__(self, server: ServerProcess | None = None) -> None:
        super().__init__(HERE)
        self.reaches_run = True
        self.server_lost = False
        self.built = BuildReport()
        self._report: BuildReport | None = None
        self._is_cleared = False
        self._job = 0
        self._requests: deque[ToForkServer] = deque()
        self._unsent = b""  # The rest of a request of which the server has taken a part.
        self._received = b""
        self._killed: set[int] = set()
        self._orphans: dict[int, int] = {}
        self._server = ServerProcess() if server is None else server
        self._channel = self._server.channel
        self._events = select.epoll()
        self._events.register(self._channel, select.EPOLLIN)

    @property
    def descriptors(self) -> Sequence[int]:
        """Readable when ``check`` has something to do."""
        return (self._events.fileno(),)

    @property
    def suspended_server(self) -> int | None:
        """Process id of the fork server if it is suspended, by the kernel."""
        suspended = not self.server_lost and process_state(self._server.pid) in SUSPENDED
        return self._server.pid if suspended else None

    @property
    def server_title(self) -> str:
        """The fork server in messages to the user."""
        return "the fork server"

    @property
    def failure(self) -> str:
        """Why the fork server has ended; empty while it starts workers, or need not."""
        return self.cause_of_loss() if self.server_lost and not self.starts_no_more else ""

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._server.pid

    def build_once(self, job: Job, say: Callable[[str], None]) -> None:
        """Have environment, model and layout built in a process of its own, and wait for its end.

        Args:
            say: tells the user that it takes long.

        Raises:
            UsageError: the build fails.
            RunFailed: there is no fork server.
        """
        self._ask(Build(job=job.to_json()))
        slow_at = time.monotonic() + SLOW_BUILD_S
        suspended: int | None = None
        while self._report is None:
            if self.server_lost:
                raise RunFailed(self.cause_of_loss())
            self.wait(LOOK_S)
            self._exchange()
            if time.monotonic() >= slow_at:
                slow_at = math.inf
                say(f"environment and model are still being built after {SLOW_BUILD_S:g} s; Ctrl-C ends this")
            before, suspended = suspended, self.suspended_server
            if suspended is not None and before is None:
                say(f"the fork server (process {self.pid}) is stopped; kill -CONT {self.pid} lets it go on")
        self.built, self._report = self._report, None
        if self.built.error:
            error = UsageError(self.built.error)
            error.add_note(self.built.traceback)
            raise error

    def send(self, request: NodeRequest) -> None:
        """Send a request to the server, or a signal to a worker. Never waits."""
        match request:
            case Prepare():
                self.starts_no_more = self._is_cleared = False
                self._job = request.number
                self._pids.clear()  # Late news of an earlier job do not concern this one.
                self._killed.clear()
                self._news.clear()
                self._ask(request)
            case Begin(number=number):
                self._pids[number] = None
                if self.server_lost or self.starts_no_more:
                    self._end(number, ProcessExit())
                else:
                    self._ask(request)
            case Kill():
                self._exchange()
                self._kill(request)
            case StartNoMore():
                self._start_no_more()

    def check(self) -> list[Began | Exited]:
        """Exchange messages with the server; returns its news of workers."""
        self._exchange()
        for descriptor, _ in self._events.poll(0) if self._orphans else ():
            self._end(self._orphans.pop(descriptor), ProcessExit())
            os.close(descriptor)
        return super().check()

    def is_suspended(self, number: int) -> bool:
        """Whether a worker is stopped, by the kernel."""
        pid = self._pids.get(number)
        return pid is not None and process_state(pid) in SUSPENDED

    def wait(self, timeout_s: float) -> None:
        """Wait until ``check`` has something to do."""
        self._events.poll(timeout_s)

    def end_job(self) -> None:
        """Wait until the server, which starts no more, has reported that nothing is left of the workers."""
        self._wait_until(lambda: self.server_lost or self._is_cleared)

    def cause_of_loss(self) -> str:
        """Describe the server's end, with its last output."""
        exit_ = self._server.wait()
        return f"the fork server {exit_}" + (f":\n{exit_.last_words}" if exit_.last_words else "")

    def close(self) -> None:
        """End the remaining workers, then the server once it has cleaned up."""
        self._server.end_workers()
        self.send(StartNoMore())
        self.end_job()
        self._channel.shutdown(socket.SHUT_WR)
        self._wait_until(lambda: self.server_lost)
        self._server.close()
        self._events.close()
        for descriptor in self._orphans:
            os.close(descriptor)

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + CLOSE_LIMIT_S
        while not is_so() and time.monotonic() < deadline:
            self.wait(0.1)
            self._exchange()

    def _kill(self, request: Kill) -> None:
        """Kill a worker at once, or as soon as it begins; one that hangs first writes where, if it can."""
        if request.number not in self._pids:
            return
        pid = self._pids[request.number]
        if pid is None:
            self._killed.add(request.number)
            return
        aborts = request.hung and not self.is_suspended(request.number)
        if aborts:
            with contextlib.suppress(OSError):  # SIGABRT would write a core dump.
                resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT if aborts else signal.SIGKILL)

    def _start_no_more(self) -> None:
        """Cancel the requests that have not gone; end a suspended server, which would cancel no others."""
        if self.suspended_server is not None:
            self.starts_no_more = True
            self._server.kill()
            self._exchange()  # Its messages from before.
            self._lose_server()
        elif not (self.server_lost or self.starts_no_more):
            self.starts_no_more = True
            cancelled = [request for request in self._requests if isinstance(request, Begin)]
            self._requests = deque(request for request in self._requests if not isinstance(request, Begin))
            for request in cancelled:
                self._end(request.number, ProcessExit())
            self._ask(StartNoMore())

    def _ask(self, request: ToForkServer) -> None:
        self._requests.append(request)
        self._flush()

    def _flush(self) -> None:
        if self.server_lost or not (self._unsent or self._requests):
            return
        try:
            while self._unsent or self._requests:
                self._unsent = self._unsent or encode(self._requests.popleft()) + b"\n"
                self._unsent = self._unsent[self._channel.send(self._unsent) :]
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self._lose_server()
            return
        self._events.modify(self._channel, select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))

    def _exchange(self) -> None:
        """Write and read what the socket takes and has."""
        self._flush()
        while not self.server_lost:
            try:
                data = self._channel.recv(1 << 16)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self._lose_server()
                break
            *lines, self._received = (self._received + data).split(b"\n")
            for line in lines:
                self._handle(decode_from_fork_server(line))

    def _handle(self, message: FromForkServer) -> None:
        match message:
            case Built():
                self._report = message.report
            case Began() | Exited():
                if not self._note(message):
                    return  # News of an earlier job.
                self._news.append(message)
                if isinstance(message, Began) and message.number in self._killed:
                    self._kill(Kill(number=message.number))
            case Cleared(number=job):
                if job != self._job:
                    return
                self._is_cleared = True
                for number in list(self._pids):
                    self._end(number, ProcessExit())  # The cancelled ones.

    def _lose_server(self) -> None:
        if self.server_lost:
            return
        self.server_lost = True
        self._events.unregister(self._channel)
        for number, pid in list(self._pids.items()):
            try:
                if pid is None:
                    self._end(number, ProcessExit())
                else:
                    descriptor = os.pidfd_open(pid)
                    self._orphans[descriptor] = number
                    self._events.register(descriptor, select.EPOLLIN)
            except OSError:
                self._end(number, ProcessExit())


PING_EVERY_S: Final = 0.5
UNREACHABLE_S: Final = 2.0
"""Seconds without a connection after which a node is lost: its process has ended."""
SILENT_S: Final = 60.0
"""Seconds of silence after which a connected node or root is lost, too: its host may be down, or cut off."""
ASLEEP_S: Final = 5.0
"""Seconds between two turns of a loop beyond which its process was suspended: silences then mean nothing."""
BEGINS_AGAIN: Final = "the job begins again"
GIVEN_UP: Final = "nothing was heard of this host for too long, and the job goes on without it"


class Silence:
    """Time since the other side was heard of, while this process was awake.

    What came while it was suspended has yet to be read.
    """

    def __init__(self) -> None:
        self._begun_s = self._looked_s = time.monotonic()

    def end(self) -> None:
        """Note a sign of life: the next silence begins."""
        self._begun_s = time.monotonic()

    def is_too_long(self) -> bool:
        """Whether it has lasted for more than ``SILENT_S``. To be asked at each turn of a loop."""
        now, before = time.monotonic(), self._looked_s
        self._looked_s = now
        if now - before > ASLEEP_S:
            self._begun_s = now
        return now - self._begun_s > SILENT_S


class RemoteNode(Node):
    """A host that has joined, or an MPI rank: a process there answers over the control channel.

    Args:
        host: name of its host, unique in the job, and the cores.
        interface: address that other hosts reach it by.
        can_kill: a worker there can be killed alone. An MPI rank cannot: without it the others would wait
            for ever in their last collective call, so that the launcher has to end them all.
    """

    def __init__(
        self, control: ControlServer, name: str, host: Host, interface: str, *, can_kill: bool = True
    ) -> None:
        super().__init__(name)
        self.host = host
        self._control = control
        self._interface = interface
        self._can_kill = can_kill
        self._suspended: tuple[int, ...] = ()
        self._suspended_server: int | None = None
        self._silence = Silence()
        self._reached = time.monotonic()
        self._next_ping = 0.0
        self._knows_of_loss = False

    @property
    def suspended_server(self) -> int | None:
        """Process id of the fork server if it is suspended, by the node's last message."""
        return self._suspended_server

    @property
    def server_title(self) -> str:
        """The fork server in messages to the user."""
        return f"the fork server on {self.host.name}"

    def begin(self, job: Job) -> None:
        """Begin a job, with what differs at this node."""
        here = job.plan.processes[ROOT_RANK].host == self.host.name
        production = job.production if here else None
        plan = job.plan.pinned_to(self.host)
        super().begin(replace(job, plan=plan, interface=self._interface, production=production, modules={}))

    def send(self, request: NodeRequest) -> None:
        """Send a request, unless a rank of an MPI launcher cannot do it. Never waits."""
        match request:
            case Begin(number=number):
                self._pids[number] = None
                if self.lost:
                    self._end(number, ProcessExit(error=f"was lost with its host {self.host.name}"))
                elif not self._control.send(self.name, request):
                    self._lose()
            case Kill(number=number) if not self._can_kill:
                self.must_abort = True
                self._end(number, ProcessExit())
            case StartNoMore() if not self._can_kill:
                pass  # A rank is there for one worker.
            case _:
                self.starts_no_more |= isinstance(request, StartNoMore)
                self._control.send(self.name, request)

    def is_suspended(self, number: int) -> bool:
        """Whether a worker is stopped, by the node's last message."""
        return number in self._suspended

    def end_job(self) -> None:
        """Tell the node that the job is over: it ends its workers, and leaves, or asks for a seat again."""
        self._control.send(self.name, Refuse(reason=BEGINS_AGAIN) if self.joins_next else Dismiss())

    def note(self, message: FromNode) -> None:
        """Note a message of the node, which shows that it is there; one that was given up hears of it."""
        if self.lost:
            if not self._knows_of_loss:
                self._knows_of_loss = self._control.send(self.name, Refuse(reason=GIVEN_UP))
            return
        self._silence.end()
        match message:
            case Present():
                self.reaches_run = message.reaches_run
                self._suspended_server, self._suspended = message.suspended_server, message.suspended
            case Began() | Exited():
                self._note(message)
            case _:
                pass

    def check(self) -> list[Began | Exited]:
        """Ping the node, and give it up when it is gone."""
        now = time.monotonic()
        if not self.lost and now >= self._next_ping:
            self._next_ping = now + PING_EVERY_S
            if self._control.send(self.name, Ping()):
                self._reached = now
            silent = self._silence.is_too_long() and self._can_kill  # A rank at work sends as a worker.
            if now - self._reached > UNREACHABLE_S or silent:
                self._lose()
        return super().check()

    def _lose(self) -> None:
        self.lost = True
        how = (
            f"was lost with its host {self.host.name}" if self._can_kill else f"has died on {self.host.name}"
        )
        self.must_abort |= bool(self._pids)
        for number in list(self._pids):
            self._end(number, ProcessExit(error=how))

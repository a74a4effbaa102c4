"""Processes of a benchmark: this one, which leads, and its workers on any host.

Workers stay for all trials. Under an MPI launcher they are its ranks, otherwise children of this process.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from json import dumps
from typing import Any, Final, NoReturn

from tianji_cli.launch.children import Child, end_children, python_command, wait_for_exit
from tianji_cli.launch.mpi import World
from tianji_cli.plan.plan import this_host
from tianji_cli.signals import held_back
from tianji_cli.wire.address import LOOPBACK, JobKey, RootAddress, engine_options, own_address
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Answer, Arrive, Ask, Dismiss
from tianji_lab.bench.contents import DamagedMessageError
from tianji_lab.bench.experiment import (
    LEAD,
    Close,
    Connect,
    Enough,
    Open,
    Outcome,
    ReadClock,
    Run,
    Sent,
    Step,
    Trial,
    TrialFailed,
)
from tianji_lab.bench.worker import Endpoint


class Session:
    """Makes runs of an open trial; knows the offset of each rank's clock."""

    def __init__(
        self,
        workers: BenchWorkers,
        endpoint: Endpoint,
        members: Mapping[int, BenchWorker],
        offsets_ns: Mapping[int, int],
    ) -> None:
        self.descriptors: Sequence[int] = workers.descriptors
        self.offsets_ns = offsets_ns
        self._workers = workers
        self._endpoint = endpoint
        self._members = members
        self._runs = 0
        self._numbers: dict[int, int] = {}
        self._sent: dict[int, Sent] = {}

    def run(self, messages: int, *, thorough: bool = False) -> Outcome:
        """Make a run.

        Raises:
            TrialFailed: the run has no result.
        """
        self._runs += 1
        self._numbers, self._sent = {}, {}
        try:
            return self._endpoint.lead(Run(number=self._runs, messages=messages, thorough=thorough), self)
        except DamagedMessageError as damage:
            raise TrialFailed(f"rank {LEAD}: {damage}") from damage

    def start(self, run: Run) -> None:
        """Start the run in every worker."""
        self._numbers = {rank: self._workers.send(member, run) for rank, member in self._members.items()}

    def look(self) -> None:
        """Receive the workers' messages; never waits.

        Raises:
            TrialFailed: a worker died or failed.
        """
        self._workers.look()

    def enough(self) -> None:
        """End the run in every worker."""
        for member in self._members.values():
            self._workers.send(member, Enough(run=self._runs))

    def sent(self) -> Mapping[int, Sent] | None:
        """The workers' reports of the run, once all have ended it."""
        self.look()
        for rank, number in self._numbers.items():
            answer = self._workers.answer(number)
            if answer is not None:
                self._sent[rank] = Sent.model_validate(answer)
        return self._sent if len(self._sent) == len(self._numbers) else None


START_S: Final = 60.0
"""Maximum seconds until all workers have arrived."""
ANSWER_S: Final = 60.0
"""Maximum seconds of a worker for a step that is no run."""
END_S: Final = 5.0
"""Maximum seconds in which all children end after they are dismissed."""
LOOK_S: Final = 0.5
CLOCK_LOOKS: Final = 30
"""Round trips to measure a clock's offset; the fastest one is the most exact."""


@dataclass(frozen=True)
class BenchWorker:
    """A process beside the leading one; ``child`` is None for a rank of an MPI launcher."""

    name: str
    host: str
    child: Child | None = None


class BenchWorkers:
    """Asks workers for steps and receives their answers.

    Attributes:
        interface: address of this host that others reach.
        clock_error_us: error of the other hosts' clocks; None without other hosts.
    """

    def __init__(self, server: ControlServer, interface: str) -> None:
        self.members: Sequence[BenchWorker] = ()
        self.host = this_host().name
        self.clock_error_us: float | None = None
        self.interface = interface
        self._server = server
        self._options = engine_options(interface, server.address.key)
        self._asked = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived: dict[str, Arrive] = {}

    @property
    def hosts(self) -> list[str]:
        """Hosts of all processes, this one's first."""
        return list(dict.fromkeys([self.host, *(member.host for member in self.members)]))

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors of which one is readable when ``look`` may have something to do."""
        sockets = [int(socket.fd) for socket in self._server.sockets]
        return [*sockets, *(child.descriptor for child in self._children)]

    @property
    def _children(self) -> list[Child]:
        return [member.child for member in self.members if member.child is not None]

    # -- asking ----------------------------------------------------------------------------------------

    def send(self, member: BenchWorker, step: Step) -> int:
        """Ask for a step; returns the number of the question.

        Raises:
            TrialFailed: the worker cannot be reached.
        """
        self._asked += 1
        if not self._server.send(member.name, Ask(number=self._asked, step=step.model_dump())):
            self.fail_without(member)
        return self._asked

    def fail_without(self, member: BenchWorker) -> NoReturn:
        """Fail, since a worker cannot be reached.

        Raises:
            TrialFailed: always; the message says how the worker ended if that is known.
        """
        if member.child is not None:  # A process ends a moment after its connections.
            wait_for_exit([member.child], LOOK_S)
        self.look()
        raise TrialFailed(f"{member.name} cannot be reached any more")

    def answer(self, number: int) -> dict[str, Any] | None:
        """Return the answer to a question, once; None if it has not arrived."""
        return self._answers.pop(number, None)

    def ask(self, steps: Mapping[BenchWorker, Step]) -> dict[BenchWorker, dict[str, Any]]:
        """Ask for steps, all at once, and wait for the answers.

        Raises:
            TrialFailed: a worker failed, died or does not answer.
        """
        numbers = {member: self.send(member, step) for member, step in steps.items()}
        deadline = time.monotonic() + ANSWER_S
        while not all(number in self._answers for number in numbers.values()):
            self._wait(deadline, "workers do not answer")
        return {member: self._answers.pop(number) for member, number in numbers.items()}

    def look(self) -> None:
        """Receive messages of workers; never waits.

        Raises:
            TrialFailed: a worker failed, or died.
        """
        for message in self._server.receive():
            if isinstance(message, Arrive):
                self._arrived[message.node] = message
            elif isinstance(message, Answer):
                if message.error:
                    raise TrialFailed(f"{message.node}: {message.error}")
                self._answers[message.number] = message.result
        for member in self.members:
            if member.child is not None and wait_for_exit([member.child], 0.0):
                raise TrialFailed(f"{member.name} {member.child.wait()}")

    def _wait(self, deadline: float, what: str) -> None:
        left_s = deadline - time.monotonic()
        if left_s < 0:
            raise TrialFailed(what)
        self._server.wait(min(left_s, LOOK_S), [child.descriptor for child in self._children])
        self.look()

    # -- who is there ----------------------------------------------------------------------------------

    def gather(self, members: Sequence[BenchWorker]) -> None:
        """Wait until all workers have arrived."""
        self.members = members
        deadline = time.monotonic() + START_S
        while len(self._arrived) < len(members):
            missing = ", ".join(member.name for member in members if member.name not in self._arrived)
            self._wait(deadline, f"not arrived within {START_S:g} s: {missing}")

    def dismiss(self) -> None:
        """Dismiss all workers, and end those that are children of this process."""
        for member in self.members:
            if not self._server.send(member.name, Dismiss()) and member.child is not None:
                member.child.kill()
        end_children(self._children, END_S)

    # -- trials ----------------------------------------------------------------------------------------

    @contextmanager
    def open(self, trial: Trial, members: Mapping[int, BenchWorker]) -> Iterator[Session]:
        """Open all endpoints of a trial, for any number of runs.

        Raises:
            TrialFailed: a worker cannot take part; TransportError: this process cannot.
        """
        offsets_ns = {rank: self._offset_ns(member) for rank, member in members.items()}
        # The receiver opens first: senders look for the things that it makes.
        with ExitStack() as stack:
            with held_back():  # An endpoint that is not closed leaves its shared memory behind.
                endpoint = Endpoint(trial, LEAD, self._options)
                stack.callback(endpoint.close)
            opened = self.ask({member: Open(trial=trial, rank=rank) for rank, member in members.items()})
            addresses = {rank: opened[member]["address"] for rank, member in members.items()}
            addresses[LEAD] = endpoint.address
            endpoint.connect({rank: address for rank, address in addresses.items() if rank != LEAD})
            self.ask(
                {
                    member: Connect(addresses={r: a for r, a in addresses.items() if r != rank})
                    for rank, member in members.items()
                }
            )
            yield Session(self, endpoint, members, offsets_ns)
            self._note_drift(members, offsets_ns)
            # Senders close first: each stays until its messages have left.
            self.ask({member: Close() for member in members.values()})

    def _note_drift(self, members: Mapping[int, BenchWorker], offsets_ns: Mapping[int, int]) -> None:
        """Add the drift of clocks during a trial to the error of its latencies."""
        for rank, member in members.items():
            if member.host != self.host:
                drift_us = abs(self._offset_ns(member) - offsets_ns[rank]) / 1e3
                self.clock_error_us = max(self.clock_error_us or 0.0, drift_us)

    def _offset_ns(self, member: BenchWorker) -> int:
        """Measure the offset of a worker's clock from this one's; processes of a host share one clock."""
        if member.host == self.host:
            return 0
        fastest, offset = None, 0
        for _ in range(CLOCK_LOOKS):
            asked = time.monotonic_ns()
            clock_ns = self.ask({member: ReadClock()})[member]["now_ns"]
            answered = time.monotonic_ns()
            if fastest is None or answered - asked < fastest:
                fastest, offset = answered - asked, int(clock_ns) - (asked + answered) // 2
        assert fastest is not None
        self.clock_error_us = max(self.clock_error_us or 0.0, fastest / 2e3)
        return offset


# -- starting them ---------------------------------------------------------------------------------------


@contextmanager
def local_workers(number: int) -> Iterator[BenchWorkers]:
    """Start workers on this host; they end with the context, and with this process in any case.

    Raises:
        TrialFailed: a worker ended before it took part.
    """
    server = ControlServer(JobKey.new())
    workers = BenchWorkers(server, LOOPBACK)
    members: list[BenchWorker] = []
    workers.members = members
    try:
        for name in (f"worker {rank}" for rank in range(1, number + 1)):
            child = Child(
                python_command("tianji_lab.bench.worker", name),
                stdin=subprocess.PIPE,
                stdout=None,
                keep_errors=False,
            )
            member = BenchWorker(name, workers.host, child)
            members.append(member)  # From now on ``dismiss`` ends it, whatever is raised.
            try:
                _send_address(child, server.address)
            except BrokenPipeError:
                workers.fail_without(member)
        workers.gather(members)
        yield workers
    finally:
        workers.dismiss()
        server.close()


def _send_address(child: Child, root: RootAddress) -> None:
    """Send a worker this process's address and key, on standard input: any user may read arguments."""
    assert child.process.stdin is not None
    with child.process.stdin as stdin:
        stdin.write(dumps(asdict(root)).encode())


@contextmanager
def mpi_workers(world: World) -> Iterator[BenchWorkers]:
    """Lead the other ranks of an MPI job, each of which runs ``take_part``."""
    hosts = [host.name for host in world.hosts]
    interface = LOOPBACK if len(set(hosts)) == 1 else own_address()
    server = ControlServer(JobKey.new(), interface)
    workers = BenchWorkers(server, interface)
    workers.host = hosts[LEAD]
    try:
        world.brief(server.address)
        workers.gather([BenchWorker(f"rank {rank}", hosts[rank]) for rank in range(1, world.size)])
        yield workers
    finally:
        workers.dismiss()
        server.close()

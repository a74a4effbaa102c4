"""The processes of a benchmark: this one, which leads, and its partners, wherever they are.

They stay for all trials: under an MPI launcher they are its ranks, otherwise children of this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from json import dumps
from typing import Any, Final

from tianji_cli.launch.children import python_command
from tianji_cli.launch.mpi import World
from tianji_cli.plan.plan import this_host
from tianji_cli.signals import STOP_SIGNALS
from tianji_cli.wire.address import LOOPBACK, JobKey, RootAddress, own_address
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
from tianji_lab.bench.partner import Side, engine_options
from tianji_transports.waiting import readable


class Stage:
    """Makes runs, and is the ``Watch`` of each.

    Args:
        ensemble: where the partners are.
        side: the leading one.
        members: the partner of each rank.
        offsets_ns: what each rank's clock is ahead of this one's.
    """

    def __init__(
        self, ensemble: Ensemble, side: Side, members: Mapping[int, Member], offsets_ns: Mapping[int, int]
    ) -> None:
        self.descriptors: Sequence[int] = ensemble.descriptors
        self.offsets_ns = offsets_ns
        self._ensemble = ensemble
        self._side = side
        self._members = members
        self._runs = 0
        self._numbers: dict[int, int] = {}
        self._sent: dict[int, Sent] = {}

    def run(self, messages: int, *, thorough: bool = False) -> Outcome:
        """Make a run.

        Raises:
            TrialFailed: there is no result.
        """
        self._runs += 1
        self._numbers, self._sent = {}, {}
        try:
            return self._side.lead(Run(number=self._runs, messages=messages, thorough=thorough), self)
        except DamagedMessageError as damage:
            raise TrialFailed(f"rank {LEAD}: {damage}") from damage

    def start(self, run: Run) -> None:
        """Tell every partner to begin."""
        self._numbers = {rank: self._ensemble.tell(member, run) for rank, member in self._members.items()}

    def look(self) -> None:
        """Hear the partners; never waits.

        Raises:
            TrialFailed: one of them died or failed.
        """
        self._ensemble.look()

    def enough(self) -> None:
        """Tell every partner to end the run."""
        for member in self._members.values():
            self._ensemble.tell(member, Enough(run=self._runs))

    def sent(self) -> Mapping[int, Sent] | None:
        """What the partners say of the run, once all have ended it."""
        self.look()
        for rank, number in self._numbers.items():
            answer = self._ensemble.answer(number)
            if answer is not None:
                self._sent[rank] = Sent.model_validate(answer)
        return self._sent if len(self._sent) == len(self._numbers) else None


START_S: Final = 60.0
"""How long partners may take to arrive."""
ANSWER_S: Final = 60.0
"""How long a partner may take for a step that is no run."""
END_S: Final = 5.0
"""How long all children may take to end once they are dismissed."""
LOOK_S: Final = 0.5
CLOCK_LOOKS: Final = 30
"""Round trips that a clock's offset is taken from: the fastest of them says it best."""


@dataclass(frozen=True)
class Member:
    """A partner.

    Attributes:
        name: on the control channel.
        host: where it is.
        process: of this process's own; None for a launcher's rank.
        pidfd: readable when that has ended.
    """

    name: str
    host: str
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1


class Ensemble:
    """Asks partners for steps and hears their answers.

    Attributes:
        members: all partners.
        host: where this process is.
        interface: address of this host that others reach.
        clock_error_us: how exactly the clocks of other hosts are known; None without any.
    """

    def __init__(self, server: ControlServer, interface: str) -> None:
        self.members: Sequence[Member] = ()
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
        """Every host that a process is on, this one's first."""
        return list(dict.fromkeys([self.host, *(member.host for member in self.members)]))

    @property
    def descriptors(self) -> Sequence[int]:
        """One of them is readable when ``look`` may have something to do."""
        sockets = [int(socket.fd) for socket in self._server.sockets]
        return [*sockets, *(member.pidfd for member in self.members if member.process is not None)]

    # -- speaking --------------------------------------------------------------------------------------

    def tell(self, member: Member, step: Step) -> int:
        """Ask for a step; the number of the question.

        Raises:
            TrialFailed: the partner cannot be reached; it says how the partner ended if that is known.
        """
        self._asked += 1
        if not self._server.send(member.name, Ask(number=self._asked, step=step.model_dump())):
            if member.process is not None:  # A process ends a moment after its connections.
                readable([member.pidfd], LOOK_S)
            self.look()
            raise TrialFailed(f"{member.name} cannot be reached any more")
        return self._asked

    def answer(self, number: int) -> dict[str, Any] | None:
        """Take the answer to a question, if it is there."""
        return self._answers.pop(number, None)

    def ask(self, steps: Mapping[Member, Step]) -> dict[Member, dict[str, Any]]:
        """Ask for steps, all at once, and wait for the answers.

        Raises:
            TrialFailed: one failed, died or does not answer.
        """
        numbers = {member: self.tell(member, step) for member, step in steps.items()}
        deadline = time.monotonic() + ANSWER_S
        while not all(number in self._answers for number in numbers.values()):
            self._wait(deadline, "partners do not answer")
        return {member: self._answers.pop(number) for member, number in numbers.items()}

    def look(self) -> None:
        """Hear what partners say; never waits.

        Raises:
            TrialFailed: one failed, or died.
        """
        for message in self._server.receive():
            if isinstance(message, Arrive):
                self._arrived[message.node] = message
            elif isinstance(message, Answer):
                if message.error:
                    raise TrialFailed(f"{message.node}: {message.error}")
                self._answers[message.number] = message.result
        for member in self.members:
            if member.process is not None and (status := member.process.poll()) is not None:
                raise TrialFailed(f"{member.name} {_how_it_ended(status)}")

    def _wait(self, deadline: float, what: str) -> None:
        left_s = deadline - time.monotonic()
        if left_s < 0:
            raise TrialFailed(what)
        self._server.wait(min(left_s, LOOK_S), [m.pidfd for m in self.members if m.process is not None])
        self.look()

    # -- who is there ----------------------------------------------------------------------------------

    def gather(self, members: Sequence[Member]) -> None:
        """Wait until all partners have arrived."""
        self.members = members
        deadline = time.monotonic() + START_S
        while len(self._arrived) < len(members):
            missing = ", ".join(member.name for member in members if member.name not in self._arrived)
            self._wait(deadline, f"not arrived within {START_S:g} s: {missing}")

    def dismiss(self) -> None:
        """Tell all partners that it is over, and bury those of this process."""
        heard = {member: self._server.send(member.name, Dismiss()) for member in self.members}
        deadline = time.monotonic() + END_S
        for member in self.members:
            if member.process is None:
                continue
            if not heard[member]:
                member.process.kill()
            try:
                member.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            os.close(member.pidfd)

    # -- trials ----------------------------------------------------------------------------------------

    @contextmanager
    def open(self, trial: Trial, members: Mapping[int, Member]) -> Iterator[Stage]:
        """Open both sides of a trial, for as many runs as are wanted.

        Args:
            trial: what is measured.
            members: the partner of each rank but ``LEAD``.

        Raises:
            TrialFailed: a partner cannot take part; TransportError: this process cannot.
        """
        offsets_ns = {rank: self._offset_ns(member) for rank, member in members.items()}
        # A receiver first: what it makes is there when senders look for it.
        side = Side(trial, LEAD, self._options)
        with ExitStack() as stack:
            stack.callback(side.close)
            opened = self.ask({member: Open(trial=trial, rank=rank) for rank, member in members.items()})
            addresses = {rank: opened[member]["address"] for rank, member in members.items()}
            addresses[LEAD] = side.address
            side.connect({rank: address for rank, address in addresses.items() if rank != LEAD})
            self.ask(
                {
                    member: Connect(addresses={r: a for r, a in addresses.items() if r != rank})
                    for rank, member in members.items()
                }
            )
            yield Stage(self, side, members, offsets_ns)
            self._note_drift(members, offsets_ns)
            # A sender may have to be there until what it sent is gone, so it ends first.
            self.ask({member: Close() for member in members.values()})

    def _note_drift(self, members: Mapping[int, Member], offsets_ns: Mapping[int, int]) -> None:
        """What clocks have moved apart during a trial is an error of its latencies."""
        for rank, member in members.items():
            if member.host != self.host:
                drift_us = abs(self._offset_ns(member) - offsets_ns[rank]) / 1e3
                self.clock_error_us = max(self.clock_error_us or 0.0, drift_us)

    def _offset_ns(self, member: Member) -> int:
        """Measure what a partner's clock is ahead of this one's; hosts have one clock each."""
        if member.host == self.host:
            return 0
        fastest, offset = None, 0
        for _ in range(CLOCK_LOOKS):
            asked = time.monotonic_ns()
            said = self.ask({member: ReadClock()})[member]["now_ns"]
            answered = time.monotonic_ns()
            if fastest is None or answered - asked < fastest:
                fastest, offset = answered - asked, int(said) - (asked + answered) // 2
        assert fastest is not None
        self.clock_error_us = max(self.clock_error_us or 0.0, fastest / 2e3)
        return offset


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


# -- starting them ---------------------------------------------------------------------------------------


@contextmanager
def local_ensemble(partners: int) -> Iterator[Ensemble]:
    """Start partners on this host; they end with the context, and with this process in any case."""
    server = ControlServer(JobKey.new())
    reader, writer = os.pipe()
    ensemble = Ensemble(server, LOOPBACK)
    members: list[Member] = []
    try:
        for number in range(1, partners + 1):
            process = _start_partner(f"partner {number}", server.address, reader)
            members.append(Member(f"partner {number}", ensemble.host, process, os.pidfd_open(process.pid)))
            ensemble.members = members
        ensemble.gather(members)
        yield ensemble
    finally:
        ensemble.dismiss()
        server.close()
        os.close(reader)
        os.close(writer)


def _start_partner(name: str, root: RootAddress, lifeline: int) -> subprocess.Popen[bytes]:
    command = python_command("tianji_lab.bench.partner", name, str(lifeline))
    # Until it ignores them itself: signals are this process's business.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[lifeline])
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    assert process.stdin is not None
    with process.stdin as stdin:  # The key is no argument: anybody may read those.
        stdin.write(dumps(asdict(root)).encode())
    return process


@contextmanager
def mpi_ensemble(world: World) -> Iterator[Ensemble]:
    """Lead the other ranks of an MPI job, which ``take_part``."""
    hosts = [host.name for host in world.hosts]
    interface = LOOPBACK if len(set(hosts)) == 1 else own_address()
    server = ControlServer(JobKey.new(), interface)
    ensemble = Ensemble(server, interface)
    ensemble.host = hosts[LEAD]
    try:
        world.brief(server.address)
        ensemble.gather([Member(f"rank {rank}", hosts[rank]) for rank in range(1, world.size)])
        yield ensemble
    finally:
        ensemble.dismiss()
        server.close()

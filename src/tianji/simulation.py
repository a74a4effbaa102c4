"""A job in one thread: a seeded scheduler chooses which process moves next, and which of them dies.

The root, its decisions on deaths, its shutdown and its accounts are those of a training, and so are the roles
and what a worker does between their turns. Each process has an endpoint of its own of the engine ``inproc``.
Processes move while the root waits, and while another waits for its receivers. No clock decides anything, so
an order of moves leads to the same end each time.
"""

from __future__ import annotations

import math
import os
import random
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import torch

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ProcessExit, RunFailed, UsageError
from tianji_cli.files.counters import ProductionFile
from tianji_cli.launch.pool import WorkerPool, WorkerProcess
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import ROOT_RANK, make_plan
from tianji_cli.roles.role import RoleError, run_in_turns
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.observers.goals import StopRules
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.root import Root
from tianji_cli.root.running_job import Phase, RunningJob
from tianji_cli.telemetry.snapshot import Account, Summary
from tianji_cli.wire.messages import Begin, FromRoot, Register, ToRoot
from tianji_cli.worker.build import build_roles
from tianji_cli.worker.builder import Builder
from tianji_cli.worker.channels import wiring_of
from tianji_cli.worker.parts import seed_streams
from tianji_cli.worker.worker import WorkerControl, carry_to_end
from tianji_transports.core import CloseReport, EngineOptions, Loan
from tianji_transports.errors import TransportClosedError
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Wiring

END: Final = "."
"""End of training in an order of moves."""

MOST_PUSHES: Final = 3
"""A process that dies in a move does so at one of its first pushes, of so many, or at its end."""


MEMORY: Final = "/dev/shm"  # noqa: S108 - a directory of its own is made there
"""Directory in memory, where there is one."""


@dataclass(frozen=True)
class Simulation:
    """The end of a simulated job.

    Attributes:
        summary: as that of a run: ``extra`` has the reports of roles of one's own, by name and rank.
        at_risk: most samples that processes can have taken along when they died.
        order: ranks of the processes that moved, 0 for the root; ``3!1`` is a move in which process 3 dies
            at its second push, ``.`` the end of training.
    """

    summary: Summary
    at_risk: float
    order: str

    @property
    def account(self) -> Account:
        """Where every sample is."""
        return Account(*(getattr(self.summary, term.name) for term in fields(Account)))

    def check(self) -> Simulation:
        """Make sure that each sample arrived, except those dropped by a rule or lost with a process.

        Raises:
            RunFailed: the job failed, or samples or messages went astray; says in which order of moves.
        """
        account, rejected = self.account, self.summary.rejected_frames
        astray = account.lost + account.in_flight
        faults = {
            self.summary.reason: self.summary.status == "failed",
            f"{account.unaccounted} samples are in none of the accounts": account.unaccounted,
            f"{astray} samples did not arrive, and deaths explain {self.at_risk:g}": astray > self.at_risk,
            f"{rejected} messages were rejected": rejected,
        }
        if found := [fault for fault, is_there in faults.items() if is_there]:
            raise RunFailed(f"{'; '.join(found)} ({account})\n{again(self.order)}")
        return self


def again(order: str) -> str:
    """Name the call that repeats a simulation."""
    return f"the same again: simulate(order={order!r})"


def simulate(config: JobConfig, seed: int, moves: int, deaths: float, order: str) -> Simulation:
    """Run a job in this thread; see ``Program.simulate``."""
    if config.distribution.groups * config.distribution.learner.num > 1:
        raise UsageError(
            "simulate() has a single thread, in which no learner can wait for another; "
            "distribution.groups = 1 and distribution.learner.num = 1 would be right"
        )
    experiment = config.experiment.model_copy(update={"evaluation": None, "eval_episodes": 0})
    config = config.model_copy(update={"experiment": experiment})
    signals: Any = SimpleNamespace(count=0, descriptor=0, clear=lambda: None)
    telemetry: Any = SimpleNamespace(update=lambda _snapshot: None)
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)
        # In memory, since a learner waits for the disk when it writes a checkpoint.
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        place = Path(stack.enter_context(TemporaryDirectory(prefix="tianji-simulation-", dir=memory)))
        plan = make_plan(config)
        spec = Job(place.name, "", plan, place, place)  # Processes get the config itself, and read no text.
        seed_streams(experiment.seed)
        pool: Any = Scheduler(spec, seed, moves, deaths, order)
        stack.callback(pool.close)
        production, endpoint = ProductionFile(None, len(plan.pages)), RootEndpoint(plan, EngineOptions())
        job = RunningJob(config, spec, pool, pool, production, endpoint, lambda _event: None)
        pool.job = job
        rules = StopRules(job, lambda _snapshot: None)
        try:
            summary = Root(job, [rules], lambda *_: Observer(), signals, telemetry).run()
        except Exception as error:
            error.add_note(again(" ".join(pool.order)))
            raise
    died = [plan.processes[int(move.partition("!")[0])] for move in pool.order if "!" in move]
    at_risk = sum(config.fragment_steps * len(process.actors) or math.inf for process in died)
    return Simulation(summary, at_risk, " ".join(pool.order))


class Scheduler(WorkerPool):
    """The processes of a job, and its control channel: chooses who moves while the root, or a process, waits.

    Attributes:
        job: the job, as the root has it.
        wiring: the wiring of all processes; the first of them reckons it.
        order: the moves so far, as in ``Simulation``.
        mail: messages to the root.
        resting: ranks that have had nothing to do since anything happened.
        rejected: no message to the root is.
    """

    job: RunningJob
    wiring: Wiring | None = None
    rejected = 0

    def __init__(self, spec: Job, seed: int, moves: int, deaths: float, order: str) -> None:
        super().__init__(spec, {}, max_restarts_per_minute=len(order) + moves)
        self.order: list[str] = []
        self.mail: list[ToRoot] = []
        self._built: dict[int, SimulatedProcess] = {}
        self._moving: set[int] = set()
        self.resting: set[int] = set()
        self._given = order.split()[::-1]
        self._moves = moves
        self._deaths = deaths
        self._random = random.Random(seed)  # noqa: S311 - it keeps no secret
        self._paces: dict[int, float] = {}
        """Share of the moves of each rank: some are much slower than others, in each simulation others."""

    def start(self, rank: int, incarnation: int, env_steps: int) -> None:
        """Begin a process; it is built in its first move."""
        killer: Any = SimpleNamespace(send=lambda _kill: self.leave(rank))
        begin = Begin(number=0, rank=rank, incarnation=incarnation, env_steps=env_steps)
        self._running[rank] = WorkerProcess(begin, killer)

    def is_lost(self, rank: int) -> bool:  # noqa: ARG002 - none is
        """No process is on a host that is gone."""
        return False

    def leave(self, rank: int, status: int = -signal.SIGKILL) -> None:
        """Note the end of a process."""
        if rank in self._built:
            self._built.pop(rank).vanish()
        if (worker := self._running[rank]).exit is None:
            worker.exit = ProcessExit(status)
            self._exited.append(worker)

    def send(self, rank: int, message: FromRoot) -> bool:
        """Send a process a message of the root; return False if it is not there yet, or no more."""
        self.resting.discard(rank)
        if rank in self._built:
            self._built[rank].mail.append(message)
        return rank in self._built

    def receive(self) -> list[ToRoot]:
        """Take the messages to the root."""
        return [self.mail.pop(0) for _ in list(self.mail)]

    def wait(self, _timeout_s: float, _also: Sequence[int]) -> None:
        """Let processes move until it is the root's turn, or none has anything to do."""
        if self.job.phase is Phase.TRAINING and self.job.outcome is None:
            if not self._able():
                self.job.fail("all processes wait for one another")
            elif self._given[-1:] == [END] or (not self._given and self._moves <= 0):
                self.order.append(END)
                self.job.finish("all moves were made")
        while self.let_move([ROOT_RANK]):
            pass

    def let_move(self, others: Sequence[int] = ()) -> bool:
        """Let a process move; return False if none can, or if one of the ``others`` is chosen."""
        if not (able := self._able()):
            return False
        rank, pushes = self._choose([*others, *able])
        self.order.append(f"{rank}" if pushes is None else f"{rank}!{pushes}")
        if rank in others:
            return False
        self._moving.add(rank)
        if rank in self._built:
            worked = self._built[rank].move(pushes)
        else:
            self._built[rank], worked = SimulatedProcess(self, self._running[rank].begin), True
        self._moving.discard(rank)
        self.resting = set() if worked else {*self.resting, rank}
        return True

    def _able(self) -> list[int]:
        unable = self._moving | self.resting
        return [rank for rank, one in self._running.items() if one.exit is None and rank not in unable]

    def _choose(self, ranks: Sequence[int]) -> tuple[int, int | None]:
        """Choose a rank, and the pushes until it dies; moves of the given order come first, if they fit."""
        while self._given:
            given, dies, pushes = self._given.pop().partition("!")
            if given in map(str, ranks):
                return int(given), int(pushes) if dies else None
        self._moves -= self.job.phase is Phase.TRAINING
        paces = [self._paces.setdefault(rank, self._random.uniform(0.2, 1) ** 2) for rank in ranks]
        (rank,) = self._random.choices(ranks, paces)
        comes_again = rank in (self.job.producers | self.job.restartable) & self._built.keys()
        may_die = comes_again and self._built[rank].control.peers_known
        dies_now = may_die and self._random.random() < self._deaths
        return rank, self._random.randrange(MOST_PUSHES) if dies_now else None


class SimulatedProcess(InprocTransport):
    """A process: its endpoint, with which its roles let others move instead of sleeping, and these roles.

    Attributes:
        mail: messages of the root to it.
        control: handles them.
    """

    def __init__(self, scheduler: Scheduler, own: Begin) -> None:
        job = scheduler.job
        process = job.plan.processes[own.rank]
        builder = Builder(job.spec, job.config, process, own.incarnation, own.env_steps)
        scheduler.wiring = scheduler.wiring or wiring_of(builder, self.capabilities)
        super().__init__(scheduler.wiring, own.rank, own.incarnation)
        self.mail: list[FromRoot] = []
        self._scheduler = scheduler
        self._process = process
        self._pushes_left: int | None = None
        self._roles = build_roles(builder, self, job.production)
        channel: Any = SimpleNamespace(
            send=scheduler.mail.append, receive=lambda: [self.mail.pop(0) for _ in list(self.mail)]
        )
        self.control = WorkerControl(job.spec, own, channel, None)
        self.control.begin(self._roles, self, job.production)
        channel.send(Register(rank=own.rank, incarnation=own.incarnation, pid=os.getpid(), address=""))

    def move(self, pushes: int | None) -> bool:
        """Let the roles make a round, or end in order; return False if there was nothing to do.

        Args:
            pushes: the process dies after so many, or at the end of the move; None lets it live.
        """
        self.control.handle()
        if self.control.is_over and pushes is None:
            carry_to_end(self._process, self._roles, self, self.control)
            self._scheduler.leave(self.rank, 0)
            return True
        before, self._moved, self._pushes_left = [role.busy_s for role in self._roles], False, pushes
        try:
            if self.control.peers_known:
                run_in_turns(self._roles, self, self.wait)
        except RoleError as failure:
            if pushes is None or not isinstance(failure.error, TransportClosedError):
                raise failure.error from failure
        if pushes is not None:
            self._scheduler.leave(self.rank)
        # A turn may have sent something without calling it work.
        return pushes is not None or self._moved or before != [role.busy_s for role in self._roles]

    def handle(self) -> bool:
        """End the loop of ``run_in_turns`` after a round."""
        return False

    def wait(self, timeout_s: float, also: Sequence[int] = ()) -> bool:
        """Let another process move; sleep if none has anything to do."""
        return self._let_another_move() or super().wait(timeout_s, also)

    def close(self, drain_s: float = 0.0) -> CloseReport:
        """Let others move until all pushes are claimed, unless ``drain_s`` is 0; then free everything."""
        while drain_s and not self._all_claimed() and self._let_another_move():
            pass
        return super().close()

    def push(self, loan: Loan) -> None:
        """Send a filled loan, or die instead."""
        if self._pushes_left == 0:
            self.vanish()  # Then this push raises TransportClosedError.
        elif self._pushes_left is not None:
            self._pushes_left -= 1
        super().push(loan)

    def vanish(self) -> None:
        """Free everything, as a SIGKILL does: senders go on as if a receiver were there."""
        self._inboxes.clear()
        self.close()

    def _let_another_move(self) -> bool:
        if self._moved:  # What was pushed or claimed since the last time may be what another waits for.
            self._moved = False
            self._scheduler.resting.clear()
        return self._scheduler.let_move()

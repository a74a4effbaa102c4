"""A job while it runs: its parts, its phase and its outcome, for the root's loop and for its observers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Set
from dataclasses import dataclass, field

from tianji_cli.config.loader import load_role
from tianji_cli.config.schema import JobConfig
from tianji_cli.files.counters import ProductionFile
from tianji_cli.launch.node import Node
from tianji_cli.launch.pool import WorkerPool
from tianji_cli.plan.graph import EXAMINER
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import Plan
from tianji_cli.root.endpoint import RootEndpoint
from tianji_cli.root.job_view import Overview
from tianji_cli.root.members import Membership
from tianji_cli.telemetry.snapshot import Status
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.reports import Rejected, Source


class Phase(enum.Enum):
    """Phase of a job, in their order."""

    STARTING = "starting"
    TRAINING = "training"
    WINDING_DOWN = "winding down"
    STOPPING = "stopping"
    EVALUATING = "evaluating"
    OVER = "over"


@dataclass(frozen=True)
class Outcome:
    """Outcome of a job, and the reason."""

    status: Status
    reason: str


@dataclass(eq=False)
class RunningJob:
    """Holds what the root and its observers share, and the decision to end the job.

    Observers read the parts, send messages to processes, abort those that hang, and may ``finish`` or
    ``fail`` the job. The root acts on an outcome in its loop: a job has one as soon as its training ends.

    Attributes:
        spec: the job as its processes on this host know it.
        event: shows a message to the user.
        bound: an MPI launcher ends all processes when one dies.
        phase: set by the root alone.
        worked_s: seconds of training, without longer pauses; set by ``HangWatch``.
        stuck: rank of an actor that has hung since the last step or update, set by ``HangWatch``.
        lost: reason of the loss of each lost group; set by ``Deaths``.
        lost_ranks: ranks without a process while others of their group go on: those of lost buffers, of all
            that sent them fragments, and those on empty seats.
        vacant: those of them on empty seats, for the next host that comes.
        parked: ranks of actors that begin no fragments, since fewer train faster; set by ``Adaptation``.
        near_goal: the samples under way may be enough, so that ``ProductionGoal`` holds the actors.
        died: the job has failed because a process that it needs was killed, or its host is lost; set by
            ``Deaths``.
        killed: incarnations of actors that did not stop in order; set by ``Deaths``.
        rejected: messages to the root's endpoint that do not belong to this job.
        learners: group of each learner, by its rank.
        examiners: ranks that evaluate while training.
        producers: ranks that send samples and receive none: actors in processes of their own. They stop
            first, and are started again when they die.
        restartable: ranks of user roles that are started again when a signal has killed them.
        receivers: the other ranks of all groups.
    """

    config: JobConfig
    spec: Job
    control: ControlServer
    pool: WorkerPool
    production: ProductionFile
    endpoint: RootEndpoint
    event: Callable[[str], None]
    bound: bool = False
    phase: Phase = Phase.STARTING
    outcome: Outcome | None = None
    worked_s: float = 0.0
    stuck: int | None = None
    rejected: Rejected = field(default_factory=Rejected)
    lost: dict[int, str] = field(default_factory=dict)
    lost_ranks: set[int] = field(default_factory=set)
    vacant: set[int] = field(default_factory=set)
    parked: set[int] = field(default_factory=set)
    near_goal: bool = False
    died: bool = False
    killed: set[Source] = field(default_factory=set)
    _shown: set[object] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.plan = plan = self.spec.plan
        self.overview = Overview(self.config, plan, self.production, self.spec.progress)
        self.members = Membership(plan, self.control)
        self.learners = {
            process.rank: process.group for process in plan.carrying("learner") if process.group is not None
        }
        self.examiners = {process.rank for process in plan.carrying(EXAMINER)}
        self.producers = plan.producers()
        self.receivers = {process.rank for process in plan.trainers} - self.producers
        self.restartable = set() if self.bound else restartable(self.config, plan)

    @property
    def living(self) -> set[int]:
        """Ranks of the groups that are not lost, but for ``lost_ranks``."""
        found = {process.rank for process in self.plan.trainers if process.group not in self.lost}
        return found - self.lost_ranks

    @property
    def empty_seats(self) -> list[str]:
        """Names of the hosts in the plan that are not there, in the order of the plan."""
        return list(dict.fromkeys(self.plan.processes[rank].host for rank in sorted(self.vacant)))

    def leave_seats(self, ranks: Set[int]) -> None:
        """Go on without some ranks until a host comes for their seat."""
        self.lost_ranks |= ranks
        self.vacant |= ranks
        self.members.leave(ranks)

    def fill_seat(self, seat: str, node: Node) -> None:
        """Start the processes of an empty seat at a node."""
        ranks = {rank for rank in self.vacant if self.plan.processes[rank].host == seat}
        self.lost_ranks -= ranks
        self.vacant -= ranks
        self.pool.give_seats(ranks, node)
        for rank in sorted(ranks):
            if self.overview.workers[rank].report is not None:
                self.overview.keep(rank)
            self.start(rank, self.members.incarnation(rank) + 1)

    def ranks_of(self, group: int | None) -> set[int]:
        """Find the ranks of a group."""
        return {process.rank for process in self.plan.trainers if process.group == group}

    def finish(self, reason: str, status: Status = "finished") -> None:
        """End the job in order, unless it ends already."""
        if self.outcome is None:
            self.outcome = Outcome(status, reason)

    def fail(self, reason: str) -> None:
        """End the job because something failed; the first failure replaces an outcome that was none."""
        if self.phase is Phase.EVALUATING and self.outcome is not None:
            reason = f"the evaluation failed, after training was over ({self.outcome.reason}): {reason}"
        if self.outcome is None or self.outcome.status != "failed":
            self.outcome = Outcome("failed", reason)

    def start(self, rank: int, incarnation: int = 0, env_steps: int = 0) -> None:
        """Start the process of a rank; ``env_steps`` are those of the learner that had it before."""
        if self.plan.is_local(rank):
            for actor in self.plan.processes[rank].actors:
                self.production.begin(actor, incarnation)
        self.members.begin(rank, incarnation)
        self.pool.start(rank, incarnation, env_steps)
        self.overview.workers[rank].state = "starting"

    def show_once(self, subject: object, text: str) -> None:
        """Show a message to the user, unless there was one on the same subject before."""
        if subject not in self._shown:
            self._shown.add(subject)
            self.event(text)

    def title(self, rank: int) -> str:
        """Return the title of a rank's process."""
        return self.plan.processes[rank].title

    def cause(self, rank: int, what: str) -> str:
        """Return a sentence on a process, with the place of its output."""
        return f"{self.title(rank)}{what} (its output: {self.spec.log(rank)})"

    def rejections(self) -> list[tuple[str, int, str]]:
        """List who has rejected frames, with their number and a reason: roles, control channel and root."""
        rejections = self.overview.rejections()
        if self.control.rejected:
            rejections.append(("the control channel", self.control.rejected, self.control.last_rejection))
        count, why = self.endpoint.rejected
        if count + self.rejected.count:
            rejections.append(("the root", count + self.rejected.count, self.rejected.first or why))
        return rejections


def restartable(config: JobConfig, plan: Plan) -> set[int]:
    """Return the ranks of user roles that say so of themselves, if no other waits for what died with one."""
    in_step = set(config.graph.path_of_fragments) if config.distribution.mode == "sync" else set()
    if config.distribution.buffer.priority_updates == "sync":
        in_step |= set(config.graph.path_of_batches)
    names = {name for name, role in config.roles.items() if load_role(role.type).restartable} - in_step
    return {process.rank for process in plan.trainers if {*process.roles} <= names}

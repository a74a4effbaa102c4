"""The bottleneck of a running job, from the recent work of its roles and the waiting times of its actors."""

from __future__ import annotations

import contextlib
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import add
from typing import Final, Literal

import psutil

from tianji_cli.config.schema import JobConfig
from tianji_cli.limits import CpuLimit, cpu_limit
from tianji_cli.plan.graph import INFERENCE
from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.telemetry.bottleneck import (
    OWN_CORES,
    Bottleneck,
    beside_busy_cores,
    beside_idle_cores,
    bottleneck,
    in_step,
    naming_network,
    on_shared_cores,
)
from tianji_cli.wire.messages import Report
from tianji_cli.wire.reports import ActorReport, BufferReport, FollowerReport, LearnerReport

WINDOW_S: Final = 5.0
"""Seconds of work that a bottleneck is found from during a run: longer than the noise of single seconds."""

LEAST_S: Final = 2.0
LEAST_VERSIONS: Final = 2
"""In less time, or with fewer versions of the policy, the measurements are too few to name a bottleneck."""

MOST_MARKS: Final = 600
"""Most moments that are kept: some minutes, for jobs whose rollouts take that long."""

HOLD_S: Final = WINDOW_S
"""Seconds that another side must be the bottleneck before it is named: two near balance would alternate."""

Overlap = Literal["free", "in step", "none"]
"""Roles that may work at the same time.

``"free"``: all of them; ``"in step"``: actors only while the learner waits for them, and the other way round
(``mode = "sync"``); ``"none"``: all roles of a group are one process (``inproc``).
"""

MOSTLY: Final = 0.5
"""A side that is busy for a smaller share of the time mostly waits; a role for which its group's actors wait
for a larger share of the time holds them back."""

THROTTLED: Final = 0.25
"""A CPU quota that is used up in a larger share of its periods is the bottleneck, whatever the roles do."""

IDLE: Final = 0.5
"""Idle cores, on average, below which the host counts as busy."""

BOUND_BY_WAITING: Final = Bottleneck(
    "communication-bound",
    "actors and learner both wait most of the time for what is on its way between them; "
    "a larger distribution.actor.window, or another transport, may help",
)


@dataclass(frozen=True)
class Work:
    """Work of all roles of one kind, so far or in an interval.

    Attributes:
        count: samples that the roles produced or received, or uses that they made.
        busy_s: seconds of work, summed over the roles.
        running_s: seconds of presence, summed over the roles.
        members: number of roles.
    """

    count: float = 0.0
    busy_s: float = 0.0
    running_s: float = 0.0
    members: int = 0

    def __add__(self, other: Work) -> Work:
        """Sum of the work of two sets of roles."""
        return Work(*map(add, vars(self).values(), vars(other).values()))

    def since(self, earlier: Work) -> Work:
        """Work of the same roles since an earlier moment."""
        return Work(
            self.count - earlier.count,
            self.busy_s - earlier.busy_s,
            self.running_s - earlier.running_s,
            self.members,
        )

    @property
    def capacity(self) -> float:
        """Count per second if the roles never waited.

        >>> Work(count=300.0, busy_s=1.5, running_s=10.0, members=2).capacity
        400.0
        """
        return self.members * self.count / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """Share of the time that the roles worked, 0 to 1."""
        return self.busy_s / self.running_s if self.running_s > 0 else 0.0


@dataclass(frozen=True)
class Observation:
    """Work of a job's actors, buffers and learners, so far or in an interval.

    Attributes:
        actors: work of the actors; its count is samples produced.
        buffers: work of the buffers; its count is samples received.
        learners: work of learners and followers; its count is uses. A buffer in a learner's process adds its
            busy time to the learner's.
    """

    actors: Work = Work()
    buffers: Work = Work()
    learners: Work = Work()

    def __add__(self, other: Observation) -> Observation:
        """Sum of two observations."""
        return Observation(*map(add, vars(self).values(), vars(other).values()))

    def since(self, earlier: Observation) -> Observation:
        """Work of the same job since an earlier moment."""
        return Observation(*map(Work.since, vars(self).values(), vars(earlier).values()))


@dataclass(frozen=True)
class HostCores:
    """Cores of the host that runs a whole job.

    Attributes:
        there: number of cores, as a CPU quota limits it.
        shared: roles share cores.
        idle: cores without work, on average.
        would_use_them: settings with which actors would use the idle cores.
        throttled: share of the quota's periods in which it was used up, 0 to 1.
    """

    there: float
    shared: bool
    idle: float
    would_use_them: str
    throttled: float = 0.0


def observed_bottleneck(
    observation: Observation, rho: float, overlap: Overlap, cores: HostCores | None = None
) -> Bottleneck | None:
    """Name the bottleneck of a running job.

    Args:
        rho: uses of each sample.
        overlap: roles that may work at the same time.
        cores: cores of the job's host; None with several hosts, or if nothing is known of the cores.

    Returns:
        None if one of the sides has not worked yet.
    """
    actors, buffers, learners = observation.actors, observation.buffers, observation.learners
    production, consumption = actors.capacity * rho, learners.capacity
    reception = buffers.capacity * rho
    if not (production > 0 and reception > 0 and consumption > 0):
        return None
    # A quota that is used up slows all roles down, whichever waits for another.
    if cores is not None and cores.shared and cores.idle < IDLE and (overlap == "free" or cores.throttled):
        return beside_busy_cores(cores.there, cores.throttled, actors.busy_s, learners.busy_s)
    if overlap == "none":
        return on_shared_cores(OWN_CORES, actors.busy_s, 0.0, learners.busy_s)
    if overlap == "in step":
        return in_step(production, consumption)
    found = bottleneck(production, reception, consumption)
    if found.kind != "communication-bound" and max(actors.busy, learners.busy) < MOSTLY:
        return BOUND_BY_WAITING
    if found.kind == "sample-bound" and cores is not None and cores.idle >= IDLE:
        found = beside_idle_cores(cores.idle, cores.there, cores.would_use_them)
    return found


@dataclass
class _Process:
    """Work of one process, in its earlier incarnations and in the present one."""

    incarnation: int
    before: Observation = field(default_factory=Observation)
    now: Observation = field(default_factory=Observation)


@dataclass(frozen=True)
class _Mark:
    """Progress of the job at one moment."""

    at_s: float
    version: int
    done: Observation
    idle_s: float
    limit: CpuLimit | None


def usable_idle_s() -> float:
    """Idle core seconds of the cores that this process may use, since the host started."""
    times = psutil.cpu_times(percpu=True)
    # Containers may count their own cores from 0 and still name the affinity by the machine's.
    usable = [times[core] for core in os.sched_getaffinity(0) if core < len(times)] or times
    return float(sum(of_core.idle + of_core.iowait for of_core in usable))


class WorkLog:
    """Owns the history of the roles' work, and names the bottleneck of the job.

    Args:
        idle_s: returns the idle core seconds of this host so far.

    Attributes:
        waits_for: the user role that held actors back at the last call of ``current``.
    """

    def __init__(self, config: JobConfig, plan: Plan, idle_s: Callable[[], float] = usable_idle_s) -> None:
        self._config = config
        self._is_here = len({process.host for process in plan.processes}) == 1
        self._idle_s = idle_s
        self._begun: _Mark | None = None
        self._overlap = _overlap(config)
        buffers, learners, followers = (
            len(plan.carrying(role)) for role in ("buffer", "learner", "follower")
        )
        self._nothing = Observation(
            Work(members=len(plan.carrying("actor"))),
            Work(members=buffers),
            Work(members=learners + followers),
        )
        self._processes: dict[int, _Process] = {}
        self._rho = 0.0
        self._first_version: int | None = None
        self._version = 0
        self._marks: deque[_Mark] = deque()
        self._named: Bottleneck | None = None
        self._agreed_s = 0.0
        self._held_back = BackPressure(plan)
        self.waits_for: Receiver | None = None

    def note(self, process: PlannedProcess, report: Report, produced: Mapping[int, int]) -> None:
        """Record a report, and the samples that each of its actors has made in this incarnation so far."""
        known = self._processes.setdefault(process.rank, _Process(report.incarnation))
        if report.incarnation != known.incarnation:
            known.incarnation, known.before = report.incarnation, known.before + known.now
        known.now = _done(process, report, produced)
        self._held_back.note(process, report)
        for role_report in report.roles:
            if isinstance(role_report, LearnerReport):
                # Groups publish independently; the one that is ahead shows the progress of the job.
                self._rho, self._version = role_report.rho, max(self._version, role_report.version)
                if self._first_version is None:
                    self._first_version = self._version

    def current(self, now_s: float) -> Bottleneck | None:
        """Name the current bottleneck, None while too little is known; ``now_s`` is on any clock."""
        done = self._total()
        if done.learners.count > 0:  # The time before the first update says nothing about training.
            self._mark(now_s, done)
        self.waits_for = self._held_back.current(now_s)
        if self.waits_for is not None:
            return bound_by(self.waits_for)  # Even if no version ever follows.
        if not self._marks:
            return None
        first, last = self._marks[0], self._marks[-1]
        if last.at_s - first.at_s < LEAST_S or last.version - first.version < LEAST_VERSIONS:
            return self._named
        cores = self._cores(first, last)
        found = self._named_of(last.done.since(first.done), cores)
        agreed = self._named is None or found is None or found.kind == self._named.kind
        if agreed or now_s - self._agreed_s >= HOLD_S:
            self._named, self._agreed_s = found, now_s
        return self._named

    def _mark(self, now_s: float, done: Observation) -> None:
        """Record this moment if a learner has reported since the last one; drop moments that are too old."""
        if not self._marks or done.learners.running_s > self._marks[-1].done.learners.running_s:
            # Idle times come from a file, and strangers may hold the last descriptor for a moment.
            with contextlib.suppress(OSError):
                self._marks.append(_Mark(now_s, self._version, done, self._idle_s(), cpu_limit()))
                self._begun = self._begun or self._marks[0]
        while len(self._marks) > 2 and (self._suffices(self._marks[1]) or len(self._marks) > MOST_MARKS):
            self._marks.popleft()

    def window_began(self, now_s: float) -> float:
        """Return the start of the interval whose work counts, on the clock of ``current``."""
        if self.waits_for is not None or not self._marks:
            return now_s - WINDOW_S
        # If learners no longer report, the marks stand still while the other roles go on.
        first_s, last_s = self._marks[0].at_s, self._marks[-1].at_s
        return max(first_s, now_s - max(WINDOW_S, last_s - first_s))

    def overall(self, train_s: float) -> Bottleneck | None:
        """Name the bottleneck of the whole session; None if the session was too short to tell.

        Args:
            train_s: seconds of training; processes also run before and after it.
        """
        held_back_by = self._held_back.overall()
        if held_back_by is not None:
            return bound_by(held_back_by)
        if train_s < LEAST_S or self._version - (self._first_version or 0) < LEAST_VERSIONS:
            return None
        done = self._total()
        # Processes are there before training and after it.
        actors, learners = (
            replace(work, running_s=work.members * train_s) for work in (done.actors, done.learners)
        )
        observed = Observation(actors, done.buffers, learners)
        cores = self._cores(self._begun, self._marks[-1]) if self._begun is not None else None
        return self._named_of(observed, cores)

    def _named_of(self, observed: Observation, cores: HostCores | None) -> Bottleneck | None:
        if self._config.distribution.actor.num.varies:
            return None  # Some actors are parked; ``Adaptation`` finds out what is faster.
        found = observed_bottleneck(observed, self._rho, self._overlap, cores)
        return naming_network(found, self._config.model.settings)

    def _cores(self, first: _Mark, last: _Mark) -> HostCores | None:
        """Describe the use of the cores between two moments; None if it is not known.

        It is not known with several hosts, nor with a CPU quota that is not used up: idle cores are not the
        job's.
        """
        if not self._is_here or last.at_s <= first.at_s:
            return None
        distribution, there = self._config.distribution, len(os.sched_getaffinity(0))
        limit = last.limit
        if limit is not None and limit.cores < there:
            throttled = limit.throttled_since(first.limit)
            return HostCores(limit.cores, True, 0.0, "", throttled) if throttled > THROTTLED else None
        idle = (last.idle_s - first.idle_s) / (last.at_s - first.at_s)
        actor, groups = distribution.actor, distribution.groups
        wanted = self._config.cores
        more = max(1, int(idle / actor.cores / groups))
        settings = f"distribution.actor.num = {actor.num.max + more}"
        if distribution.pin_cores and wanted + groups * more * actor.cores > there:
            settings += " with distribution.pin_cores = false"
        shared = wanted > there and not distribution.pin_cores
        return HostCores(there, shared, idle, settings)

    def _suffices(self, first: _Mark) -> bool:
        last = self._marks[-1]
        return last.at_s - first.at_s >= WINDOW_S and last.version - first.version >= LEAST_VERSIONS

    def _total(self) -> Observation:
        return sum((known.before + known.now for known in self._processes.values()), start=self._nothing)


def _overlap(config: JobConfig) -> Overlap:
    distribution = config.distribution
    if distribution.one_process:
        return "none"
    return "in step" if distribution.mode == "sync" else "free"


def _done(process: PlannedProcess, report: Report, produced: Mapping[int, int]) -> Observation:
    """Sum up the work of the roles of one process in this incarnation."""
    done = Observation()
    # A buffer or a user role in a learner's process takes the learner's time.
    turns_s = sum(
        busy_s
        for role_report, busy_s in zip(report.roles, report.busy_s, strict=True)
        if role_report.role != "actor"
    )
    for role_report, busy_s in zip(report.roles, report.busy_s, strict=True):
        match role_report:
            case ActorReport():
                # Actors of one process take turns.
                done += Observation(actors=Work(0, busy_s, report.running_s / len(process.actors)))
            case BufferReport():
                done += Observation(buffers=Work(role_report.received, busy_s, report.running_s))
            case LearnerReport():
                done += Observation(learners=Work(role_report.session_consumed, turns_s, report.running_s))
            case FollowerReport():
                # The learner of the group counts the uses of its followers.
                done += Observation(learners=Work(0, busy_s, report.running_s))
    made = sum(produced.get(actor, 0) for actor in process.actors)
    return done + Observation(actors=Work(count=made))


@dataclass(frozen=True, order=True)
class Receiver:
    """A role that the actors of its group may have to wait for."""

    name: str
    group: int

    def __str__(self) -> str:
        """Return the name and the group, as in the titles of processes."""
        return f"{self.name} (group {self.group})"

    @property
    def fault(self) -> str:
        """Reason why the actors wait."""
        if self.name == INFERENCE:
            return "which runs the network for them too slowly"
        return "which claims its fragments too slowly or not at all"


class BackPressure:
    """Owns the times that actors have waited for each receiver."""

    def __init__(self, plan: Plan) -> None:
        self._actors = Counter(process.group for process in plan.processes for _ in process.actors)
        self._waited_s: dict[tuple[int, int], dict[Receiver, float]] = {}
        self._running_s: dict[tuple[int, int], float] = {}
        self._marks: deque[tuple[float, Mapping[Receiver, float]]] = deque()

    def note(self, process: PlannedProcess, report: Report) -> None:
        """Record the waiting times of a process's actors in this incarnation."""
        for index, role_report in enumerate(report.roles):
            if isinstance(role_report, ActorReport) and process.group is not None:
                self._running_s[process.rank, index] = report.running_s
                self._waited_s[process.rank, index] = {
                    Receiver(name, process.group): seconds for name, seconds in role_report.waited_s.items()
                }

    def current(self, now_s: float) -> Receiver | None:
        """Return the role that holds its group's actors back; None if none does, or before ``WINDOW_S``."""
        waited = self._total()
        self._marks.append((now_s, waited))
        while len(self._marks) > 2 and now_s - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        then_s, before = self._marks[0]
        if now_s - then_s < WINDOW_S:
            return None
        lately = {receiver: seconds - before.get(receiver, 0.0) for receiver, seconds in waited.items()}
        return self._worst(lately, now_s - then_s)

    def overall(self) -> Receiver | None:
        """Return the role that held its group's actors back over the whole session; None if none did."""
        there_s = sum(self._running_s.values()) / max(len(self._running_s), 1)
        return self._worst(self._total(), there_s) if there_s >= LEAST_S else None

    def _total(self) -> Mapping[Receiver, float]:
        total: Counter[Receiver] = Counter()
        for waited in self._waited_s.values():
            total.update(waited)
        return total

    def _worst(self, waited: Mapping[Receiver, float], interval_s: float) -> Receiver | None:
        shares = {
            receiver: seconds / (interval_s * self._actors[receiver.group])
            for receiver, seconds in waited.items()
        }
        worst = max(shares, key=lambda receiver: shares[receiver], default=None)
        return worst if worst is not None and shares[worst] > MOSTLY else None


def bound_by(receiver: Receiver) -> Bottleneck:
    """Name a role as the bottleneck of the job."""
    return Bottleneck(
        "communication-bound",
        f"actors wait most of the time for the role {receiver}, {receiver.fault}; more actors will not help, "
        "less work in its turns or cores of its own would",
    )

"""What holds a running job back, by what its roles did lately and by whom their actors waited for."""

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
"""How far back is looked during a run: past the noise of single seconds."""

LEAST_S: Final = 2.0
LEAST_VERSIONS: Final = 2
"""In less time, or with fewer versions of the policy, too little is known to name anything."""

MOST_MARKS: Final = 600
"""How many moments are remembered: some minutes, for jobs whose rollouts take that long."""

HOLD_S: Final = WINDOW_S
"""Another side is named once it was found for so long: two near balance do not take turns on the screen."""

Overlap = Literal["free", "in step", "none"]
"""Who may work while others do: all of them; actors only when the learner waits for them, and the other way
round (``mode = "sync"``); none, where all roles of a group are one process (``inproc``)."""

MOSTLY: Final = 0.5
"""A side that is busy for a smaller share of the time waits most of it; a role for which its group's actors
wait a larger share holds them back."""

THROTTLED: Final = 0.25
"""A CPU quota that is used up in a larger share of its periods holds the job back, whatever its roles do."""

IDLE: Final = 0.5
"""Cores that are idle for less time than this of one are at work."""

BOUND_BY_WAITING: Final = Bottleneck(
    "communication-bound",
    "actors and learner both wait most of the time for what is on its way between them; "
    "a larger distribution.actor.window, or another transport, may help",
)


@dataclass(frozen=True)
class Work:
    """What all roles of one kind did, so far or in some time.

    Attributes:
        count: samples that they produced or received, or uses that they made.
        busy_s: seconds that they worked, all of them together.
        running_s: seconds that they were there, all of them together.
        members: how many they are.
    """

    count: float = 0.0
    busy_s: float = 0.0
    running_s: float = 0.0
    members: int = 0

    def __add__(self, other: Work) -> Work:
        """What these and those did."""
        return Work(*map(add, vars(self).values(), vars(other).values()))

    def since(self, earlier: Work) -> Work:
        """What the same roles did after an earlier moment."""
        return Work(
            self.count - earlier.count,
            self.busy_s - earlier.busy_s,
            self.running_s - earlier.running_s,
            self.members,
        )

    @property
    def capacity(self) -> float:
        """How much they would do each second if they never waited.

        >>> Work(count=300.0, busy_s=1.5, running_s=10.0, members=2).capacity
        400.0
        """
        return self.members * self.count / self.busy_s if self.busy_s > 0 else 0.0

    @property
    def busy(self) -> float:
        """Share of the time that they worked, 0 to 1."""
        return self.busy_s / self.running_s if self.running_s > 0 else 0.0


@dataclass(frozen=True)
class Observation:
    """What a job did, so far or in some time.

    Attributes:
        actors: with the samples that they produced.
        buffers: with the samples that they received.
        learners: with the uses that they made; a buffer that takes turns with one makes it as much busier.
    """

    actors: Work = Work()
    buffers: Work = Work()
    learners: Work = Work()

    def __add__(self, other: Observation) -> Observation:
        """What these and those did."""
        return Observation(*map(add, vars(self).values(), vars(other).values()))

    def since(self, earlier: Observation) -> Observation:
        """What the same job did after an earlier moment."""
        return Observation(*map(Work.since, vars(self).values(), vars(earlier).values()))


@dataclass(frozen=True)
class HostCores:
    """Cores of the host on which all of a job runs.

    Attributes:
        there: how many, of which a CPU quota may leave a part.
        shared: roles share them.
        idle: that were at work with nothing, on average.
        would_use_them: settings with which actors would be at work on idle cores.
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
    """Name what holds a running job back.

    Args:
        rho: uses of each sample.
        overlap: who may work while others do.
        cores: of its host; None where there are several, or nothing is known of them.

    Returns:
        None if one of the sides has not worked yet.
    """
    actors, buffers, learners = observation.actors, observation.buffers, observation.learners
    production, consumption = actors.capacity * rho, learners.capacity
    reception = buffers.capacity * rho
    if not (production > 0 and reception > 0 and consumption > 0):
        return None
    # A quota that is used up slows all of them down, whoever waits for whom.
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
    """What one process did: in earlier incarnations, and in the present one."""

    incarnation: int
    before: Observation = field(default_factory=Observation)
    now: Observation = field(default_factory=Observation)


@dataclass(frozen=True)
class _Mark:
    """How far the job was at some moment."""

    at_s: float
    version: int
    done: Observation
    idle_s: float
    limit: CpuLimit | None


def usable_idle_s() -> float:
    """Core seconds in which the cores that this process may use had nothing to do, since the host started."""
    times = psutil.cpu_times(percpu=True)
    # Containers may count their own cores from 0 and still name the affinity by the machine's.
    usable = [times[core] for core in os.sched_getaffinity(0) if core < len(times)] or times
    return float(sum(of_core.idle + of_core.iowait for of_core in usable))


class WorkLog:
    """Owns what is known of the roles' work, and names what holds the job back.

    Args:
        idle_s: core seconds in which the cores of this host had nothing to do, so far.

    Attributes:
        waits_for: the user role that held actors back when ``current`` was asked last.
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
            Work(members=plan.num_actors), Work(members=buffers), Work(members=learners + followers)
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
        """Take in a report, and the samples that each of its actors has made in this incarnation by now."""
        known = self._processes.setdefault(process.rank, _Process(report.incarnation))
        if report.incarnation != known.incarnation:
            known.incarnation, known.before = report.incarnation, known.before + known.now
        known.now = _done(process, report, produced)
        self._held_back.note(process, report)
        for said in report.roles:
            if isinstance(said, LearnerReport):
                # Groups publish by themselves; the one that is ahead shows how far the job is.
                self._rho, self._version = said.rho, max(self._version, said.version)
                if self._first_version is None:
                    self._first_version = self._version

    def current(self, now_s: float) -> Bottleneck | None:
        """Name what holds the job back lately, None while too little is known; ``now_s`` is of any clock."""
        done = self._total()
        if done.learners.count > 0:  # What was before the first update says nothing of what comes.
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
        """Remember this moment, if a learner has reported since the last one; forget those too long ago."""
        if not self._marks or done.learners.running_s > self._marks[-1].done.learners.running_s:
            # What tells of idle cores is a file, and strangers may hold the last descriptor for a moment.
            with contextlib.suppress(OSError):
                self._marks.append(_Mark(now_s, self._version, done, self._idle_s(), cpu_limit()))
                self._begun = self._begun or self._marks[0]
        while len(self._marks) > 2 and (self._suffices(self._marks[1]) or len(self._marks) > MOST_MARKS):
            self._marks.popleft()

    def window_began(self, now_s: float) -> float:
        """Say since when the roles' work counts, on the clock of ``current``."""
        if self.waits_for is not None or not self._marks:
            return now_s - WINDOW_S
        # Of learners that report no more, the marks stand still, and the others go on.
        first_s, last_s = self._marks[0].at_s, self._marks[-1].at_s
        return max(first_s, now_s - max(WINDOW_S, last_s - first_s))

    def overall(self, train_s: float) -> Bottleneck | None:
        """Name what held the whole session back; None if it was too short to tell.

        Args:
            train_s: seconds of training: processes run before it and after it.
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
        found = observed_bottleneck(observed, self._rho, self._overlap, cores)
        return naming_network(found, self._config.model.settings)

    def _cores(self, first: _Mark, last: _Mark) -> HostCores | None:
        """Describe what became of the cores between two moments; None where that is not known.

        So it is with several hosts, and with a CPU quota that is not used up: idle cores are not the job's.
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
        settings = f"distribution.actor.num = {actor.num + more}"
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
    """Sum up what the roles of one process did in this incarnation."""
    done = Observation()
    # Who takes turns with a learner takes its time.
    turns_s = sum(
        busy_s for said, busy_s in zip(report.roles, report.busy_s, strict=True) if said.role != "actor"
    )
    for said, busy_s in zip(report.roles, report.busy_s, strict=True):
        match said:
            case ActorReport():
                done += Observation(actors=Work(0, busy_s, report.running_s))
            case BufferReport():
                done += Observation(buffers=Work(said.received, busy_s, report.running_s))
            case LearnerReport():
                done += Observation(learners=Work(said.session_consumed, turns_s, report.running_s))
            case FollowerReport():
                # Its uses are among those that its group's learner counts.
                done += Observation(learners=Work(0, busy_s, report.running_s))
    made = sum(produced.get(actor, 0) for actor in process.actors)
    return done + Observation(actors=Work(count=made))


@dataclass(frozen=True, order=True)
class Receiver:
    """A role of a group, for which the group's actors may have to wait."""

    name: str
    group: int

    def __str__(self) -> str:
        """As processes are called."""
        return f"{self.name} (group {self.group})"


class BackPressure:
    """Owns how long actors have waited for whom."""

    def __init__(self, plan: Plan) -> None:
        self._actors = Counter(process.group for process in plan.processes for _ in process.actors)
        self._waited_s: dict[tuple[int, int], dict[Receiver, float]] = {}
        self._running_s: dict[tuple[int, int], float] = {}
        self._marks: deque[tuple[float, Mapping[Receiver, float]]] = deque()

    def note(self, process: PlannedProcess, report: Report) -> None:
        """Take in for how long a process's actors have waited, in this incarnation."""
        for index, said in enumerate(report.roles):
            if isinstance(said, ActorReport) and process.group is not None:
                self._running_s[process.rank, index] = report.running_s
                self._waited_s[process.rank, index] = {
                    Receiver(name, process.group): seconds for name, seconds in said.waited_s.items()
                }

    def current(self, now_s: float) -> Receiver | None:
        """The role that holds its group's actors back lately; None if none does, or for ``WINDOW_S``."""
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
        """Return who held its group's actors back for as long as they were there."""
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
    """Name a role as what holds the job back."""
    return Bottleneck(
        "communication-bound",
        f"actors wait most of the time for the role {receiver}, which claims its fragments too slowly or not "
        "at all; more actors will not help, less work in its turns or cores of its own would",
    )

"""Changes how many actors work while a job trains: parks and wakes them, and keeps the fastest number.

The more actors work, the more samples there are, and the fewer cores are left to the learner; which number
is best follows from the machine, the environment and the network, and may change on the way. So it is
measured: two numbers take turns in windows of training, and the other one stays if it is faster.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.plan.plan import Plan
from tianji_cli.quantities import rate, several
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import Phase, RunningJob
from tianji_cli.telemetry.snapshot import Snapshot, Split
from tianji_cli.wire.messages import Allow, Register, Report, ToRoot
from tianji_cli.wire.reports import LearnerReport

WINDOW_S: Final = 1.0
"""Minimum seconds of a window, which begins and ends with a version: a rollout arrives at once."""
SETTLE_S: Final = 0.5
"""Minimum seconds between a change and the window that measures it."""
LEAST_FRAGMENTS: Final = 2
"""Minimum fragments in a window, on average over the working actors. One of each passes before it begins."""

PAIRS: Final = 3
"""Windows of each number before one of the two may be found faster."""
MOST_PAIRS: Final = 6
"""Windows of each number after which the earlier number stays, unless the other one is faster."""
T_90: Final = {3: 2.920, 4: 2.353, 5: 2.132, 6: 2.015}
"""Quantile of Student's t for a two-sided interval of 90 %, by the number of pairs."""

LEAST_GAIN: Final = 0.03
"""Minimum gain for which the number changes. A trial ends as soon as it is out of reach."""

FACTOR: Final = 2.0
"""Factor between the two numbers at first; its root is taken when both sides are refused."""
LEAST_FACTOR: Final = 1.1
"""Smaller factors are not tried."""
MOVED: Final = 0.15
"""Change of the rate after which a search that has ended begins anew."""


@dataclass(frozen=True)
class Verdict:
    """Result of a trial.

    Attributes:
        before: earlier number of actors.
        tried: the other number.
        kept: the other number is faster, and stays.
        gain: relative difference of its rate; ``low`` and ``high`` are the ends of the 90 % interval.
        per_s_before: env steps a second that were learnt from with the earlier number.
        per_s: those with the other number.
    """

    before: int
    tried: int
    kept: bool
    gain: float
    low: float
    high: float
    per_s_before: float
    per_s: float

    def __str__(self) -> str:
        """Return the event for users."""
        gain, low, high = (f"{100 * value:+.0f} %" for value in (self.gain, self.low, self.high))
        actors = f"{several(self.tried, 'actor')} in place of {self.before}"
        rates = f"{rate(self.per_s)} learnt from in place of {rate(self.per_s_before)}"
        return f"{actors}: {rates}, {gain} (90 % interval {low} to {high})"


class SplitSearch:
    """Looks for the number of actors with which a job trains fastest, by measured rates.

    Attributes:
        number: number of actors that should work now.
        kept: number that was fastest so far.
        tried: trials so far.
        changes: trials whose number was kept.
        rests: neither more nor fewer actors are faster; it begins anew when the rate moves.
    """

    def __init__(self, least: int, most: int, first: int) -> None:
        self._range = least, most
        self.number = self.kept = first
        self.tried = self.changes = 0
        self._rested_at = 0.0
        self.begin(most)

    def begin(self, there: int) -> None:
        """Begin the search anew, with so many actors at most: hosts have come or gone."""
        least, most = self._range
        self._most = max(1, min(most, there))
        self._least = min(least, self._most)
        self.number = self.kept = min(max(self.kept, self._least), self._most)
        self._begin_search()

    def _begin_search(self) -> None:
        self.rests = False
        self._factor = FACTOR
        self._refused: set[int] = set()
        self._rates: dict[int, list[float]] = {}
        self._trial = self._next_trial()
        self.rests = self._trial is None

    def _next_trial(self) -> int | None:
        """Return the next number to try; None if all are refused."""
        while self._factor > LEAST_FACTOR:
            more = max(self.kept + 1, round(self.kept * self._factor))
            fewer = min(self.kept - 1, round(self.kept / self._factor))
            for number in (min(more, self._most), max(fewer, self._least)):
                if number != self.kept and number not in self._refused:
                    return number
            self._factor = math.sqrt(self._factor)
        return None

    def note(self, per_s: float) -> Verdict | None:
        """Take the rate of a window, with ``number`` actors; return the result if it ends a trial."""
        if self._trial is None:
            self._rest(per_s)
            return None
        self._rates.setdefault(self.number, []).append(per_s)
        before, after = (self._rates.get(number, []) for number in (self.kept, self._trial))
        # In the order A B B A A B B A, a rate that rises or falls by itself favours neither, or hardly.
        windows = len(before) + len(after)
        self.number = self._trial if windows % 4 in {1, 2} else self.kept
        pairs = min(len(before), len(after))
        if windows % 2 or pairs < PAIRS:
            return None
        verdict = self._judge(before, after)
        if not verdict.kept and verdict.high > LEAST_GAIN and pairs < MOST_PAIRS:
            return None
        self._conclude(verdict)
        return verdict

    def _judge(self, before: list[float], after: list[float]) -> Verdict:
        assert self._trial is not None
        logs = [math.log(max(new, 1e-9) / max(old, 1e-9)) for old, new in zip(before, after, strict=True)]
        mean = statistics.fmean(logs)
        half = T_90[len(logs)] * statistics.stdev(logs) / math.sqrt(len(logs))
        gain, low, high = (math.expm1(value) for value in (mean, mean - half, mean + half))
        kept = low > 0 and gain > LEAST_GAIN
        rates = statistics.fmean(before), statistics.fmean(after)
        return Verdict(self.kept, self._trial, kept, gain, low, high, *rates)

    def _conclude(self, verdict: Verdict) -> None:
        self.tried += 1
        if verdict.kept:
            self.changes += 1
            self._refused = {self.kept}  # It goes on the same way.
            self.kept = verdict.tried
        else:
            self._refused.add(verdict.tried)
        self._rested_at = statistics.fmean(self._rates[self.kept])
        self._rates.clear()
        self._trial = self._next_trial()
        self.rests = self._trial is None
        self.number = self.kept

    def _rest(self, per_s: float) -> None:
        """Begin anew if the rate has moved, in three windows together."""
        lately = self._rates.setdefault(self.kept, [])
        lately.append(per_s)
        if len(lately) < PAIRS:
            return
        moved = abs(statistics.fmean(lately) / max(self._rested_at, 1e-9) - 1)
        lately.clear()
        if moved > MOVED:
            self._begin_search()


@dataclass(frozen=True)
class Point:
    """Progress of a learner at a moment of its own clock."""

    at_s: float
    env_steps: int
    consumed: int
    version: int
    rho: float

    @classmethod
    def of(cls, report: Report, learner: LearnerReport) -> Point:
        """Read a learner's report, which its process has sent."""
        counts = learner.env_steps, learner.session_consumed, learner.version
        return cls(report.running_s, *counts, learner.rho)

    def per_s_since(self, begun: Point) -> float:
        """Env steps a second that were both received and learnt from."""
        learnt = (self.consumed - begun.consumed) / self.rho if self.rho else 0.0
        return min(self.env_steps - begun.env_steps, learnt) / max(self.at_s - begun.at_s, 1e-3)


class Adaptation(Observer):
    """Parks actors and wakes them as a ``SplitSearch`` asks, the same number in each group.

    A parked actor finishes its fragment and begins no other. Near the goal all is left to ``ProductionGoal``.
    """

    def __init__(self, job: RunningJob) -> None:
        num = job.config.distribution.actor.num
        self._job = job
        self._seats = {group: list(_in_turns(job.plan, group)) for group in job.plan.groups}
        self._search = SplitSearch(num.min, num.max, num.first or num.max)
        self._newest: dict[int, Point] = {}
        """Progress of each learner when it had published its newest version."""
        self._begun: dict[int, Point] = {}
        self._settled_s = 0.0
        self._changed_at: dict[int, int] = {}
        """Env steps of each learner when the number changed."""
        self._present: list[list[int]] = []

    def on_begin(self) -> None:
        """Park the actors that are more than the first number."""
        self._begin_search()

    def on_message(self, message: ToRoot) -> None:
        """Park an actor that was restarted, and look at a learner's progress."""
        match message:
            case Register() if message.rank in self._job.parked and not self._job.near_goal:
                self._job.control.send(message.rank, Allow(fragments=0))
            case Report() if message.rank in self._job.learners and self._is_searching:
                for report in message.roles:
                    if isinstance(report, LearnerReport):
                        self._note(message.rank, Point.of(message, report))

    def on_exit(self, worker: WorkerProcess) -> None:  # noqa: ARG002 - any exit counts
        """Begin the present window anew: a process that took part has ended."""
        self._begun.clear()

    def on_tick(self, snapshot: Snapshot) -> None:  # noqa: ARG002 - it looks at seats alone
        """Begin anew when actors have come or gone with their host, or with their group."""
        if self._is_searching and self._present != self._seats_present():
            self._begin_search()

    @property
    def _is_searching(self) -> bool:
        job = self._job
        return job.phase is Phase.TRAINING and job.outcome is None and not job.near_goal

    def _seats_present(self) -> list[list[int]]:
        """Return the ranks of each group's actors that are there."""
        living = self._job.living
        groups = (group for group in self._seats if group not in self._job.lost)
        return [[rank for rank in self._seats[group] if rank in living] for group in groups]

    def _begin_search(self) -> None:
        self._present = self._seats_present()
        self._search.begin(min(map(len, self._present), default=1))
        self._set_working()

    def _note(self, rank: int, point: Point) -> None:
        """Begin the window of a learner with a version of it, and end all when each has had enough."""
        last = self._newest.setdefault(rank, point)
        if point.version == last.version:
            return
        self._newest[rank] = point
        learners = self._job.learners.keys() & self._job.living
        steps = point.env_steps - self._changed_at.setdefault(rank, point.env_steps)
        if time.monotonic() < self._settled_s or steps < self._steps_of(1):
            return
        if rank not in self._begun:
            if point.consumed:  # Before its first update nothing is fast.
                self._begun[rank] = point
            return
        if learners <= self._begun.keys() and all(map(self._suffices, learners)):
            self._end_window(sum(self._newest[one].per_s_since(self._begun[one]) for one in learners))

    def _suffices(self, rank: int) -> bool:
        """Whether a learner's window is long enough."""
        begun, now = self._begun[rank], self._newest[rank]
        steps = now.env_steps - begun.env_steps
        return now.at_s - begun.at_s >= WINDOW_S and steps >= self._steps_of(LEAST_FRAGMENTS)

    def _steps_of(self, fragments: int) -> int:
        """Return the env steps of so many fragments of each actor of a group that works."""
        return fragments * self._search.number * self._job.config.fragment_steps

    def _end_window(self, per_s: float) -> None:
        search = self._search
        rested, number = search.rests, search.number
        verdict = search.note(per_s)
        if verdict is not None and verdict.kept:
            self._job.event(str(verdict))
        actors = several(search.kept, "actor")
        if search.rests and not rested:
            self._job.event(f"{actors} train fastest: neither more nor fewer are faster")
        if rested and not search.rests:
            self._job.event(
                f"{actors} train at another pace than before, {rate(per_s)}: trying other numbers"
            )
        if search.number == number:
            self._begun = dict(self._newest)
            self._show()
        else:
            self._set_working()

    def _set_working(self) -> None:
        """Have as many actors of each group work as the search asks for."""
        job, search = self._job, self._search
        there = set(chain.from_iterable(self._present))
        parked = there.difference(*(ranks[: search.number] for ranks in self._present))
        for rank in sorted((parked ^ job.parked) & there):
            job.control.send(rank, Allow(fragments=0 if rank in parked else None))
        job.parked = parked
        self._begun.clear()
        self._changed_at.clear()
        self._settled_s = time.monotonic() + SETTLE_S
        self._show()

    def _show(self) -> None:
        search = self._search
        trying = None if search.number == search.kept else search.number
        self._job.overview.split = Split(search.kept, trying, search.tried, search.changes)


def _in_turns(plan: Plan, group: int) -> Iterator[int]:
    """Yield the ranks of a group's actors, one of each host in turn: so none is parked before the others."""
    on_hosts: dict[str, list[int]] = {}
    for process in plan.carrying("actor", group):
        on_hosts.setdefault(process.host, []).append(process.rank)
    turns = zip_longest(*on_hosts.values())
    return (rank for turn in turns for rank in turn if rank is not None)

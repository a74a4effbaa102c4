"""Measures every case of a request: checks it first, then repeats it in turns with all others.

So a drifting machine is fair to all cases. The median of the repeats is reported. One failure ends the sweep:
there are no figures of a machine on which a message was lost.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median
from typing import Final

import numpy as np

from tianji_cli.telemetry.progress import Progress
from tianji_lab.bench.experiment import LEAD, Case, Outcome, Trial, TrialFailed
from tianji_lab.bench.raw.loop import LOOPS
from tianji_lab.bench.record import KB, MB, Record
from tianji_lab.bench.request import Request
from tianji_lab.bench.workers import BenchWorker, BenchWorkers, Session
from tianji_transports.errors import TransportError

WARM_MESSAGES: Final = 100
"""Messages before each timed run, checked to the last byte: they touch memory, and connect the peers."""
TERM_RUNS: Final = 3
"""Runs whose median is a term of Equation 1."""
TERM_S: Final = 1.0
"""Seconds of a run at an actor's pace: long enough for the mean time of a sample."""
TERM_BYTES: Final = 1e9
"""Bytes of a run at full speed: long enough that its beginning does not matter."""
LEAST_TERM_MESSAGES: Final = 100
MOST_TERM_MESSAGES: Final = 2000
"""Bounds on the messages of a run that measures the terms of Equation 1."""
BLOCKED: Final = 1.25
"""Time of a message as a multiple of the actor's own cost, above which the actor waited for the receiver."""


@dataclass(frozen=True)
class Terms:
    """Costs of a message on each side, in seconds: Equation 1 (section 3.2), corrected.

    The paper's first case, ``T_c = (T_sp + T_sd) N_s``, lacks the division by ``N_A`` that its own condition
    has; with it both cases are one formula: ``T_c = N_s max((T_sp + T_sd) / N_A, T_rv)``.

    Attributes:
        sample_s: T_sp, to make it.
        send_s: T_sd, to push it, without waits for credit.
        receive_s: T_rv, to receive and store it.
    """

    sample_s: float
    send_s: float
    receive_s: float

    def collection_s(self, samples: int, actors: int) -> float:
        """T_c: the time to collect ``samples`` (N_s) from ``actors`` (N_A) that have a core each.

        >>> Terms(0.01, 0.0, 0.001).collection_s(1000, actors=2)
        5.0
        >>> Terms(0.01, 0.0, 0.001).collection_s(1000, actors=20)
        1.0
        """
        return samples * max((self.sample_s + self.send_s) / actors, self.receive_s)

    @property
    def crossing(self) -> int:
        """The fewest actors with which the buffer is the critical path.

        >>> Terms(0.01, 0.0, 0.001).crossing
        10
        """
        return max(1, math.ceil((self.sample_s + self.send_s) / self.receive_s))


@dataclass
class _Measured:
    """Measurements of a case so far."""

    terms: Terms | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    raw: list[Outcome] = field(default_factory=list)


class Sweep:
    """Measures all cases of a request with the workers of a benchmark."""

    def __init__(self, workers: BenchWorkers, request: Request, progress: Progress) -> None:
        self._workers = workers
        self._request = request
        self._progress = progress
        self._terms: dict[Case, Terms] = {}
        self._raws: dict[tuple[Case, int], list[Outcome]] = {}
        self._trials = 0

    @property
    def steps(self) -> int:
        """Number of steps that ``progress`` will count: a check and the repeats of each case."""
        return len(self._request.cases) * (1 + self._request.repeats)

    def measure(self) -> list[Record]:
        """Measure all cases.

        Raises:
            TrialFailed: a run has no result, so there are no records at all.
        """
        measured = {case: _Measured() for case in self._request.cases}
        for case, found in measured.items():
            with self._step(case, "checking every byte"):
                self._check(case)
                if case.experiment == "comm":
                    found.terms = self._terms_of(case.alone)
            self._progress.done("every byte is right")
        for repeat in range(1, self._request.repeats + 1):
            for case, found in measured.items():
                with self._step(case, f"run {repeat} of {self._request.repeats}"):
                    found.outcomes += self._timed(case, case.messages)
                    if self._request.raw and case.backend in LOOPS:
                        found.raw += self._raw(case, repeat)
                self._progress.done(f"{found.outcomes[-1].seconds:.3f} s")
        return [self._record(case, found) for case, found in measured.items()]

    @contextmanager
    def _step(self, case: Case, what: str) -> Iterator[None]:
        self._progress.begin(f"{case}: {what}")
        try:
            yield
        except (TrialFailed, TransportError) as failure:
            raise TrialFailed(f"{case}, {what}: {failure}") from failure

    # -- runs ------------------------------------------------------------------------------------------

    def _check(self, case: Case) -> None:
        with self._open(case) as session:
            session.run(case.messages, thorough=True)

    def _timed(self, case: Case, messages: int, *, runs: int = 1, raw: bool = False) -> list[Outcome]:
        with self._open(case, raw=raw) as session:
            session.run(min(messages, WARM_MESSAGES), thorough=True)
            return [session.run(messages) for _ in range(runs)]

    def _raw(self, case: Case, repeat: int) -> list[Outcome]:
        """Run the raw loop of a case; cases with the same raw loop share one run in each repeat."""
        alike = case.alone.model_copy(update={"sample_time_s": 0.0, "work": "sleep"})
        if (alike, repeat) not in self._raws:
            self._raws[alike, repeat] = self._timed(alike, alike.messages, raw=True)
        return self._raws[alike, repeat]

    def _terms_of(self, case: Case) -> Terms:
        """Measure the terms of Equation 1: the actor's at the actor's pace, the buffer's at full speed."""
        if case not in self._terms:
            affordable = min(case.messages, int(TERM_BYTES / case.nbytes))
            most = max(LEAST_TERM_MESSAGES, min(MOST_TERM_MESSAGES, affordable))
            hurried = case.model_copy(update={"sample_time_s": 0.0})
            stored = made = self._timed(hurried, most, runs=TERM_RUNS)
            if hurried != case:
                messages = max(10, min(most, round(TERM_S / case.sample_time_s)))
                made = self._timed(case, messages, runs=TERM_RUNS)
            sent = [outcome.sent[1] for outcome in made]
            self._terms[case] = Terms(
                median(report.make_s for report in sent),
                median(report.send_s for report in sent),
                median(_reception_s(outcome) for outcome in stored),
            )
        return self._terms[case]

    @contextmanager
    def _open(self, case: Case, *, raw: bool = False) -> Iterator[Session]:
        members = dict(enumerate(self._spread(case.actors), start=1))
        hosts = {LEAD: self._workers.host, **{rank: member.host for rank, member in members.items()}}
        self._trials += 1
        job = f"bench-{secrets.token_hex(16)}-{self._trials}"
        trial = Trial(**case.model_dump(), raw=raw, job=job, hosts=hosts)
        with self._workers.open(trial, members) as session:
            yield session

    def _spread(self, actors: int) -> list[BenchWorker]:
        """Choose workers evenly from all hosts, beginning with the other hosts."""
        hosts = [*self._workers.hosts[1:], self._workers.host]
        columns = [[member for member in self._workers.members if member.host == host] for host in hosts]
        rows = zip_longest(*columns)
        return [member for row in rows for member in row if member is not None][:actors]

    # -- results ---------------------------------------------------------------------------------------

    def _record(self, case: Case, found: _Measured) -> Record:
        outcomes, terms = found.outcomes, found.terms
        seconds = [_seconds(case, outcome) for outcome in outcomes]
        rate = case.messages / median(seconds)
        raw_rate = case.messages / median(outcome.seconds for outcome in found.raw) if found.raw else None
        comparable = case.actors == 1 and case.sample_time_s == 0
        copies = case.actors if case.experiment == "weights" else 1
        percentiles = _percentiles_us(outcomes)
        sends = [report.send_s for outcome in outcomes for report in outcome.sent.values()]
        return Record(
            **case.model_dump(exclude={"nbytes"}),
            msg_kb=case.nbytes / KB,
            hosts=len({self._workers.host, *(member.host for member in self._spread(case.actors))}),
            repeats=len(outcomes),
            collection_s=median(seconds),
            collection_min_s=min(seconds),
            collection_max_s=max(seconds),
            msgs_per_s=rate,
            mb_per_s=None if case.experiment == "latency" else copies * rate * case.nbytes / MB,
            send_s=median(sends) if case.experiment == "comm" else None,
            receive_s=median(outcome.receive_s for outcome in outcomes)
            if case.experiment == "comm"
            else None,
            predicted_s=None if terms is None else terms.collection_s(case.messages, case.actors),
            p50_us=percentiles[0],
            p95_us=percentiles[1],
            p99_us=percentiles[2],
            cpu_s=median(outcome.cpu_s + _cpu_of_workers(outcome) for outcome in outcomes),
            receiver_cpu_s=median(outcome.cpu_s for outcome in outcomes),
            senders_cpu_s=median(_cpu_of_workers(outcome) for outcome in outcomes),
            refused=round(median(sum(report.refused for report in o.sent.values()) for o in outcomes)),
            verified=True,
            term_sample_s=None if terms is None else terms.sample_s,
            term_send_s=None if terms is None else terms.send_s,
            term_receive_s=None if terms is None else terms.receive_s,
            crossing_actors=None if terms is None else terms.crossing,
            raw_msgs_per_s=raw_rate,
            raw_ratio=rate / raw_rate if raw_rate and comparable else None,
        )


def _seconds(case: Case, outcome: Outcome) -> float:
    """Time of a run; the time between two trips or two versions does not count."""
    if case.experiment == "latency":
        return float(2 * outcome.latencies_ns.sum() / 1e9)
    return float(outcome.latencies_ns.sum() / 1e9) if case.experiment == "weights" else outcome.seconds


def _reception_s(outcome: Outcome) -> float:
    """T_rv of a run with one actor that takes no time for samples.

    If the receiving side blocked the actor, its time for a message is the interval between two messages: that
    includes the engine's own threads, whose work the buffer's process does not see.
    """
    interval_s = outcome.seconds / outcome.messages
    actor_s = outcome.sent[1].make_s + outcome.sent[1].send_s
    return interval_s if interval_s > BLOCKED * actor_s else outcome.receive_s


def _percentiles_us(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Compute the medians over runs of the 50th, 95th and 99th percentile, in microseconds; None without."""
    if any(outcome.latencies_ns.size == 0 for outcome in outcomes):
        return [None, None, None]
    each = np.array([np.percentile(outcome.latencies_ns, (50, 95, 99)) for outcome in outcomes])
    return [float(value) / 1e3 for value in np.median(each, axis=0)]


def _cpu_of_workers(outcome: Outcome) -> float:
    return sum(report.cpu_s for report in outcome.sent.values())

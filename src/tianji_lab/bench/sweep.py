"""Measures every case of a request: checked first, then repeated in turns with all others.

A drifting machine is then fair to all, and the median of the repeats is what is reported. One failure ends
the sweep: there are no figures of a machine on which a message was lost.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from statistics import median
from typing import Final, Protocol

import numpy as np

from tianji_cli.errors import UsageError
from tianji_cli.launch.mpi import has_mpiexec
from tianji_lab.bench.contents import LEAST_BYTES, WORD
from tianji_lab.bench.ensemble import Ensemble, Member, Stage
from tianji_lab.bench.experiment import LEAD, Outcome, Trial, TrialFailed
from tianji_lab.bench.raw.end import LOOPS
from tianji_lab.bench.record import KB, MB, ExperimentName, Record, Store, Work
from tianji_lab.model.prediction import Terms
from tianji_transports import registry
from tianji_transports.composite import edge_capabilities
from tianji_transports.errors import TransportError


@dataclass(frozen=True)
class Case:
    """One point of a figure, for one engine.

    Attributes:
        experiment: what is measured.
        backend: an engine, or two of them, inside and between hosts: ``shm+zmq``.
        nbytes: size of a message.
        actors: partners that take part.
        sample_time_s: what an actor takes for a sample.
        messages: that count.
        window: messages that a sender may have unclaimed.
        work: how an actor passes the time of a sample.
        store: whether the receiver copies messages into its own memory.
    """

    experiment: ExperimentName
    backend: str
    nbytes: int
    actors: int
    messages: int
    window: int
    sample_time_s: float = 0.0
    work: Work = "sleep"
    store: Store = "copy"

    @property
    def engines(self) -> tuple[str, str]:
        """The engine inside a host, and the one between hosts."""
        local, _, remote = self.backend.partition("+")
        return local, remote or local

    @property
    def alone(self) -> Case:
        """The same with one actor: what the terms of Equation 1 are measured with."""
        return replace(self, actors=1)

    def __str__(self) -> str:
        """Say it in a line of progress, or in an error."""
        size = f"{self.nbytes / KB:g} KB"
        time = f", sample time {self.sample_time_s:g} s" if self.sample_time_s else ""
        return f"{self.backend}, {size}, {self.actors} actor{'s' if self.actors > 1 else ''}{time}"


@dataclass(frozen=True)
class Request:
    """What a command asks for: every combination is a case.

    Attributes:
        experiment: what is measured.
        backends: engines, in the order in which they take turns.
        sizes_kb: of messages, in KB of 1024 bytes.
        actors: numbers of partners.
        messages: that count in one run; None shrinks them as sizes grow.
        sample_times_s: what actors take for a sample.
        window: messages that a sender may have unclaimed.
        work: how an actor passes the time of a sample.
        store: whether the receiver copies messages into its own memory.
        repeats: runs of each case.
        raw: measure raw loops beside.
        figure: the paper's, if it is one of them: ``5a`` to ``5d``.
    """

    experiment: ExperimentName
    backends: Sequence[str]
    sizes_kb: Sequence[float]
    actors: Sequence[int]
    messages: int | None
    sample_times_s: Sequence[float] = (0.0,)
    window: int = 8
    work: Work = "sleep"
    store: Store = "copy"
    repeats: int = 3
    raw: bool = False
    figure: str | None = None

    @property
    def cases(self) -> list[Case]:
        """Every combination; engines vary fastest, so that those of one point are measured side by side."""
        return [
            Case(
                self.experiment,
                backend,
                message_bytes(size),
                actors,
                self.messages or default_messages(self.experiment, message_bytes(size)),
                self.window,
                sample_time,
                self.work,
                self.store,
            )
            for sample_time in self.sample_times_s
            for size in self.sizes_kb
            for actors in self.actors
            for backend in self.backends
        ]

    def check(self, hosts: Sequence[str], *, can_start: bool) -> None:
        """Refuse what cannot be measured.

        Args:
            hosts: where each process is, the leading one first.
            can_start: there may be as many more on this host as are wanted.

        Raises:
            UsageError: it says what cannot, and what could.
        """
        if not all(math.isfinite(seconds) for seconds in self.sample_times_s):
            raise UsageError("--sample-time takes a finite number of seconds, such as 0.001")
        if self.experiment in {"latency", "bandwidth"} and set(self.actors) != {1}:
            raise UsageError(f"{self.experiment} is measured between two processes")
        most = max(self.actors)
        if most >= len(hosts) and not can_start:
            raise UsageError(
                f"{most} actors need {most + 1} processes, and the launcher has started {len(hosts)}: "
                f"mpiexec -n {most + 1}"
            )
        for case in self.cases:
            if case.backend.count("+") > 1 or "" in case.backend.split("+"):
                raise UsageError(f"--backend {case.backend}: write one engine, or two as in shm+zmq")
            try:
                can = edge_capabilities(*case.engines, dict(enumerate(hosts)))
            except TransportError as cause:
                raise UsageError(f"--backend {case.backend}: {cause}") from cause
            if not can.cross_process:
                raise UsageError(
                    f"transport {case.backend!r} stays inside a process; this measures what goes between two"
                )


def default_messages(experiment: ExperimentName, nbytes: int) -> int:
    """Return how many messages a run has by default: the paper's 10,000, or fewer as sizes grow."""
    if experiment == "comm":
        return 10_000
    most, fewest, most_bytes = {
        "latency": (2000, 100, 512e6),
        "bandwidth": (10_000, 100, 2e9),
        "weights": (100, 10, 1e9),
    }[experiment]
    return int(max(fewest, min(most, most_bytes / nbytes)))


def message_bytes(size_kb: float) -> int:
    """Turn a size in KB of 1024 bytes into bytes.

    Raises:
        UsageError: it is too small for what messages are checked by, or no multiple of 8 bytes.
    """
    nbytes = size_kb * KB
    if nbytes < LEAST_BYTES or nbytes % WORD:
        least = LEAST_BYTES / KB
        raise UsageError(
            f"--msg-kb {size_kb:g}: a message has at least {least:g} KB, and a multiple of {WORD} bytes"
        )
    return int(nbytes)


def default_backends(crossing: bool) -> list[str]:
    """Every engine that loads and can be measured here, in a fixed order.

    Args:
        crossing: it has to reach from host to host.
    """
    loads = {row.name: row.capabilities for row in registry.available()}
    if not crossing and not has_mpiexec():  # Without it mpi cannot be started here.
        loads.pop("mpi", None)
    return [
        name
        for name in ("shm", "zmq", "mpi", "ucx")
        if (can := loads.get(name)) is not None and (can.cross_host or not crossing)
    ]


WARM_MESSAGES: Final = 100
"""Sent, and checked to the last byte, before each timed run: memory is touched and peers are known then."""
TERM_RUNS: Final = 3
"""Runs whose median is a term of Equation 1."""
TERM_S: Final = 1.0
"""Of a run at an actor's pace: long enough for the mean time of a sample."""
TERM_BYTES: Final = 1e9
"""Of a run at full speed: long enough for its beginning not to count ..."""
LEAST_TERM_MESSAGES: Final = 100
MOST_TERM_MESSAGES: Final = 2000
"""... but no fewer messages than the one and no more than the other."""
HELD_BACK: Final = 1.25
"""An actor whose messages take this many times what they cost it has waited for the receiving side."""


class Progress(Protocol):
    """Shows how far a sweep is."""

    def begin(self, what: str) -> None:
        """Describe what is measured now."""

    def done(self, result: str) -> None:
        """Describe what came of it."""


@dataclass
class Findings:
    """What is known of a case so far."""

    terms: Terms | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    raw: list[Outcome] = field(default_factory=list)


class Sweep:
    """Measures with the processes of an ensemble.

    Args:
        ensemble: who takes part.
        request: what is asked for.
        progress: is told.
    """

    def __init__(self, ensemble: Ensemble, request: Request, progress: Progress) -> None:
        self._ensemble = ensemble
        self._request = request
        self._progress = progress
        self._terms: dict[Case, Terms] = {}
        self._raws: dict[tuple[Case, int], Outcome] = {}
        self._trials = 0

    @property
    def steps(self) -> int:
        """How often ``progress`` will be told that something is done."""
        return len(self._request.cases) * (1 + self._request.repeats)

    def measure(self) -> list[Record]:
        """Measure everything.

        Raises:
            TrialFailed: a run has no result, and so has nothing.
        """
        findings = {case: Findings() for case in self._request.cases}
        for case, found in findings.items():
            with self._step(case, "checking every byte"):
                self._check(case)
                if case.experiment == "comm":
                    found.terms = self._terms_of(case.alone)
            self._progress.done("every byte is right")
        for repeat in range(1, self._request.repeats + 1):
            for case, found in findings.items():
                with self._step(case, f"run {repeat} of {self._request.repeats}"):
                    found.outcomes.append(self._timed(case, case.messages))
                    if self._request.raw and case.backend in LOOPS:
                        found.raw.append(self._raw(case, repeat))
                self._progress.done(f"{found.outcomes[-1].seconds:.3f} s")
        return [self._record(case, found) for case, found in findings.items()]

    @contextmanager
    def _step(self, case: Case, what: str) -> Iterator[None]:
        self._progress.begin(f"{case}: {what}")
        try:
            yield
        except (TrialFailed, TransportError) as failure:
            raise TrialFailed(f"{case}, {what}: {failure}") from failure

    # -- runs ------------------------------------------------------------------------------------------

    def _check(self, case: Case) -> None:
        with self._open(case) as stage:
            stage.run(case.messages, thorough=True)

    def _timed(self, case: Case, messages: int, *, raw: bool = False) -> Outcome:
        with self._open(case, raw=raw) as stage:
            stage.run(min(messages, WARM_MESSAGES), thorough=True)
            return stage.run(messages)

    def _raw(self, case: Case, repeat: int) -> Outcome:
        """Run the raw loop of a case, once in a repeat for all cases that have the same."""
        alike = replace(case.alone, sample_time_s=0.0, work="sleep")
        if (alike, repeat) not in self._raws:
            self._raws[alike, repeat] = self._timed(alike, alike.messages, raw=True)
        return self._raws[alike, repeat]

    def _terms_of(self, case: Case) -> Terms:
        """Measure the terms of Equation 1: the actor's at its pace, the buffer's at its own."""
        if case not in self._terms:
            affordable = min(case.messages, int(TERM_BYTES / case.nbytes))
            most = max(LEAST_TERM_MESSAGES, min(MOST_TERM_MESSAGES, affordable))
            hurried = replace(case, sample_time_s=0.0)
            stored = made = self._several(hurried, most)
            if hurried != case:
                made = self._several(case, max(10, min(most, round(TERM_S / case.sample_time_s))))
            sent = [outcome.sent[1] for outcome in made]
            self._terms[case] = Terms(
                median(said.make_s for said in sent),
                median(said.send_s for said in sent),
                median(_reception_s(outcome) for outcome in stored),
            )
        return self._terms[case]

    def _several(self, case: Case, messages: int) -> list[Outcome]:
        with self._open(case) as stage:
            stage.run(min(messages, WARM_MESSAGES), thorough=True)
            return [stage.run(messages) for _ in range(TERM_RUNS)]

    @contextmanager
    def _open(self, case: Case, *, raw: bool = False) -> Iterator[Stage]:
        members = dict(enumerate(self._spread(case.actors), start=1))
        hosts = {LEAD: self._ensemble.host, **{rank: member.host for rank, member in members.items()}}
        local, remote = case.engines
        self._trials += 1
        trial = Trial(
            experiment=case.experiment,
            raw=raw,
            job=f"bench-{secrets.token_hex(16)}-{self._trials}",
            local=local,
            remote=remote,
            hosts=hosts,
            nbytes=case.nbytes,
            window=case.window,
            sample_time_s=0.0 if raw else case.sample_time_s,
            work=case.work,
            store=case.store,
        )
        with self._ensemble.open(trial, members) as stage:
            yield stage

    def _spread(self, actors: int) -> list[Member]:
        """Choose partners evenly from all hosts, beginning with those that are not this one's."""
        hosts = [*self._ensemble.hosts[1:], self._ensemble.host]
        columns = [[member for member in self._ensemble.members if member.host == host] for host in hosts]
        rows = zip_longest(*columns)
        return [member for row in rows for member in row if member is not None][:actors]

    # -- results ---------------------------------------------------------------------------------------

    def _record(self, case: Case, found: Findings) -> Record:
        outcomes, terms = found.outcomes, found.terms
        seconds = [_seconds(case, outcome) for outcome in outcomes]
        rate = case.messages / median(seconds)
        raw_rate = case.messages / median(outcome.seconds for outcome in found.raw) if found.raw else None
        comparable = case.actors == 1 and case.sample_time_s == 0
        copies = case.actors if case.experiment == "weights" else 1
        percentiles = _percentiles_us(outcomes)
        sends = [said.send_s for outcome in outcomes for said in outcome.sent.values()]
        return Record(
            experiment=case.experiment,
            backend=case.backend,
            msg_kb=case.nbytes / KB,
            actors=case.actors,
            hosts=len({self._ensemble.host, *(member.host for member in self._spread(case.actors))}),
            sample_time_s=case.sample_time_s,
            work=case.work,
            store=case.store,
            messages=case.messages,
            window=case.window,
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
            cpu_s=median(outcome.cpu_s + _cpu_of_partners(outcome) for outcome in outcomes),
            receiver_cpu_s=median(outcome.cpu_s for outcome in outcomes),
            senders_cpu_s=median(_cpu_of_partners(outcome) for outcome in outcomes),
            refused=round(median(sum(said.refused for said in o.sent.values()) for o in outcomes)),
            verified=True,
            term_sample_s=None if terms is None else terms.sample_s,
            term_send_s=None if terms is None else terms.send_s,
            term_receive_s=None if terms is None else terms.receive_s,
            crossing_actors=None if terms is None else terms.crossing,
            raw_msgs_per_s=raw_rate,
            raw_ratio=rate / raw_rate if raw_rate and comparable else None,
        )


def _seconds(case: Case, outcome: Outcome) -> float:
    """Time of a run; what happens between two trips or two versions does not count."""
    if case.experiment == "latency":
        return float(2 * outcome.latencies_ns.sum() / 1e9)
    return float(outcome.latencies_ns.sum() / 1e9) if case.experiment == "weights" else outcome.seconds


def _reception_s(outcome: Outcome) -> float:
    """T_rv of a run with one actor that takes no time for samples.

    An actor that had to wait was held back by the receiving side, whose time for a message then is the
    interval between two: the engine's own threads count, which the buffer's process does not see working.
    """
    interval_s = outcome.seconds / outcome.messages
    actor_s = outcome.sent[1].make_s + outcome.sent[1].send_s
    return interval_s if interval_s > HELD_BACK * actor_s else outcome.receive_s


def _percentiles_us(outcomes: Sequence[Outcome]) -> list[float | None]:
    """Take the 50th, 95th and 99th percentile of each run, and the medians of those."""
    if any(outcome.latencies_ns.size == 0 for outcome in outcomes):
        return [None, None, None]
    each = np.array([np.percentile(outcome.latencies_ns, (50, 95, 99)) for outcome in outcomes])
    return [float(value) / 1e3 for value in np.median(each, axis=0)]


def _cpu_of_partners(outcome: Outcome) -> float:
    return sum(said.cpu_s for said in outcome.sent.values())

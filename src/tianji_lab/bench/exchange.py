"""Experiments in rounds, where both sides know which message comes next: latency, bandwidth and weights.

``latency`` is half a round trip: two processes send each other one message at a time. As in OSU's
``osu_latency``, a process fills a message before the clock runs and checks it after the clock stops, so that
only the way is measured: push, wake, claim and, with ``store="copy"``, the copy into the receiver's own
memory. The worker, too, answers before it checks.

``bandwidth`` is windowed and acknowledged, by the convention of OSU's ``osu_bw``: a send that completed is
not a message that arrived, so the sender waits for a small acknowledgement after each window. OSU counts from
the first send to the last acknowledgement, at the sender. Here the receiver counts, from the acknowledgement
of the window that warms up to the last message stored and checked: as many windows and as many
acknowledgements. Unlike OSU's, the sender writes every byte of every message anew.

``weights`` is the way of new parameters to every actor: from a learner's ``publish`` until the slowest actor
has the version. A reader has a version when it lies in the reader's own memory, as in training; the reader
checks it after that. The learner publishes the next version when all readers have confirmed this one, so they
skip none.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self, TypeVar

import numpy as np

from tianji_lab.bench.contents import (
    CLOCK,
    LEAST_BYTES,
    DamagedMessageError,
    Inspector,
    Slots,
    explain,
    stamp,
    write,
)
from tianji_lab.bench.experiment import LEAD, Deadline, Following, Leading, Outcome, Run, Sent, Trial, rest
from tianji_transports.core import ANY, Claim, Full, Loan, Transport
from tianji_transports.wiring import Channel, Slot, Wiring

ANSWER_WINDOW: Final = 2
"""Window of channels with one message at a time: the answer may arrive before the credit for the message."""
RUN_SHIFT: Final = 32

ThingT = TypeVar("ThingT", Claim, Loan)
Round = Callable[[int], int]
Part = Callable[[int], None]

_now = time.monotonic_ns


class RunEnded(Exception):  # noqa: N818 - no error: the leading process has said so
    """The leading process has ended the run before its last message."""


class Waits:
    """Waits of one process for the others in a run.

    Args:
        descriptors: one of them is readable when a control message may have arrived.
        check: called when there is nothing else to do; returns whether the run is over.
        what: name of the awaited thing, for the message of a failure.

    All methods wait. They raise ``RunEnded`` if the run is over, and ``TrialFailed`` if nothing arrives.
    """

    def __init__(
        self, endpoint: Transport, descriptors: Sequence[int], check: Callable[[], bool], what: str
    ) -> None:
        self._endpoint = endpoint
        self._descriptors = descriptors
        self._check = check
        self._deadline = Deadline(what)

    @classmethod
    def leading(cls, endpoint: Transport, session: Leading, what: str) -> Self:
        """Make the waits of rank 0, for which a run is never over before its last message."""

        def check() -> bool:
            session.look()
            return False

        return cls(endpoint, session.descriptors, check, what)

    @classmethod
    def following(cls, endpoint: Transport, worker: Following, what: str) -> Self:
        """Make the waits of any other rank."""
        return cls(endpoint, worker.descriptors, worker.enough, what)

    def claim(self, channel: str, source: int = ANY) -> Claim:
        """Claim the next message of a channel."""
        probe = self._endpoint.probe
        return probe(channel, source) or self._await(lambda: probe(channel, source))

    def latest(self, slot: str, newer_than: int) -> Claim:
        """Claim a slot's next value."""
        latest = self._endpoint.latest
        return latest(slot, newer_than) or self._await(lambda: latest(slot, newer_than))

    def loan(self, dest: int, channel: str, nbytes: int) -> Loan:
        """Get memory to fill."""
        loan = self._endpoint.loan
        return loan(dest, channel, nbytes) or self._await(lambda: loan(dest, channel, nbytes))

    def settle(self, dest: int, channel: str) -> None:
        """Wait until the receiver has claimed the last push: then the whole window is free.

        Engines that move large messages in several steps need the sender at its endpoint until then.
        """
        loans: list[Loan] = []
        with contextlib.suppress(RunEnded):
            for _ in range(ANSWER_WINDOW):
                loans.append(self.loan(dest, channel, LEAST_BYTES))  # noqa: PERF401 - keeps what it has
        for loan in loans:
            loan.abandon()

    def _await(self, ask: Callable[[], ThingT | Full | None]) -> ThingT:
        self._deadline.renew()
        while True:
            rest(self._endpoint, self._descriptors, self._deadline)
            if thing := ask():
                return thing
            # The check comes last: it costs system calls, and must not delay a message that is there.
            if self._check():
                raise RunEnded


class Receiver:
    """Stores messages into slots in turn, or leaves them in place, as the trial says; and checks them."""

    def __init__(self, trial: Trial, run: Run, slots: int) -> None:
        self.inspect = Inspector(trial.nbytes, thorough=run.thorough).inspect
        self._slots = Slots(trial.nbytes, slots) if trial.store == "copy" else None

    def store(self, claim: Claim) -> memoryview:
        """Return the payload, copied into a slot or in place; the caller releases the claim afterwards."""
        if self._slots is None:
            return claim.view()
        memory = self._slots.next()
        return memory[: claim.take(memory)]


class Exchange(ABC):
    """An experiment whose rounds are timed one by one.

    Attributes:
        warm_ups: rounds before those that count, in which engines touch memory for the first time.
        answers: channel of the workers' answers.
        awaited: name of the thing that a worker waits for, for the message of a failure.
    """

    warm_ups: int
    answers: str
    awaited: str

    @abstractmethod
    def leading(self, endpoint: Transport, trial: Trial, run: Run, session: Leading) -> Round:
        """Make rank 0's part of a round, a function that returns the measured nanoseconds."""

    @abstractmethod
    def following(self, endpoint: Transport, trial: Trial, run: Run, rank: int, waits: Waits) -> Part:
        """Make another rank's part of a round."""

    def lead(self, endpoint: Transport, trial: Trial, run: Run, session: Leading) -> Outcome:
        """Measure, at rank 0.

        Raises:
            TrialFailed: a worker died, or does not answer.
            DamagedMessageError: an answer is not the expected one, or altered.
        """
        play = self.leading(endpoint, trial, run, session)
        session.start(run)
        for number in range(self.warm_ups):
            play(number)
        latencies_ns = np.empty(run.messages, np.int64)
        cpu, began = time.process_time(), _now()
        for number in range(run.messages):
            latencies_ns[number] = play(self.warm_ups + number)
        seconds, cpu = (_now() - began) / 1e9, time.process_time() - cpu
        return Outcome(seconds, run.messages, latencies_ns, 0.0, cpu, sent_by_all(endpoint, session))

    def follow(self, endpoint: Transport, trial: Trial, run: Run, rank: int, worker: Following) -> Sent:
        """Answer every message or version, at any other rank.

        Raises:
            TrialFailed: nothing arrives any more.
            DamagedMessageError: a message or version is not the expected one, or altered.
        """
        waits = Waits.following(endpoint, worker, self.awaited)
        play = self.following(endpoint, trial, run, rank, waits)
        played = 0
        refused, cpu = endpoint.counters.refusals, time.process_time()
        with contextlib.suppress(RunEnded):
            for number in range(self.warm_ups + run.messages):
                if number == self.warm_ups:
                    refused, cpu = endpoint.counters.refusals, time.process_time()
                play(number)
                played += 1
        cpu, refused = time.process_time() - cpu, endpoint.counters.refusals - refused
        waits.settle(LEAD, self.answers)
        return Sent(messages=played, cpu_s=cpu, refused=refused)


class Latency(Exchange):
    """Half of a round trip between two processes."""

    warm_ups, answers, awaited = 10, "back", f"a message of rank {LEAD}"
    there: Final = "there"

    def wiring(self, trial: Trial) -> Wiring:
        """Make a channel there and one back."""
        (worker,) = trial.workers
        there = Channel(self.there, worker, (LEAD,), trial.nbytes, ANSWER_WINDOW)
        back = Channel(self.answers, LEAD, (worker,), trial.nbytes, ANSWER_WINDOW)
        return Wiring(trial.job, (there, back))

    def leading(self, endpoint: Transport, trial: Trial, run: Run, session: Leading) -> Round:
        """Make the round of rank 0: send, and time the answer."""
        (worker,) = trial.workers
        waits = Waits.leading(endpoint, session, f"an answer of rank {worker}")
        receiver = Receiver(trial, run, trial.window)
        there, back = stamp(LEAD, run.number, 0), stamp(worker, run.number, 0)

        def round_trip(number: int) -> int:
            loan = waits.loan(worker, self.there, trial.nbytes)
            write(loan.memory, there + number)
            pushed = _now()
            endpoint.push(loan)
            claim = waits.claim(self.answers)
            memory = receiver.store(claim)
            stored = _now()
            receiver.inspect(memory, back + number)
            claim.release()
            return (stored - pushed) // 2

        return round_trip

    def following(self, endpoint: Transport, trial: Trial, run: Run, rank: int, waits: Waits) -> Part:
        """Make the round of the worker: answer with a message of the same size."""
        receiver = Receiver(trial, run, trial.window)
        there, back = stamp(LEAD, run.number, 0), stamp(rank, run.number, 0)

        def answer(number: int) -> None:
            loan = waits.loan(LEAD, self.answers, trial.nbytes)
            write(loan.memory, back + number)
            try:
                claim = waits.claim(self.there)
            except RunEnded:
                loan.abandon()
                raise
            memory = receiver.store(claim)
            endpoint.push(loan)
            receiver.inspect(memory, there + number)
            claim.release()

        return answer


class Weights(Exchange):
    """Time until every actor has new parameters."""

    warm_ups, answers, awaited = 3, "have", f"a version of rank {LEAD}"
    slot: Final = "parameters"

    def wiring(self, trial: Trial) -> Wiring:
        """Make a slot for the parameters and a channel for the readers' confirmations."""
        slot = Slot(self.slot, LEAD, trial.workers, trial.nbytes)
        have = Channel(self.answers, LEAD, trial.workers, LEAST_BYTES, ANSWER_WINDOW)
        return Wiring(trial.job, (have,), (slot,))

    def leading(self, endpoint: Transport, trial: Trial, run: Run, session: Leading) -> Round:
        """Make the round of rank 0: publish a version, and receive all confirmations."""
        memory = memoryview(bytearray(trial.nbytes))
        inspect = Inspector(LEAST_BYTES, thorough=run.thorough, has_clock=True).inspect
        waits = [
            (rank, Waits.leading(endpoint, session, f"rank {rank} to have a version"))
            for rank in trial.workers
        ]

        def spread(number: int) -> int:
            """Time the slowest reader, by this process's clock."""
            write(memory, stamp(LEAD, run.number, number))
            published = last = _now()
            endpoint.publish(self.slot, memory, version_of(run, number))
            for rank, of_rank in waits:
                claim = of_rank.claim(self.answers, rank)
                had = inspect(claim.view(), stamp(rank, run.number, number))
                claim.release()
                last = max(last, had - session.offsets_ns[rank])
            return last - published

        return spread

    def following(self, endpoint: Transport, trial: Trial, run: Run, rank: int, waits: Waits) -> Part:
        """Make the round of a reader: take a version, and confirm it with the time."""
        inspect = Inspector(trial.nbytes, thorough=run.thorough).inspect
        memory = memoryview(bytearray(trial.nbytes))

        def take(number: int) -> None:
            version, word = version_of(run, number), stamp(LEAD, run.number, number)
            claim = waits.latest(self.slot, version - 1)
            came = claim.version
            nbytes = claim.take(memory)
            had = _now()
            if came != version:
                raise DamagedMessageError(
                    f"version {version} should come next, and {came} came: {explain(word)}"
                )
            inspect(memory[:nbytes], word)
            loan = waits.loan(LEAD, self.answers, LEAST_BYTES)
            write(loan.memory, stamp(rank, run.number, number))[CLOCK] = had
            endpoint.push(loan)

        return take


def version_of(run: Run, number: int) -> int:
    """Version of a run's ``number``-th value, greater than any version of an earlier run."""
    return (run.number << RUN_SHIFT) + number


class Bandwidth:
    """Throughput of windows of messages; the first window warms up and does not count."""

    data: Final = "data"
    acks: Final = "ack"

    def wiring(self, trial: Trial) -> Wiring:
        """Make a channel for the messages and one for the acknowledgements."""
        (worker,) = trial.workers
        data = Channel(self.data, LEAD, (worker,), trial.nbytes, trial.window)
        acks = Channel(self.acks, worker, (LEAD,), LEAST_BYTES, ANSWER_WINDOW)
        return Wiring(trial.job, (data, acks))

    def lead(self, endpoint: Transport, trial: Trial, run: Run, session: Leading) -> Outcome:
        """Receive, and acknowledge every window.

        Raises:
            TrialFailed: the sender died, or nothing arrives any more.
            DamagedMessageError: a message is missing, reordered or altered.
        """
        (worker,) = trial.workers
        waits = Waits.leading(endpoint, session, f"a message of rank {worker}")
        receiver = Receiver(trial, run, run.messages)
        data, acks = stamp(worker, run.number, 0), stamp(LEAD, run.number, 0)

        def receive(window: range) -> None:
            for number in window:
                claim = waits.claim(self.data)
                receiver.inspect(receiver.store(claim), data + number)
                claim.release()

        def acknowledge(number: int) -> None:
            loan = waits.loan(worker, self.acks, LEAST_BYTES)
            write(loan.memory, acks + number)
            endpoint.push(loan)

        first, *others = windows(trial, run)
        session.start(run)
        receive(first)
        cpu, began = time.process_time(), _now()
        for number, window in enumerate(others):
            acknowledge(number)
            receive(window)
        seconds, cpu = (_now() - began) / 1e9, time.process_time() - cpu
        acknowledge(len(others))
        return Outcome(seconds, run.messages, np.empty(0, np.int64), 0.0, cpu, sent_by_all(endpoint, session))

    def follow(self, endpoint: Transport, trial: Trial, run: Run, rank: int, worker: Following) -> Sent:
        """Send window after window, each when the receiver has acknowledged the one before it.

        Raises:
            TrialFailed: an acknowledgement does not arrive.
            DamagedMessageError: an acknowledgement is not the expected one, or altered.
        """
        waits = Waits.following(endpoint, worker, f"an acknowledgement of rank {LEAD}")
        inspect = Inspector(LEAST_BYTES, thorough=run.thorough).inspect
        data, acks = stamp(rank, run.number, 0), stamp(LEAD, run.number, 0)
        pushed = 0
        refused, cpu = endpoint.counters.refusals, time.process_time()
        with contextlib.suppress(RunEnded):
            for number, window in enumerate(windows(trial, run)):
                for message in window:
                    loan = waits.loan(LEAD, self.data, trial.nbytes)
                    write(loan.memory, data + message)
                    endpoint.push(loan)
                    pushed += 1
                claim = waits.claim(self.acks)
                inspect(claim.view(), acks + number)
                claim.release()
                if number == 0:
                    refused, cpu = endpoint.counters.refusals, time.process_time()
        return Sent(
            messages=pushed,
            cpu_s=time.process_time() - cpu,
            refused=endpoint.counters.refusals - refused,
        )


def windows(trial: Trial, run: Run) -> list[range]:
    """List the numbers of the messages of each window, the one that warms up first."""
    step, end = trial.window, trial.window + run.messages
    return [range(first, min(first + step, end)) for first in range(0, end, step)]


def sent_by_all(endpoint: Transport, session: Leading) -> Mapping[int, Sent]:
    """Wait for the workers' reports of a run that is over.

    Raises:
        TrialFailed: a worker failed, died or does not report.
    """
    deadline = Deadline("workers to end the run")
    while (sent := session.sent()) is None:
        rest(endpoint, session.descriptors, deadline)
    return sent

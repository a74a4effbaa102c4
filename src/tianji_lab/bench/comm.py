"""The virtual communication experiment: actors make samples and push them, a buffer stores them.

Section 4.3.1 of the paper. Actors run freely; the run ends when the buffer has stored all messages that
count. The buffer also claims and checks the messages after these, off the clock, so that it notices if one is
missing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tianji_lab.bench.contents import CLOCK, LEAST_BYTES, Inspector, Slots, stamp, write
from tianji_lab.bench.experiment import (
    LEAD,
    PATIENCE_S,
    Deadline,
    Following,
    Leading,
    Outcome,
    Run,
    Sent,
    Trial,
    TrialFailed,
    rest,
)
from tianji_transports.core import Loan, Transport
from tianji_transports.wiring import Channel, Wiring

SAMPLES: Final = "samples"
LOOK_EVERY: Final = 64
LOOK_S: Final = 0.05
"""An actor looks at the control channel every ``LOOK_EVERY`` messages or ``LOOK_S`` seconds of samples."""
CLAIM_S: Final = 5.0
"""Seconds that a stopped actor waits until its last messages are claimed."""
LAST_PATIENCE_S: Final = 2 * CLAIM_S
"""Seconds that the buffer waits for the last messages."""

_now = time.monotonic_ns


def wiring(trial: Trial) -> Wiring:
    """Make one channel from all actors to the buffer."""
    return Wiring(trial.job, (Channel(SAMPLES, LEAD, trial.workers, trial.nbytes, trial.window),))


# -- the buffer ------------------------------------------------------------------------------------------


def lead(endpoint: Transport, trial: Trial, run: Run, session: Leading) -> Outcome:
    """Be the buffer.

    Raises:
        TrialFailed: an actor died, or nothing arrives any more.
        DamagedMessageError: a message is missing, reordered or altered.
    """
    buffer = Buffer(endpoint, trial, run)
    deadline = Deadline("messages of the actors", PATIENCE_S + 2 * trial.sample_time_s)
    latencies_ns = np.zeros(run.messages, np.int64)
    stored = busy_ns = seen = 0
    cpu, began = time.process_time(), _now()
    session.start(run)
    while stored < run.messages:
        looked = _now()
        if not buffer.receive():
            if stored != seen:
                deadline.renew()
                seen = stored
            rest(endpoint, session.descriptors, deadline)
            session.look()
            continue
        received = _now()
        busy_ns += received - looked
        latencies_ns[stored] = received - buffer.pushed_ns + session.offsets_ns[buffer.source]
        stored += 1
    seconds, cpu = (_now() - began) / 1e9, time.process_time() - cpu
    session.enough()
    sent = _receive_the_rest(buffer, session, LAST_PATIENCE_S + trial.sample_time_s)
    return Outcome(seconds, stored, latencies_ns, busy_ns / stored / 1e9, cpu, sent)


class Buffer:
    """Receives, checks and stores messages, those of each actor in the order of their numbers.

    Attributes:
        source: rank of the sender of the newest message.
        pushed_ns: time of the newest message's push, by its sender's clock; meaningless in a thorough run,
            whose messages carry no clock.
    """

    def __init__(self, endpoint: Transport, trial: Trial, run: Run) -> None:
        self.endpoint = endpoint
        self.received = dict.fromkeys(trial.workers, 0)
        self.source, self.pushed_ns = LEAD, 0
        self._first = {rank: stamp(rank, run.number, 0) for rank in trial.workers}
        inspector = Inspector(trial.nbytes, thorough=run.thorough, has_clock=not run.thorough)
        self._inspect = inspector.inspect
        self._slots = Slots(trial.nbytes, run.messages) if trial.store == "copy" else None

    def receive(self) -> bool:
        """Store the next message; returns False if there is none.

        Raises:
            DamagedMessageError: the message is not the expected one, or altered.
        """
        claim = self.endpoint.probe(SAMPLES)
        if claim is None:
            return False
        source = self.source = claim.source
        word = self._first[source] + self.received[source]
        if self._slots is not None:
            memory = self._slots.next()
            nbytes = claim.take(memory)
            self.pushed_ns = self._inspect(memory[:nbytes], word)
        else:
            self.pushed_ns = self._inspect(claim.view(), word)
            claim.release()
        self.received[source] += 1
        return True


def _receive_the_rest(buffer: Buffer, session: Leading, patience_s: float) -> Mapping[int, Sent]:
    """Claim the messages after the last one that counts, until every actor's last message is here."""
    deadline = Deadline("the actors to stop", patience_s)
    while True:
        sent = session.sent()
        while buffer.receive():
            deadline.renew()
        if sent is not None:
            missing = {rank: report.messages - buffer.received[rank] for rank, report in sent.items()}
            if not any(missing.values()):
                return sent
        try:
            rest(buffer.endpoint, session.descriptors, deadline)
        except TrialFailed:
            if sent is None:
                raise
            lacking = ", ".join(f"{number} of rank {rank}" for rank, number in missing.items() if number)
            raise TrialFailed(f"messages are missing: the last {lacking}") from None


# -- an actor --------------------------------------------------------------------------------------------


def follow(endpoint: Transport, trial: Trial, run: Run, rank: int, worker: Following) -> Sent:
    """Be an actor: make samples and push them until the buffer has enough.

    The actor asks for credit before it makes a sample, as in training; the wait for credit counts neither as
    making nor as sending.
    """
    sample = _sampler(trial, run)
    timed = not run.thorough
    look_every = LOOK_EVERY
    if trial.sample_time_s:
        look_every = max(1, min(LOOK_EVERY, int(LOOK_S / trial.sample_time_s)))
    word = stamp(rank, run.number, 0)
    pushed = make_ns = send_ns = 0
    refused, cpu = endpoint.counters.refusals, time.process_time()
    while True:
        asked = _now()
        loan = endpoint.loan(LEAD, SAMPLES, trial.nbytes)
        if not loan:
            if worker.enough():
                break
            rest(endpoint, worker.descriptors)
            continue
        lent = _now()
        sample()
        words = write(loan.memory, word + pushed)
        made = _now()
        if timed:
            words[CLOCK] = made
        endpoint.push(loan)
        gone = _now()
        make_ns += made - lent
        send_ns += lent - asked + gone - made
        pushed += 1
        if pushed % look_every == 0 and worker.enough():
            break
    cpu, refused = time.process_time() - cpu, endpoint.counters.refusals - refused
    _stay_until_claimed(endpoint, trial, worker)
    return Sent(
        messages=pushed,
        make_s=make_ns / max(pushed, 1) / 1e9,
        send_s=send_ns / max(pushed, 1) / 1e9,
        cpu_s=cpu,
        refused=refused,
    )


def _stay_until_claimed(endpoint: Transport, trial: Trial, worker: Following) -> None:
    """Stay until the whole window is free: some engines move messages only while the sender calls them.

    The buffer reports a lost message.
    """
    deadline = Deadline("the last messages to be claimed", CLAIM_S)
    loans: list[Loan] = []
    with contextlib.suppress(TrialFailed):
        while len(loans) < trial.window:
            loan = endpoint.loan(LEAD, SAMPLES, LEAST_BYTES)
            if loan:
                loans.append(loan)
            else:
                rest(endpoint, worker.descriptors, deadline)
                worker.enough()  # The worker's descriptor stays readable until this call.
    for loan in loans:
        loan.abandon()


def _sampler(trial: Trial, run: Run) -> Callable[[], None]:
    """Make the function that takes the time of a sample; a thorough run takes none."""
    seconds = 0.0 if run.thorough else trial.sample_time_s
    if seconds == 0:
        return lambda: None
    if trial.work == "sleep":
        return lambda: time.sleep(seconds)
    nanoseconds = round(seconds * 1e9)

    def work() -> None:
        until = _now() + nanoseconds
        while _now() < until:
            pass

    return work

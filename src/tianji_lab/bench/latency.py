"""Half round trip: two processes send each other one message at a time.

As in OSU's ``osu_latency``, a message is ready before the clock runs and is checked when it stands still, so
that what is measured is the way: push, wake, claim and, with ``store="copy"``, the copy into the receiver's
own memory. The partner, too, answers before it checks.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

import numpy as np

from tianji_lab.bench.contents import stamp, write
from tianji_lab.bench.exchange import ANSWER_WINDOW, Exchange, Receiver, RunEnded, sent_by_all
from tianji_lab.bench.experiment import LEAD, Outcome, Run, Sent, Told, Trial, Watch
from tianji_transports.core import Transport
from tianji_transports.wiring import Channel, Wiring

THERE: Final = "there"
BACK: Final = "back"
WARM_UPS: Final = 10
"""Round trips before those that count."""

_now = time.monotonic_ns


def wiring(trial: Trial) -> Wiring:
    """A channel there and one back."""
    (partner,) = trial.partners
    there = Channel(THERE, partner, (LEAD,), trial.nbytes, ANSWER_WINDOW)
    back = Channel(BACK, LEAD, (partner,), trial.nbytes, ANSWER_WINDOW)
    return Wiring(trial.job, (there, back))


def lead(endpoint: Transport, trial: Trial, run: Run, watch: Watch) -> Outcome:
    """Send, and time the answers.

    Raises:
        TrialFailed: the partner died, or does not answer.
        DamagedMessageError: an answer is another one than had to come, or altered.
    """
    (partner,) = trial.partners
    exchange = Exchange.leading(endpoint, watch, f"an answer of rank {partner}")
    receiver = Receiver(trial, run, trial.window)
    there, back = stamp(LEAD, run.number, 0), stamp(partner, run.number, 0)

    def round_trip(number: int) -> int:
        """Make the round trip of that number; its nanoseconds."""
        loan = exchange.loan(partner, THERE, trial.nbytes)
        write(loan.memory, there + number)
        pushed = _now()
        endpoint.push(loan)
        claim = exchange.claim(BACK)
        memory = receiver.store(claim)
        stored = _now()
        receiver.inspect(memory, back + number)
        claim.release()
        return stored - pushed

    watch.start(run)
    for number in range(WARM_UPS):
        round_trip(number)
    trips_ns = np.empty(run.messages, np.int64)
    cpu, began = time.process_time(), _now()
    for number in range(run.messages):
        trips_ns[number] = round_trip(WARM_UPS + number)
    seconds, cpu = (_now() - began) / 1e9, time.process_time() - cpu
    return Outcome(seconds, run.messages, trips_ns // 2, 0.0, cpu, sent_by_all(endpoint, watch))


def follow(endpoint: Transport, trial: Trial, run: Run, rank: int, told: Told) -> Sent:
    """Answer every message with one of the same size.

    Raises:
        TrialFailed: nothing comes any more.
        DamagedMessageError: a message is another one than had to come, or altered.
    """
    exchange = Exchange.following(endpoint, told, f"a message of rank {LEAD}")
    receiver = Receiver(trial, run, trial.window)
    there, back = stamp(LEAD, run.number, 0), stamp(rank, run.number, 0)
    answered = 0
    refused, cpu = endpoint.counters.refusals, time.process_time()
    with contextlib.suppress(RunEnded):
        for number in range(WARM_UPS + run.messages):
            if number == WARM_UPS:
                refused, cpu = endpoint.counters.refusals, time.process_time()
            loan = exchange.loan(LEAD, BACK, trial.nbytes)
            write(loan.memory, back + number)
            try:
                claim = exchange.claim(THERE)
            except RunEnded:
                loan.abandon()
                raise
            memory = receiver.store(claim)
            endpoint.push(loan)
            receiver.inspect(memory, there + number)
            claim.release()
            answered += 1
    sent = Sent(
        messages=answered,
        cpu_s=time.process_time() - cpu,
        refused=endpoint.counters.refusals - refused,
    )
    exchange.settle(LEAD, BACK)
    return sent

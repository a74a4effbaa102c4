"""Bandwidth, windowed and acknowledged: a window of messages back to back, then an answer, then the next.

The convention of OSU's ``osu_bw``: a send that completed is not a message that arrived, so the sender waits
for a small acknowledgement after each window. OSU counts from the first send to the last acknowledgement, at
the sender. Here the receiver counts, from the acknowledgement of the window that warms up to the last message
stored and checked: as many windows and as many acknowledgements. Unlike OSU's, the sender writes every byte
of every message anew.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

import numpy as np

from tianji_lab.bench.contents import LEAST_BYTES, StampInspector, stamp, write
from tianji_lab.bench.exchange import ANSWER_WINDOW, Exchange, Receiver, RunEnded, sent_by_all
from tianji_lab.bench.experiment import LEAD, Outcome, Run, Sent, Told, Trial, Watch
from tianji_transports.core import Transport
from tianji_transports.wiring import Channel, Wiring

DATA: Final = "data"
ACK: Final = "ack"

_now = time.monotonic_ns


def wiring(trial: Trial) -> Wiring:
    """A channel for the messages and one for the acknowledgements."""
    (partner,) = trial.partners
    data = Channel(DATA, LEAD, (partner,), trial.nbytes, trial.window)
    acks = Channel(ACK, partner, (LEAD,), LEAST_BYTES, ANSWER_WINDOW)
    return Wiring(trial.job, (data, acks))


def windows(trial: Trial, run: Run) -> list[range]:
    """Numbers of the messages of each window; the first one warms up and does not count."""
    step, end = trial.window, trial.window + run.messages
    return [range(first, min(first + step, end)) for first in range(0, end, step)]


def lead(endpoint: Transport, trial: Trial, run: Run, watch: Watch) -> Outcome:
    """Receive, and acknowledge every window.

    Raises:
        TrialFailed: the sender died, or nothing comes any more.
        DamagedMessageError: a message is missing, reordered or altered.
    """
    (partner,) = trial.partners
    exchange = Exchange.leading(endpoint, watch, f"a message of rank {partner}")
    receiver = Receiver(trial, run, run.messages)
    data, acks = stamp(partner, run.number, 0), stamp(LEAD, run.number, 0)

    def receive(window: range) -> None:
        for number in window:
            claim = exchange.claim(DATA)
            receiver.inspect(receiver.store(claim), data + number)
            claim.release()

    def acknowledge(number: int) -> None:
        loan = exchange.loan(partner, ACK, LEAST_BYTES)
        write(loan.memory, acks + number)
        endpoint.push(loan)

    first, *others = windows(trial, run)
    watch.start(run)
    receive(first)
    cpu, began = time.process_time(), _now()
    for number, window in enumerate(others):
        acknowledge(number)
        receive(window)
    seconds, cpu = (_now() - began) / 1e9, time.process_time() - cpu
    acknowledge(len(others))
    return Outcome(seconds, run.messages, np.empty(0, np.int64), 0.0, cpu, sent_by_all(endpoint, watch))


def follow(endpoint: Transport, trial: Trial, run: Run, rank: int, told: Told) -> Sent:
    """Send window after window, each when the one before it is acknowledged.

    Raises:
        TrialFailed: an acknowledgement does not come.
        DamagedMessageError: it is another one than had to come, or altered.
    """
    exchange = Exchange.following(endpoint, told, f"an acknowledgement of rank {LEAD}")
    inspect = StampInspector(LEAST_BYTES, thorough=run.thorough).inspect
    data, acks = stamp(rank, run.number, 0), stamp(LEAD, run.number, 0)
    pushed = 0
    refused, cpu = endpoint.counters.refusals, time.process_time()
    with contextlib.suppress(RunEnded):
        for number, window in enumerate(windows(trial, run)):
            for message in window:
                loan = exchange.loan(LEAD, DATA, trial.nbytes)
                write(loan.memory, data + message)
                endpoint.push(loan)
                pushed += 1
            claim = exchange.claim(ACK)
            inspect(claim.view(), acks + number)
            claim.release()
            if number == 0:
                refused, cpu = endpoint.counters.refusals, time.process_time()
    return Sent(
        messages=pushed,
        cpu_s=time.process_time() - cpu,
        refused=endpoint.counters.refusals - refused,
    )

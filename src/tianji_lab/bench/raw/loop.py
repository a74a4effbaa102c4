"""The two sides of a raw loop's run, and what one core can move at most.

There is one sender and one receiver, and as many messages as are wanted. A plain copy goes from a warm
source into memory that is in no cache.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Mapping
from time import monotonic, perf_counter
from typing import Final

import numpy as np

from tianji_lab.bench.contents import MOST_SLOTS, Inspector, Slots, stamp
from tianji_lab.bench.experiment import Deadline, Outcome, Run, Sent, Told, Trial, Watch
from tianji_lab.bench.raw.end import SENDER, WAIT_S, RawEnd
from tianji_lab.bench.record import MB
from tianji_transports.waiting import readable

NO_LATENCIES: Final = np.zeros(0, np.int64)


def lead(end: RawEnd, trial: Trial, run: Run, watch: Watch) -> Outcome:
    """Receive.

    Raises:
        TrialFailed: the sender died, or nothing comes any more.
        DamagedMessageError: a message is missing, reordered or altered.
    """
    inspect = Inspector(trial.nbytes, thorough=run.thorough).inspect
    slots = Slots(trial.nbytes, run.messages) if trial.store == "copy" else None
    deadline = Deadline("messages of the raw loop")
    receive, first = end.receive, stamp(SENDER, run.number, 0)
    place = itertools.repeat(None).__next__ if slots is None else slots.next
    cpu, began = time.process_time(), monotonic()
    watch.start(run)
    for word in range(first, first + run.messages):
        into = place()
        memory = receive(into)
        if memory is None:
            memory = _receive_later(end, into, watch, deadline)
        inspect(memory, word)
    seconds, cpu = monotonic() - began, time.process_time() - cpu
    return Outcome(seconds, run.messages, NO_LATENCIES, 0.0, cpu, _await_the_sender(end, watch))


def _receive_later(end: RawEnd, into: memoryview | None, watch: Watch, deadline: Deadline) -> memoryview:
    """Try until there is a message."""
    receive = end.receive
    looked = monotonic()
    while (memory := receive(into)) is None:
        now = monotonic()
        if now - looked >= WAIT_S:
            watch.look()
            deadline.check()
            looked = now
    deadline.renew()
    return memory


def _await_the_sender(end: RawEnd, watch: Watch) -> Mapping[int, Sent]:
    """Hear what the sender says of the run; acknowledgements that it needs to end leave meanwhile."""
    deadline = Deadline("the sender of the raw loop to end")
    while (sent := watch.sent()) is None:
        if end.flush():
            readable(watch.descriptors, WAIT_S)
        deadline.check()
    return sent


def follow(end: RawEnd, _trial: Trial, run: Run, rank: int, told: Told) -> Sent:
    """Send; also ends when the receiver says so, which it does only if something went wrong."""
    send, first = end.send, stamp(rank, run.number, 0)
    cpu, sent = time.process_time(), 0
    for word in range(first, first + run.messages):
        if not (send(word) or _send_later(end, word, told)):
            break
        sent += 1
    asked = monotonic()
    while not end.flush():
        if monotonic() - asked >= WAIT_S:
            if told.enough():
                break
            asked = monotonic()
    return Sent(messages=sent, cpu_s=time.process_time() - cpu)


def _send_later(end: RawEnd, word: int, told: Told) -> bool:
    """Try until there is room; False if there is to be no more sending."""
    send = end.send
    asked = monotonic()
    while not send(word):
        now = monotonic()
        if now - asked >= WAIT_S:
            if told.enough():
                return False
            asked = now
    return True


ROUNDS: Final = 5
ROUND_S: Final = 0.05
BATCH_BYTES: Final = 4 * 1024 * 1024
"""Copied between two looks at the clock."""


def memcpy_mb_per_s(nbytes: int) -> float:
    """Measure the median rate of several rounds, in MB of 1e6 bytes per second.

    Every copy is a statement of Python's, as it is where a receiver stores a message: for small messages the
    statement is what is measured.
    """
    source = memoryview(bytearray(nbytes))
    store = Slots(nbytes, MOST_SLOTS).next
    batch = range(max(1, BATCH_BYTES // nbytes))
    rates = []
    for _ in range(ROUNDS):
        copied, began = 0, perf_counter()
        while (seconds := perf_counter() - began) < ROUND_S:
            for _ in batch:
                store()[:] = source
            copied += len(batch) * nbytes
        rates.append(copied / seconds / MB)
    return statistics.median(rates)

"""New parameters for every actor: from a learner's ``publish`` until the slowest of them has the version.

A reader has it when it lies in its own memory, where actors in training take it, too; it is checked after
that. The learner publishes the next version when all have said that they have this one: none is skipped.
"""

from __future__ import annotations

import contextlib
import time
from typing import Final

import numpy as np

from tianji_lab.bench.contents import (
    CLOCK,
    LEAST_BYTES,
    DamagedMessageError,
    Inspector,
    StampInspector,
    explain,
    stamp,
    write,
)
from tianji_lab.bench.exchange import ANSWER_WINDOW, Exchange, RunEnded, sent_by_all
from tianji_lab.bench.experiment import LEAD, Outcome, Run, Sent, Told, Trial, Watch
from tianji_transports.core import Transport
from tianji_transports.wiring import Channel, Slot, Wiring

PARAMETERS: Final = "parameters"
HAVE: Final = "have"
WARM_UPS: Final = 3
"""Versions before those that count: engines touch memory for the first time with them."""
RUN_SHIFT: Final = 32

_now = time.monotonic_ns


def wiring(trial: Trial) -> Wiring:
    """A slot for the parameters and a channel for what readers say."""
    slot = Slot(PARAMETERS, LEAD, trial.partners, trial.nbytes)
    have = Channel(HAVE, LEAD, trial.partners, LEAST_BYTES, ANSWER_WINDOW)
    return Wiring(trial.job, (have,), (slot,))


def version_of(run: Run, number: int) -> int:
    """Version of a run's ``number``-th value: greater than any of an earlier run."""
    return (run.number << RUN_SHIFT) + number


def lead(endpoint: Transport, trial: Trial, run: Run, watch: Watch) -> Outcome:
    """Publish versions, each when all partners have the one before it.

    Raises:
        TrialFailed: a partner died, or does not say that it has a version.
        DamagedMessageError: what it says is altered.
    """
    versions = Versions(endpoint, trial, run, watch)
    watch.start(run)
    for number in range(WARM_UPS):
        versions.spread(number)
    latencies_ns = np.empty(run.messages, np.int64)
    cpu, began = time.process_time(), _now()
    for number in range(run.messages):
        latencies_ns[number] = versions.spread(WARM_UPS + number)
    seconds, cpu = (_now() - began) / 1e9, time.process_time() - cpu
    return Outcome(seconds, run.messages, latencies_ns, 0.0, cpu, sent_by_all(endpoint, watch))


class Versions:
    """The learner's parameters, and their way to all readers."""

    def __init__(self, endpoint: Transport, trial: Trial, run: Run, watch: Watch) -> None:
        self._endpoint = endpoint
        self._run = run
        self._memory = memoryview(bytearray(trial.nbytes))
        self._exchanges = [
            (rank, Exchange.leading(endpoint, watch, f"rank {rank} to have a version"))
            for rank in trial.partners
        ]
        self._inspect = Inspector(LEAST_BYTES, thorough=run.thorough).inspect
        self._offsets_ns = watch.offsets_ns

    def spread(self, number: int) -> int:
        """Publish a version and hear that all have it.

        Returns:
            Nanoseconds from the publishing until the slowest had it, by this process's clock.
        """
        write(self._memory, stamp(LEAD, self._run.number, number))
        published = last = _now()
        self._endpoint.publish(PARAMETERS, self._memory, version_of(self._run, number))
        for rank, exchange in self._exchanges:
            claim = exchange.claim(HAVE, rank)
            had = self._inspect(claim.view(), stamp(rank, self._run.number, number))
            claim.release()
            last = max(last, had - self._offsets_ns[rank])
        return last - published


def follow(endpoint: Transport, trial: Trial, run: Run, rank: int, told: Told) -> Sent:
    """Be a reader: take every version and say when it was there.

    Raises:
        TrialFailed: no version comes any more.
        DamagedMessageError: a version is another one than had to come, or altered.
    """
    exchange = Exchange.following(endpoint, told, f"a version of rank {LEAD}")
    inspect = StampInspector(trial.nbytes, thorough=run.thorough).inspect
    memory = memoryview(bytearray(trial.nbytes))
    received = 0
    refused, cpu = endpoint.counters.refusals, time.process_time()
    with contextlib.suppress(RunEnded):
        for number in range(WARM_UPS + run.messages):
            if number == WARM_UPS:
                refused, cpu = endpoint.counters.refusals, time.process_time()
            version, word = version_of(run, number), stamp(LEAD, run.number, number)
            claim = exchange.latest(PARAMETERS, version - 1)
            came = claim.version
            nbytes = claim.take(memory)
            had = _now()
            if came != version:
                raise DamagedMessageError(
                    f"version {version} should come next, and {came} came: {explain(word)}"
                )
            inspect(memory[:nbytes], word)
            loan = exchange.loan(LEAD, HAVE, LEAST_BYTES)
            write(loan.memory, stamp(rank, run.number, number))[CLOCK] = had
            endpoint.push(loan)
            received += 1
    sent = Sent(
        messages=received,
        cpu_s=time.process_time() - cpu,
        refused=endpoint.counters.refusals - refused,
    )
    exchange.settle(LEAD, HAVE)
    return sent

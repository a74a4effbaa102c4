"""Experiments where both sides know which message comes next: waiting for it, and for credit.

What ``latency``, ``bandwidth`` and ``weights`` have in common.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self, TypeVar

from tianji_lab.bench.contents import LEAST_BYTES, Slots, StampInspector
from tianji_lab.bench.experiment import Deadline, Run, Sent, Told, Trial, Watch, rest
from tianji_transports.core import ANY, Claim, Full, Loan, Transport

ANSWER_WINDOW: Final = 2
"""Of channels with one message at a time: its receiver's next message may come before the credit for it."""

ThingT = TypeVar("ThingT", Claim, Loan)


class RunEnded(Exception):  # noqa: N818 - no error: the leading process has said so
    """The run is over before its last message."""


class Exchange:
    """One process's waits for the others in a run.

    Args:
        descriptors: one of them is readable when there may be something to hear.
        hear: called when there is nothing else to do; says whether the run is over.
        what: is waited for, in the message of a failure.

    All methods wait, and raise ``RunEnded`` if the run is over, ``TrialFailed`` if nothing comes.
    """

    def __init__(
        self, endpoint: Transport, descriptors: Sequence[int], hear: Callable[[], bool], what: str
    ) -> None:
        self._endpoint = endpoint
        self._descriptors = descriptors
        self._hear = hear
        self._deadline = Deadline(what)

    @classmethod
    def leading(cls, endpoint: Transport, watch: Watch, what: str) -> Self:
        """Of rank 0, for which a run is never over before its last message."""

        def hear() -> bool:
            watch.look()
            return False

        return cls(endpoint, watch.descriptors, hear, what)

    @classmethod
    def following(cls, endpoint: Transport, told: Told, what: str) -> Self:
        """Of any other rank."""
        return cls(endpoint, told.descriptors, told.enough, what)

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
        """Wait until the last push is claimed: the whole window can be had then.

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
            # Only now: to hear costs system calls, and what is there already shall not wait for them.
            if self._hear():
                raise RunEnded


class Receiver:
    """Stores messages as the trial says, and checks them.

    Args:
        slots: that messages are copied into, in turn.
    """

    def __init__(self, trial: Trial, run: Run, slots: int) -> None:
        self.inspect = StampInspector(trial.nbytes, thorough=run.thorough).inspect
        self._slots = Slots(trial.nbytes, slots) if trial.store == "copy" else None

    def store(self, claim: Claim) -> memoryview:
        """Get the payload to where it is read; the caller releases the claim afterwards."""
        if self._slots is None:
            return claim.view()
        memory = self._slots.next()
        return memory[: claim.take(memory)]


def sent_by_all(endpoint: Transport, watch: Watch) -> Mapping[int, Sent]:
    """Wait for what the partners say of a run that is over.

    Raises:
        TrialFailed: one of them failed, died or says nothing.
    """
    deadline = Deadline("partners to end the run")
    while (sent := watch.sent()) is None:
        rest(endpoint, watch.descriptors, deadline)
    return sent

"""Parameter averaging: the root collects the groups' contributions in rounds and publishes their mean."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tianji_cli.config.edges import AVERAGE, CONTRIBUTIONS
from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.plan.plan import ROOT_RANK
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import RunningJob
from tianji_cli.wire.parameters import Average, Contribution, average_layout, values_in
from tianji_transports.core import Claim, Transport

ENOUGH: Final = 2
"""Least number of contributions with which a late round closes although a group is missing."""

SAY_EVERY_S: Final = 10.0
"""Least seconds between two messages about the same late group."""


class ParameterAveraging(Observer):
    """Averages the parameters of several groups, weighted by the samples that each group has used.

    A group contributes at most once in a round. Running statistics are not averaged but merged, by the number
    of observations that each group has seen.

    A round begins with its first contribution and ends when every living group has contributed, or
    ``sync_wait_s`` after the second contribution: a single group has nothing to be averaged with. A late
    group joins the next round. The sum follows the order of the groups, so that the same contributions have
    the same mean, bit by bit.

    Args:
        transport: the root's endpoint, which is open.
        number: number of the job in its messages.

    Attributes:
        missed: rounds that each group was late for while it lived.
        deadline: time of ``time.monotonic`` from which groups are late for the open round; infinite if no
            round is open, or if they are late already.
    """

    def __init__(self, job: RunningJob, transport: Transport, number: int) -> None:
        self._job = job
        self._transport = transport
        self._number = number
        self._wait_s = job.config.distribution.sync_wait_s
        self._nbytes = transport.wiring.channel(CONTRIBUTIONS, ROOT_RANK).max_bytes
        values, groups = values_in(self._nbytes), len(job.learners)
        self._contributions = [Contribution(memoryview(bytearray(self._nbytes))) for _ in range(groups)]
        self._average = Average(memoryview(bytearray(average_layout(values, groups).nbytes)), groups)
        self._here: set[int] = set()
        self._late: set[int] = set()
        self._living = set(job.learners.values())
        self._taken = [0] * groups
        self.missed = [0] * groups
        self._announced_s = [float("-inf")] * groups
        self._contributors = 0
        self.rounds = 0
        self._version = 0
        self.deadline = float("inf")

    def on_turn(self) -> None:
        """Receive contributions; close a complete or late round."""
        while (claim := self._transport.probe(CONTRIBUTIONS)) is not None:
            self._take(claim)
        is_late = time.monotonic() >= self.deadline
        if self._here and (self._living <= self._here or (is_late and len(self._here) >= ENOUGH)):
            self._close()
        elif is_late:
            self._miss_others()

    def on_exit(self, worker: WorkerProcess) -> None:
        """Stop waiting for the group of a learner that died; its last contribution still counts."""
        rank = worker.rank
        if rank in self._job.learners and self._job.outcome is None:
            self._living.discard(self._job.learners[rank])
            self._transport.peer_lost(rank)

    def _take(self, claim: Claim) -> None:
        group = self._job.learners[claim.source]
        contribution = self._contributions[group]
        if claim.nbytes != self._nbytes or group in self._here:
            why = "again in one round" if group in self._here else f"{claim.nbytes} bytes, not {self._nbytes}"
            self._job.rejected.add(claim, why)
            claim.release()
            return
        claim.take(contribution.memory)
        if (rejection := contribution.rejection_from(group, self._number)) is not None:
            self._job.rejected.add(claim, rejection)
            return
        if not contribution.is_finite:
            self._job.event(
                f"the parameters of group {group} are not finite: they are left out of the average"
            )
            self._taken[group] = contribution.number
            self._publish()
            return
        self._here.add(group)
        if len(self._here) <= ENOUGH:
            self.deadline = time.monotonic() + self._wait_s
        if len(self._here) == 1 and self._living - self._here:
            self._publish()  # Tells all groups that they can contribute now.

    def _close(self) -> None:
        contributors = sorted(self._here)
        weights = np.array([self._contributions[group].weight for group in contributors])
        shares = weights / weights.sum()
        mean, first = self._average.values, self._contributions[contributors[0]].values
        merged = merge_statistics([self._contributions[group] for group in contributors])
        for i, (group, share) in enumerate(zip(contributors, shares.tolist(), strict=True)):
            contribution = self._contributions[group]
            if i == 0:
                mean[:] = first
            else:  # Differences keep parameters exact that are equal in all groups, such as frozen ones.
                contribution.values -= first
                contribution.values *= share
                mean += contribution.values
            self._taken[group] = contribution.number
        for place, moments in merged:
            mean[place] = moments
        self._miss_others()
        self._here.clear()
        self._late.clear()
        self._contributors = len(contributors)
        self.rounds += 1
        self._job.overview.note_averaging(self.rounds, self.missed)
        self._publish()

    def _miss_others(self) -> None:
        """Count the groups that are late for this round, once, and announce them."""
        self.deadline = float("inf")
        for group in sorted(self._living - self._here - self._late):
            self._late.add(group)
            self.missed[group] += 1
            now = time.monotonic()
            if now - self._announced_s[group] >= SAY_EVERY_S:
                self._announced_s[group] = now
                self._job.event(
                    f"group {group} is late for average {self.rounds + 1} by {self._wait_s:g} s, "
                    f"distribution.sync_wait_s ({self.missed[group]} so far)"
                )
        self._job.overview.note_averaging(self.rounds, self.missed)

    def _publish(self) -> None:
        self._average.fill_header(
            self._number, self.rounds, self._contributors, is_open=bool(self._here), taken=self._taken
        )
        self._version += 1
        self._transport.publish(AVERAGE, self._average.memory, self._version)


def merge_statistics(
    contributions: Sequence[Contribution],
) -> list[tuple[slice, npt.NDArray[np.float64]]]:
    """Merge the running means and variances of several groups by their counts (Chan et al., 1979).

    A group goes on from the last average with its own count, so new observations have their true weight.
    Distances of means are in double precision, before anything is squared, so means may be far from 0.

    Args:
        contributions: contributions whose statistics lie in the same places.

    Returns:
        The places of means and variances in the values, and the merged means and variances.
    """
    merged = []
    for start, number, rests in contributions[0].statistics.tolist():
        if not number:
            continue
        counts = np.array([one.values[start - 1] for one in contributions], np.float64)
        if not counts.any():
            continue  # No group has counted anything yet.
        shares = counts / counts.sum()
        ends = start + number, start + 2 * number
        means = np.array([one.values[start : ends[0]] for one in contributions], np.float64)
        variances = np.array([one.values[ends[0] : ends[1]] for one in contributions], np.float64)
        if rests:
            means += [one.values[ends[1] : ends[1] + rests] for one in contributions]
        distances = means - means[0]  # Any mean will do as origin: equal means have distance 0, bit by bit.
        apart = shares @ distances
        variance = shares @ (variances + np.square(distances - apart))
        mean = means[0] + apart
        parts = (mean, variance, mean - mean.astype(np.float32)) if rests else (mean, variance)
        merged.append((slice(start, ends[1] + rests), np.concatenate(parts)))
    return merged

"""A learner's part in parameter averaging: it contributes its parameters and adopts the average."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from tianji_algos.core import Embryo
from tianji_algos.normalization import normalizer_of
from tianji_cli.config.edges import AVERAGE, CONTRIBUTIONS
from tianji_cli.errors import TianjiError
from tianji_cli.plan.plan import ROOT_RANK
from tianji_cli.wire.parameters import Average, Contribution, Floats, contribution_layout
from tianji_transports.core import Full, Transport


class AverageError(TianjiError):
    """The root published something that is no average of this job."""


class GroupAverage:
    """Contributes a group's parameters to the root's average, at most once a round, and adopts the average.

    The group keeps its updates since the contribution: the parameters move by the difference of the average
    and the contribution. The average replaces an optimiser's moments, which forget by themselves.

    Args:
        interval: updates between two contributions; counted when ``settle`` is called.
        waits: make no update between a contribution and its average, for ``wait_s`` at most; a later average
            is adopted at the end of the round it comes in. Contributions are then due by the interval alone;
            otherwise also once another group has begun a round.
        wait_s: longest wait for an average, or for the root to take a contribution, in seconds.
        moments: average the optimiser's moments, too.
        updates: updates in earlier sessions.
        consumed: uses of samples in earlier sessions.

    Attributes:
        adoptions: number of averages adopted.
    """

    def __init__(  # noqa: PLR0913 - what a contribution says
        self,
        transport: Transport,
        embryo: Embryo,
        *,
        job: int,
        group: int,
        interval: int,
        waits: bool,
        wait_s: float,
        moments: bool,
        updates: int = 0,
        consumed: int = 0,
    ) -> None:
        self._transport = transport
        self._model = embryo.model
        self._moments: Sequence[torch.Tensor] = embryo.averaged_state() if moments else ()
        self._job = job
        self._group = group
        self._interval = interval
        self._waits = waits
        self._wait_s = wait_s
        self._waiting_since: float | None = None
        self._updates = updates
        self._consumed = consumed
        count = embryo.model.parameter_count
        values = count + sum(moment.numel() for moment in self._moments)
        self._groups = len(transport.wiring.channel(CONTRIBUTIONS, ROOT_RANK).senders)
        self._contribution = Contribution(memoryview(bytearray(contribution_layout(values).nbytes)))
        if (normalizer := normalizer_of(self._model)) is not None:
            for row, (start, *numbers) in enumerate(normalizer.means()):
                self._contribution.statistics[row] = count + start, *numbers
        self._new: Floats = np.zeros(values, np.float32)
        self._count = count
        self._own: Average | None = None
        if not transport.capabilities.lends:
            nbytes = transport.wiring.slot(AVERAGE).max_bytes
            self._own = Average(memoryview(bytearray(nbytes)), self._groups)
        self._version = -1
        self._called = False
        self._outstanding = False
        self._is_finite = True
        self._adopted = False
        self._number = 0
        self.adoptions = 0

    def settle(self, updates: int, consumed: int) -> bool:
        """Adopt the average of the last contribution if it has come, and contribute if that is due.

        Args:
            updates: updates so far, over all sessions.
            consumed: uses of samples so far, over all sessions.

        Returns:
            False if the learner has to wait before its next update.
        """
        self._look()
        due = not self._outstanding and self._is_due(updates, consumed)
        if due and self._contribute(consumed):
            self._updates, self._consumed = updates, consumed
        return not (self._waits and self._has_to_wait(due=due))

    def take_adopted(self) -> bool:
        """Return True once after each adoption of an average."""
        adopted, self._adopted = self._adopted, False
        return adopted

    @property
    def contributed(self) -> int:
        """Number of contributions of the group."""
        return self._number

    def _has_to_wait(self, *, due: bool) -> bool:
        """Whether the learner waits for an average, and has not waited too long."""
        if not (due or self._outstanding):
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < self._wait_s

    def _is_due(self, updates: int, consumed: int) -> bool:
        if consumed <= self._consumed:
            return False
        return self._called or updates - self._updates >= self._interval

    def _look(self) -> None:
        claim = self._transport.latest(AVERAGE, self._version)
        if claim is None:
            return
        self._version = claim.version
        if self._own is None:
            average = Average(claim.view(), self._groups)
        else:
            average = self._own
            claim.take(average.memory)
        try:
            if (rejection := average.rejection(self._job)) is not None:
                raise AverageError(f"an average from rank {claim.source} is none: {rejection}")
            self._handle(average)
        finally:
            del average
            claim.release()

    def _handle(self, average: Average) -> None:
        if self._outstanding and average.taken[self._group] >= self._number:
            self._outstanding, self._waiting_since = False, None
            if self._is_finite and average.contributors:
                self._adopt(average.values)
        self._called = average.is_open and not self._waits

    def _adopt(self, average: Floats) -> None:
        new, count = self._new, self._count
        self._model.write_parameters(new[:count])
        # In this order nothing is rounded if there was no update meanwhile.
        new[:count] -= self._contribution.values[:count]
        new[:count] += average[:count]
        new[count:] = average[count:]
        if (normalizer := normalizer_of(self._model)) is not None:
            # The difference of variances is not what the group has added, and could make a variance negative.
            own = slice(count - normalizer.size, count)
            new[own] = normalizer.adopt(average[own])
        self._model.read_parameters(new[:count])
        for moment, part in zip(self._moments, self._parts(new), strict=True):
            moment.copy_(part)
        self._adopted = True
        self.adoptions += 1

    def _contribute(self, consumed: int) -> bool:
        """Send the parameters; return False if the root has no room for them yet."""
        contribution = self._contribution
        loan = self._transport.loan(ROOT_RANK, CONTRIBUTIONS, contribution.memory.nbytes)
        if isinstance(loan, Full):
            return False
        self._model.write_parameters(contribution.values[: self._count])
        if (normalizer := normalizer_of(self._model)) is not None:
            normalizer.remember()
        for moment, part in zip(self._moments, self._parts(contribution.values), strict=True):
            part.copy_(moment.detach())
        self._number += 1
        self._is_finite = contribution.is_finite
        contribution.stamp(self._job, self._group, self._number, consumed - self._consumed)
        loan.memory[:] = contribution.memory
        self._transport.push(loan)
        self._outstanding = True
        return True

    def _parts(self, values: Floats) -> list[torch.Tensor]:
        """View the moments that follow the parameters, each in its own shape."""
        parts, start = [], self._count
        for moment in self._moments:
            part = values[start : start + moment.numel()]
            parts.append(torch.from_numpy(part).view(moment.shape))
            start += moment.numel()
        return parts

"""The root and the learners of several groups in one process, over the real in-process engine."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from tianji_cli.config.edges import AVERAGE, CONTRIBUTIONS
from tianji_cli.root.observers.averaging import ParameterAveraging
from tianji_cli.wire.parameters import Average, Contribution, average_layout, contribution_layout
from tianji_cli.wire.reports import Rejected
from tianji_transports.core import Full
from tianji_transports.inproc import InprocTransport
from tianji_transports.wiring import Channel, Slot, Wiring

JOB = 77
ROOT = 0
_numbers = itertools.count()


class AveragingLine:
    """Endpoints of a root at rank 0 and of the learner of group g at rank g + 1.

    Args:
        groups: how many.
        values: that each contributes.
        wait_s: longest that a round stays open.

    Attributes:
        events: what the averaging has told the user.
        noted: rounds and missed ones that the overview was told of.
        rejected: what was not of this job.
    """

    def __init__(self, groups: int = 2, values: int = 4, wait_s: float = 1000.0) -> None:
        ranks = tuple(range(1, groups + 1))
        self.values, self.groups = values, groups
        wiring = Wiring(
            f"averaging-{next(_numbers)}",
            (Channel(CONTRIBUTIONS, ROOT, ranks, contribution_layout(values).nbytes),),
            (Slot(AVERAGE, ROOT, ranks, average_layout(values, groups).nbytes),),
        )
        self.root = InprocTransport(wiring, ROOT)
        self.learners = [InprocTransport(wiring, rank) for rank in ranks]
        self.events: list[str] = []
        self.noted: list[tuple[int, list[int]]] = []
        self.rejected = Rejected()
        job: Any = SimpleNamespace(
            config=SimpleNamespace(distribution=SimpleNamespace(sync_wait_s=wait_s)),
            learners={rank: rank - 1 for rank in ranks},
            outcome=None,
            rejected=self.rejected,
            event=self.events.append,
            overview=SimpleNamespace(
                note_averaging=lambda rounds, missed: self.noted.append((rounds, list(missed)))
            ),
        )
        self.averaging = ParameterAveraging(job, self.root, JOB)

    def turn(self) -> None:
        """Let the root work on what has come."""
        self.averaging.on_turn()

    def lose(self, rank: int) -> None:
        """Let a learner be dead."""
        worker: Any = SimpleNamespace(rank=rank)
        self.averaging.on_exit(worker)

    def contribute(
        self,
        group: int,
        values: float | Sequence[float],
        weight: float = 1.0,
        number: int = 1,
        job: int = JOB,
        statistics: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        """Push a contribution in a group's name, by its learner; ``statistics`` says where statistics are."""
        transport = self.learners[group]
        loan = transport.loan(ROOT, CONTRIBUTIONS, contribution_layout(self.values).nbytes)
        assert not isinstance(loan, Full)
        contribution = Contribution(loan.memory)
        contribution.values[...] = values
        contribution.statistics[...] = 0
        contribution.statistics[0] = statistics
        contribution.stamp(job, group, number, weight)
        transport.push(loan)

    def push(self, group: int, message: bytes) -> None:
        """Push any bytes at all."""
        transport = self.learners[group]
        loan = transport.loan(ROOT, CONTRIBUTIONS, len(message))
        assert not isinstance(loan, Full)
        loan.memory[:] = message
        transport.push(loan)

    def latest(self, group: int = 0) -> Average | None:
        """Copy what the root published last."""
        claim = self.learners[group].latest(AVERAGE)
        if claim is None:
            return None
        copied = Average(memoryview(bytearray(claim.view())), self.groups)
        claim.release()
        return copied

    def mean(self) -> list[float]:
        """The values of what the root published last."""
        average = self.latest()
        assert average is not None
        return [float(value) for value in average.values]

    def close(self) -> None:
        """Free everything."""
        for transport in (*self.learners, self.root):
            transport.close()

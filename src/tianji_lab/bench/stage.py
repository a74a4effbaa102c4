"""An open trial: runs are made here, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tianji_lab.bench.contents import DamagedMessageError
from tianji_lab.bench.experiment import Outcome, TrialFailed
from tianji_lab.bench.side import Side
from tianji_lab.bench.trial import LEAD, Enough, Run, Sent

if TYPE_CHECKING:
    from tianji_lab.bench.ensemble import Ensemble, Member


class Stage:
    """Makes runs, and is the ``Watch`` of each.

    Args:
        ensemble: where the partners are.
        side: the leading one.
        members: the partner of each rank.
        offsets_ns: what each rank's clock is ahead of this one's.
    """

    def __init__(
        self, ensemble: Ensemble, side: Side, members: Mapping[int, Member], offsets_ns: Mapping[int, int]
    ) -> None:
        self.descriptors: Sequence[int] = ensemble.descriptors
        self.offsets_ns = offsets_ns
        self._ensemble = ensemble
        self._side = side
        self._members = members
        self._runs = 0
        self._numbers: dict[int, int] = {}
        self._sent: dict[int, Sent] = {}

    def run(self, messages: int, *, thorough: bool = False) -> Outcome:
        """Make a run.

        Raises:
            TrialFailed: there is no result.
        """
        self._runs += 1
        self._numbers, self._sent = {}, {}
        try:
            return self._side.lead(Run(number=self._runs, messages=messages, thorough=thorough), self)
        except DamagedMessageError as damage:
            raise TrialFailed(f"rank {LEAD}: {damage}") from damage

    def start(self, run: Run) -> None:
        """Tell every partner to begin."""
        self._numbers = {rank: self._ensemble.tell(member, run) for rank, member in self._members.items()}

    def look(self) -> None:
        """Hear the partners; never waits.

        Raises:
            TrialFailed: one of them died or failed.
        """
        self._ensemble.look()

    def enough(self) -> None:
        """Tell every partner to end the run."""
        for member in self._members.values():
            self._ensemble.tell(member, Enough(run=self._runs))

    def sent(self) -> Mapping[int, Sent] | None:
        """What the partners say of the run, once all have ended it."""
        self.look()
        for rank, number in self._numbers.items():
            answer = self._ensemble.answer(number)
            if answer is not None:
                self._sent[rank] = Sent.model_validate(answer)
        return self._sent if len(self._sent) == len(self._numbers) else None

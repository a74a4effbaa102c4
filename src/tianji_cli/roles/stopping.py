"""In which order receivers stop: buffers in processes of their own, then the learners that hear of them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tianji_cli.cluster.plan import Plan


class StoppingOrder:
    """Says who may stop, once the actors have.

    A learner stops when its buffer has told it of all that was received. What the buffer does after that,
    such as saving its replay, keeps no learner from saving its own state.

    Args:
        plan: who carries what.
    """

    def __init__(self, plan: Plan) -> None:
        self._learners = {process.rank for process in plan.carrying("learner")}
        self._buffers = {process.rank for process in plan.carrying("buffer")} - self._learners
        self._told: set[int] = set()

    def next(self, running: AbstractSet[int], stopped: AbstractSet[int]) -> set[int]:
        """Name those who may stop now and were not named before.

        Args:
            running: ranks that have not ended.
            stopped: ranks that have said their last word.
        """
        ranks = self._buffers if self._buffers & running - stopped else self._learners
        named = ranks - self._told
        self._told |= named
        return named

    def late(self, running: AbstractSet[int], stopped: AbstractSet[int]) -> set[int]:
        """Name those who keep the others waiting when time is up."""
        return self._buffers & running - stopped or set(running)

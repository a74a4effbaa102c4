"""In which order the processes of a group stop, once its actors have."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from tianji_cli.cluster.plan import Plan


class StoppingOrder:
    """Says who may stop, once the actors have; each group goes its own pace.

    A learner stops when a buffer in a process of its own has told it of all that was received. What the
    buffer does after that, such as saving its replay, keeps no learner from saving its own state. A role of
    the user's stops with the learner, and so do followers: if one of them keeps the learner waiting in the
    middle of an update, both are late.

    Args:
        plan: who carries what.
    """

    def __init__(self, plan: Plan) -> None:
        learners = {process.rank for process in plan.carrying("learner")}
        buffers = {process.rank for process in plan.carrying("buffer")} - learners
        actors = {process.rank for process in plan.carrying("actor")} - learners
        self._stages: list[tuple[set[int], ...]] = []
        for group in dict.fromkeys(process.group for process in plan.trainers):
            ranks = {process.rank for process in plan.trainers if process.group == group} - actors
            self._stages.append((ranks & buffers, ranks - buffers))
        self._told: set[int] = set()

    def next(self, running: AbstractSet[int], stopped: AbstractSet[int]) -> set[int]:
        """Name those who may stop now and were not named before.

        Args:
            running: ranks that have not ended.
            stopped: ranks that have said their last word.
        """
        named = {rank for stages in self._stages for rank in _now(stages, running - stopped)} - self._told
        self._told |= named
        return named

    def late(self, running: AbstractSet[int], stopped: AbstractSet[int]) -> set[int]:
        """Name those who keep the others waiting when time is up."""
        waiting = running - stopped
        return {rank for stages in self._stages for rank in _now(stages, waiting)} & waiting or set(running)


def _now(stages: tuple[set[int], ...], waiting: AbstractSet[int]) -> set[int]:
    """Find the first stage of a group that has anybody who has not stopped; the last if none has."""
    return next((stage for stage in stages if stage & waiting), stages[-1])

"""How training ends: actors first, then those who receive from them, each in its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from tianji_cli.cluster.control import ControlServer
from tianji_cli.cluster.crew import Crew
from tianji_cli.cluster.messages import Stop, WindDown
from tianji_cli.cluster.plan import Plan
from tianji_cli.roles.stopping import StoppingOrder

WIND_DOWN_LIMIT_S: Final = 1.5
STOP_LIMIT_S: Final = 10.0
SAVE_LIMIT_S: Final = 120.0
"""Time for winding down and stopping where a replay is saved, which may be gigabytes."""


class Ending:
    """Tells everybody to stop when it is their turn, and kills who does not in time.

    Args:
        plan: of the job.
        control: the root's end of the control channel.
        crew: the worker processes.
        saves_replay: buffers write gigabytes, perhaps.
        give_up: is told whom it kills because they did not stop in time, other than actors.

    Attributes:
        actors: ranks that carry actors and nothing that receives from them.
        receivers: the other ranks of all groups.
        stopped: ranks that have said their last word; kept by whoever hears it.
        deadline: when patience ends, by ``time.monotonic``; infinite before the end begins and after it.
    """

    def __init__(
        self,
        plan: Plan,
        control: ControlServer,
        crew: Crew,
        *,
        saves_replay: bool,
        give_up: Callable[[set[int]], None],
    ) -> None:
        self._control = control
        self._crew = crew
        self._give_up = give_up
        self._order = StoppingOrder(plan)
        self._save_limit_s = SAVE_LIMIT_S if saves_replay else 0.0
        self.actors = {process.rank for process in plan.carrying("actor") if "learner" not in process.roles}
        self.receivers = {process.rank for process in plan.trainers} - self.actors
        self.stopped: set[int] = set()
        self.deadline = float("inf")

    def begin(self) -> None:
        """Stop the actors, and let the others make ready."""
        self._allow(WIND_DOWN_LIMIT_S)
        for rank in self.actors:
            self._control.send(rank, Stop())
        for rank in self.receivers:
            self._control.send(rank, WindDown())

    def actors_are_gone(self) -> bool:
        """Say whether all actors have stopped; kills them when their time is up."""
        remaining = self._crew.ranks & self.actors
        if time.monotonic() >= self.deadline:
            self._crew.kill(remaining)
        return not remaining

    def all_are_gone(self) -> bool:
        """Stop whose turn it is, and say whether nobody is left; kills them when their time is up."""
        for rank in self._order.next(self._crew.ranks, self.stopped):
            self._control.send(rank, Stop())
            self._allow(STOP_LIMIT_S)
        if self._crew.ranks and time.monotonic() >= self.deadline:
            late = self._order.late(self._crew.ranks, self.stopped)
            self._give_up(late)
            self._crew.kill(late)
            self.deadline = time.monotonic() + STOP_LIMIT_S
        if not self._crew.ranks:
            self.deadline = float("inf")
            return True
        return False

    def _allow(self, limit_s: float) -> None:
        self.deadline = time.monotonic() + max(limit_s, self._save_limit_s)

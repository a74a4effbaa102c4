"""How much of their time actors wait for roles of the user's own that receive copies of their fragments."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tianji_cli.plan.plan import Plan, PlannedProcess
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.wire.messages import Report

WINDOW_S: Final = 5.0
"""How far back is looked: who claims its fragments late once holds nobody back."""

LEAST_S: Final = 2.0
"""A session of less time says nothing."""

MOSTLY: Final = 0.5
"""A role for which its group's actors wait a larger share of the time holds them back."""


@dataclass(frozen=True, order=True)
class Receiver:
    """A role of a group, for which the group's actors may have to wait."""

    name: str
    group: int

    def __str__(self) -> str:
        """As processes are called."""
        return f"{self.name} (group {self.group})"


class HeldBack:
    """Owns how long actors have waited for whom.

    Args:
        plan: processes of the job.
    """

    def __init__(self, plan: Plan) -> None:
        self._actors = Counter(process.group for process in plan.processes for _ in process.actors)
        self._waited_s: dict[tuple[int, int], dict[Receiver, float]] = {}
        self._running_s: dict[tuple[int, int], float] = {}
        self._marks: deque[tuple[float, Mapping[Receiver, float]]] = deque()

    def note(self, process: PlannedProcess, report: Report) -> None:
        """Take in for how long a process's actors have waited, in this incarnation."""
        for index, (role, said) in enumerate(zip(process.roles, report.roles, strict=True)):
            if role == "actor" and process.group is not None:
                self._running_s[process.rank, index] = report.running_s
                self._waited_s[process.rank, index] = {
                    Receiver(name, process.group): seconds
                    for name, seconds in said.get("waited_s", {}).items()
                }

    def current(self, now_s: float) -> Receiver | None:
        """Say who holds its group's actors back lately; None for nobody, and before ``WINDOW_S`` have passed.

        Args:
            now_s: seconds on any clock, later with each call.
        """
        waited = self._total()
        self._marks.append((now_s, waited))
        while len(self._marks) > 2 and now_s - self._marks[1][0] >= WINDOW_S:
            self._marks.popleft()
        then_s, before = self._marks[0]
        if now_s - then_s < WINDOW_S:
            return None
        lately = {receiver: seconds - before.get(receiver, 0.0) for receiver, seconds in waited.items()}
        return self._worst(lately, now_s - then_s)

    def overall(self) -> Receiver | None:
        """Say who held its group's actors back for as long as they were there."""
        there_s = sum(self._running_s.values()) / max(len(self._running_s), 1)
        return self._worst(self._total(), there_s) if there_s >= LEAST_S else None

    def _total(self) -> Mapping[Receiver, float]:
        total: Counter[Receiver] = Counter()
        for waited in self._waited_s.values():
            total.update(waited)
        return total

    def _worst(self, waited: Mapping[Receiver, float], interval_s: float) -> Receiver | None:
        shares = {
            receiver: seconds / (interval_s * self._actors[receiver.group])
            for receiver, seconds in waited.items()
        }
        worst = max(shares, key=lambda receiver: shares[receiver], default=None)
        return worst if worst is not None and shares[worst] > MOSTLY else None


def bound_by(receiver: Receiver) -> Bottleneck:
    """Name a role as what holds the job back."""
    return Bottleneck(
        "communication-bound",
        f"actors wait most of the time for the role {receiver}, which claims its fragments too slowly or not "
        "at all; more actors will not help, less work in its turns or cores of its own would",
    )

"""Which groups a job has lost, and what died with whom: a dead group is left behind and the others go on."""

from __future__ import annotations

from collections.abc import Callable, Set

from tianji_cli.plan.plan import Plan
from tianji_cli.root.accounting import Account, settle
from tianji_cli.root.crew import Departure
from tianji_cli.root.overview import Overview
from tianji_cli.wire.reports import Source


class GroupLosses:
    """Remembers who died and decides whether the job can do without.

    Group 0 has the job's checkpoints; without it the job ends. Without any other it goes on.

    Args:
        plan: of the job.
        event: tells the user something.
        bound: processes cannot die alone, because an MPI launcher ends all with one.

    Attributes:
        causes: why each lost group is lost, by group.
        killed: incarnations of actors that did not stop in order.
        orphaned: numbers of the actors whose buffer died.
    """

    def __init__(self, plan: Plan, event: Callable[[str], None], *, bound: bool = False) -> None:
        self._plan = plan
        self._event = event
        self._bound = bound
        self._buffers = {process.rank for process in plan.carrying("buffer")}
        self.causes: dict[int, str] = {}
        self.killed: set[Source] = set()
        self.orphaned: set[int] = set()

    @property
    def living(self) -> set[int]:
        """Ranks of the groups that are not lost."""
        return {process.rank for process in self._plan.trainers if process.group not in self.causes}

    def includes(self, rank: int) -> bool:
        """Say whether a rank belongs to a lost group."""
        return self._plan.processes[rank].group in self.causes

    def ranks_of(self, group: int | None) -> set[int]:
        """Find who belongs to a group."""
        return {process.rank for process in self._plan.trainers if process.group == group}

    def lose(self, ranks: Set[int], cause: str) -> bool:
        """Give up the groups of some ranks, and tell the user; False if the job cannot do without one."""
        groups = {self._plan.processes[rank].group for rank in ranks}
        if self._bound or not all(groups):
            return False
        for group in groups - self.causes.keys():
            assert group is not None
            self.causes[group] = cause
            self._event(f"group {group} is lost: {cause}; the others go on")
        return True

    def note(self, departure: Departure, *, in_order: bool) -> None:
        """Remember a process that has ended early, and what is lost with it.

        Args:
            departure: of the process.
            in_order: it had reported all that it had done before.
        """
        rank = departure.rank
        process = self._plan.processes[rank]
        self.killed.update((actor, departure.incarnation) for actor in process.actors)
        if rank in self._buffers and not in_order:
            for other in self._plan.trainers:
                if other.group == process.group:
                    self.orphaned.update(other.actors)

    def account(self, overview: Overview) -> Account:
        """Say where every sample went, after everything stopped."""
        overview.settle_unsure()
        return settle(overview.productions(), overview.receptions(), self.killed, self.orphaned)

    def described(self, reason: str) -> str:
        """Add to the reason of a job's end which groups did not live to see it."""
        if not self.causes:
            return reason
        names = " and ".join(map(str, sorted(self.causes)))
        return f"{reason}; without group{'s' if len(self.causes) > 1 else ''} {names}, lost on the way"

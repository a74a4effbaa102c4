"""Groups that a job has lost: whether it goes on without them, and what is lost with them."""

from __future__ import annotations

from collections.abc import Callable, Set

from tianji_cli.plan.plan import Plan
from tianji_cli.plan.spec import ProcessSpec
from tianji_cli.root.accounting import Account, reconcile
from tianji_cli.root.job_view import Overview
from tianji_cli.wire.reports import Source


class GroupLosses:
    """Remembers which processes died, and decides whether the job goes on without their groups.

    The job ends without group 0, which has its checkpoints, and goes on without any other group.

    Args:
        bound: an MPI launcher ends all processes when one dies.

    Attributes:
        bound: see above.
        causes: reason of each loss, by group.
        killed: incarnations of actors that did not stop in order.
        orphaned: numbers of the actors whose buffer died.
    """

    def __init__(self, plan: Plan, event: Callable[[str], None], *, bound: bool = False) -> None:
        self._plan = plan
        self._event = event
        self.bound = bound
        self._buffers = {process.rank for process in plan.carrying("buffer")}
        self._learners = {process.rank for process in plan.carrying("learner")}
        self._lost_receiver = False
        self.causes: dict[int, str] = {}
        self.killed: set[Source] = set()
        self.orphaned: set[int] = set()

    @property
    def living(self) -> set[int]:
        """Ranks of the groups that are not lost."""
        return {process.rank for process in self._plan.trainers if process.group not in self.causes}

    def includes(self, rank: int) -> bool:
        """Whether a rank belongs to a lost group."""
        return self._plan.processes[rank].group in self.causes

    def ranks_of(self, group: int | None) -> set[int]:
        """Find the ranks of a group."""
        return {process.rank for process in self._plan.trainers if process.group == group}

    def lose(self, ranks: Set[int], cause: str) -> bool:
        """Give up the groups of some ranks, and tell the user; return False if the job needs one of them."""
        groups = {self._plan.processes[rank].group for rank in ranks}
        if self.bound or not all(groups):
            return False
        for group in groups - self.causes.keys():
            assert group is not None
            self.causes[group] = cause
            self._event(f"group {group} is lost: {cause}; the others go on")
        return True

    def note(self, died: ProcessSpec, *, in_order: bool) -> None:
        """Record a process that has ended early; ``in_order`` if it had sent its last report."""
        process = self._plan.processes[died.rank]
        self.killed.update((actor, died.incarnation) for actor in process.actors)
        self._lost_receiver |= died.rank in self._buffers | self._learners and not in_order
        if died.rank in self._buffers and not in_order:
            for other in self._plan.trainers:
                if other.group == process.group:
                    self.orphaned.update(other.actors)

    def forget_orphans(self, group: int) -> None:
        """Forget the orphans of a group that is started anew: its old actors count as killed already."""
        for process in self._plan.trainers:
            if process.group == group:
                self.orphaned.difference_update(process.actors)

    def account(self, overview: Overview) -> Account:
        """Return the sample account, after everything stopped."""
        overview.settle_unsure()
        account = reconcile(overview.productions(), overview.receptions(), self.killed, self.orphaned)
        if not self._lost_receiver:
            return account
        return account.as_learnt(overview.received, all_known=not overview.unsure)

    def described(self, reason: str) -> str:
        """Add the lost groups to the reason of a job's end."""
        if not self.causes:
            return reason
        names = " and ".join(map(str, sorted(self.causes)))
        return f"{reason}; without group{'s' if len(self.causes) > 1 else ''} {names}, lost on the way"

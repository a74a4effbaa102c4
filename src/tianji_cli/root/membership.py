"""Who takes part: incarnations and addresses, groups that the job has lost, frames that were rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from tianji_cli.plan.graph import RoleGraph
from tianji_cli.plan.plan import Plan
from tianji_cli.plan.spec import ProcessSpec
from tianji_cli.root.accounting import Account, reconcile
from tianji_cli.root.averaging import RootEndpoint
from tianji_cli.root.job_view import Overview
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Addresses, Register
from tianji_cli.wire.reports import Source


class Membership:
    """Keeps the addresses of registered ranks, and sends each rank those of its neighbours."""

    def __init__(self, plan: Plan, graph: RoleGraph, control: ControlServer) -> None:
        self._control = control
        self._incarnations = dict.fromkeys(range(len(plan.processes)), 0)
        self._neighbours = graph.neighbours(plan)
        self._addresses: dict[int, str] = {}
        self._told: dict[int, Mapping[int, str]] = {}

    @property
    def registered(self) -> set[int]:
        """Ranks that can be reached."""
        return set(self._addresses)

    def begin(self, rank: int, incarnation: int) -> None:
        """A rank is started, perhaps again."""
        self._incarnations[rank] = incarnation
        self.leave([rank])

    def is_current(self, rank: int, incarnation: int) -> bool:
        """Whether this is the present life of a rank."""
        return self._incarnations[rank] == incarnation

    def register(self, message: Register) -> None:
        """Note where a rank is."""
        self._addresses[message.rank] = message.address

    def leave(self, ranks: Iterable[int]) -> None:
        """Forget ranks that do not come back."""
        for rank in ranks:
            self._addresses.pop(rank, None)
            self._told.pop(rank, None)

    def introduce(self, everyone: set[int], root: Mapping[int, str]) -> Mapping[int, str] | None:
        """Send each rank the addresses of its neighbours, unless it has them.

        Args:
            root: the root's own address by its rank, if it has one.

        Returns:
            The addresses, by rank; None as long as one is missing.
        """
        if not everyone <= self._addresses.keys():
            return None
        addresses = self._addresses | dict(root)
        for rank in everyone:
            known = {peer: addresses[peer] for peer in self._neighbours[rank] if peer in addresses}
            if self._told.get(rank) != known:
                self._told[rank] = known
                self._control.send(rank, Addresses(addresses=known))
        return addresses


class GroupLosses:
    """Remembers which processes died, and decides whether the job goes on without their groups.

    Group 0 has the job's checkpoints; without it the job ends. Without any other it goes on.

    Args:
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
        """Whether a rank belongs to a lost group."""
        return self._plan.processes[rank].group in self.causes

    def ranks_of(self, group: int | None) -> set[int]:
        """Find the ranks of a group."""
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

    def note(self, died: ProcessSpec, *, in_order: bool) -> None:
        """Record a process that has ended early; ``in_order`` if it had reported all that it had done."""
        process = self._plan.processes[died.rank]
        self.killed.update((actor, died.incarnation) for actor in process.actors)
        if died.rank in self._buffers and not in_order:
            for other in self._plan.trainers:
                if other.group == process.group:
                    self.orphaned.update(other.actors)

    def account(self, overview: Overview) -> Account:
        """Return where every sample went, after everything stopped."""
        overview.settle_unsure()
        return reconcile(overview.productions(), overview.receptions(), self.killed, self.orphaned)

    def described(self, reason: str) -> str:
        """Add the lost groups to the reason of a job's end."""
        if not self.causes:
            return reason
        names = " and ".join(map(str, sorted(self.causes)))
        return f"{reason}; without group{'s' if len(self.causes) > 1 else ''} {names}, lost on the way"


class Rejections:
    """Adds up the frames that roles, the control channel and the root's own endpoint have rejected."""

    def __init__(
        self,
        overview: Overview,
        control: ControlServer,
        averaging: RootEndpoint,
        say: Callable[[str], None],
    ) -> None:
        self._overview = overview
        self._control = control
        self._averaging = averaging
        self._say = say
        self._reported: set[str] = set()

    @property
    def total(self) -> int:
        """Frames rejected so far."""
        return sum(count for _, count, _ in self._all())

    def report(self) -> None:
        """Tell the user of each role's first rejection; the summary counts the rest."""
        for whom, count, why in self._all():
            if whom not in self._reported:
                self._reported.add(whom)
                self._say(f"{whom} refused {count} frame{'s' if count > 1 else ''} (such as: {why})")

    def _all(self) -> list[tuple[str, int, str]]:
        rejections = self._overview.rejections()
        if self._control.rejected:
            rejections.append(("the control channel", self._control.rejected, self._control.last_rejection))
        count, why = self._averaging.rejected
        if count:
            rejections.append(("the root", count, why))
        return rejections

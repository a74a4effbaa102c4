"""Who takes part: incarnations and addresses, and the frames that were rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tianji_cli.plan.graph import RoleGraph
from tianji_cli.plan.plan import Plan
from tianji_cli.root.averaging import RootEndpoint
from tianji_cli.root.job_view import Overview
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Addresses, Register


class Membership:
    """Keeps the addresses of registered ranks, and sends each rank those of its neighbours."""

    def __init__(self, plan: Plan, graph: RoleGraph, control: ControlServer) -> None:
        self._control = control
        self._incarnations = dict.fromkeys(range(len(plan.processes)), 0)
        self._neighbours = graph.neighbours(plan)
        self._addresses: dict[int, str] = {}
        self._sent: dict[int, Mapping[int, str]] = {}

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
            self._sent.pop(rank, None)

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
            if self._sent.get(rank) != known:
                self._sent[rank] = known
                self._control.send(rank, Addresses(addresses=known))
        return addresses


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

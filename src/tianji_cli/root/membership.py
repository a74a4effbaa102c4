"""Who takes part: which incarnation of each rank, and where it can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tianji_cli.plan.graph import RoleGraph
from tianji_cli.plan.plan import Plan
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Addresses, Register


class Membership:
    """Keeps the addresses of those who have registered, and tells each rank those of its neighbours.

    Args:
        plan: of the job.
        graph: which roles are connected.
        control: the root's end of the control channel.
    """

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
        """Say whether this is the present life of a rank."""
        return self._incarnations[rank] == incarnation

    def register(self, message: Register) -> None:
        """Note where a rank is."""
        self._addresses[message.rank] = message.address

    def leave(self, ranks: Iterable[int]) -> None:
        """Forget those who do not come back."""
        for rank in ranks:
            self._addresses.pop(rank, None)
            self._told.pop(rank, None)

    def introduce(self, everyone: set[int], root: Mapping[int, str]) -> Mapping[int, str] | None:
        """Tell each rank where its neighbours are, unless it knows; None if somebody is not there yet.

        Args:
            everyone: who takes part.
            root: its own address by its rank, if it has one.

        Returns:
            Where everybody is.
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

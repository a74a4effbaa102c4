"""Who takes part: which incarnation of each rank, and where it can be reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tianji_cli.cluster.control import ControlServer
from tianji_cli.cluster.messages import Addresses, Register
from tianji_cli.cluster.plan import Plan


class Membership:
    """Keeps the addresses of those who have registered, and tells everybody once all have.

    Args:
        plan: of the job.
        control: the root's end of the control channel.
    """

    def __init__(self, plan: Plan, control: ControlServer) -> None:
        self._control = control
        self._incarnations = dict.fromkeys(range(len(plan.processes)), 0)
        self._addresses: dict[int, str] = {}

    @property
    def registered(self) -> set[int]:
        """Ranks that can be reached."""
        return set(self._addresses)

    def begin(self, rank: int, incarnation: int) -> None:
        """A rank is started, perhaps again."""
        self._incarnations[rank] = incarnation
        self._addresses.pop(rank, None)

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

    def introduce(self, everyone: set[int], root: Mapping[int, str]) -> Mapping[int, str] | None:
        """Tell everybody where everybody is; None if somebody is not there yet.

        Args:
            everyone: who takes part.
            root: its own address by its rank, if it has one.

        Returns:
            What they were told.
        """
        if not everyone <= self.registered:
            return None
        addresses = self._addresses | dict(root)
        for rank in everyone:
            self._control.send(rank, Addresses(addresses=addresses))
        return addresses

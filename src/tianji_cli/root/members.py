"""Membership of a job: which process has each rank now, who knows its address, and what it has sent last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tianji_cli.plan.plan import Plan
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Addresses, Register


class Membership:
    """Keeps the addresses of registered ranks, and sends each rank those of its neighbours.

    Attributes:
        sent_last: ranks whose process has sent its last message: its last report, or its failure.
        stopped: ranks whose process has sent its last report; written by the root.
    """

    def __init__(self, plan: Plan, control: ControlServer) -> None:
        self._control = control
        self._incarnations = dict.fromkeys(range(len(plan.processes)), 0)
        self._neighbours = plan.neighbours()
        self._addresses: dict[int, str] = {}
        self._meetings: dict[int, str] = {}
        """Place where a group's learners meet, by the rank of the first of them."""
        self._sent: dict[int, Mapping[int, str]] = {}
        self._changed = False
        self.sent_last: set[int] = set()
        self.stopped: set[int] = set()

    @property
    def registered(self) -> set[int]:
        """Ranks whose addresses are known."""
        return set(self._addresses)

    def begin(self, rank: int, incarnation: int) -> None:
        """Note that a rank is started, perhaps again."""
        self._incarnations[rank] = incarnation
        self.sent_last.discard(rank)
        self.stopped.discard(rank)
        self.leave([rank])

    def incarnation(self, rank: int) -> int:
        """Return the number of restarts of a rank."""
        return self._incarnations[rank]

    def is_current(self, rank: int, incarnation: int) -> bool:
        """Whether this is the present incarnation of a rank."""
        return self._incarnations[rank] == incarnation

    def register(self, message: Register) -> None:
        """Record the address of a rank."""
        self._addresses[message.rank] = message.address
        if message.meeting:
            self._meetings[message.rank] = message.meeting
        self._changed = True

    def leave(self, ranks: Iterable[int]) -> None:
        """Forget ranks that do not come back."""
        for rank in ranks:
            self._addresses.pop(rank, None)
            self._sent.pop(rank, None)
        self._changed = True

    def introduce(self, needed: set[int], optional: set[int], root: Mapping[int, str]) -> Mapping[int, str]:
        """Send each registered rank the addresses of its neighbours, unless it has them.

        Args:
            needed: ranks that must have registered before any rank begins.
            optional: further ranks that are introduced once they have registered.
            root: the root's own address by its rank, if it has one.

        Returns:
            All addresses, by rank; empty if a needed rank is missing, or if nothing has changed.
        """
        if not self._changed or not needed <= self._addresses.keys():
            return {}
        self._changed = False
        addresses = self._addresses | dict(root)
        for rank in (needed | optional) & self._addresses.keys():
            known = {peer: addresses[peer] for peer in self._neighbours[rank] if peer in addresses}
            if self._sent.get(rank) != known:
                self._sent[rank] = known
                learner = next(iter(self._meetings.keys() & {rank, *known}), None)
                meeting = "" if learner is None else self._meetings[learner]
                self._control.send(rank, Addresses(addresses=known, meeting=meeting))
        return addresses

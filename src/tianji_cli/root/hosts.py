"""The hosts of a job beside the root's own: those that it waits for, and those that come while it trains.

The plan has a seat for each host that the config allows. A seat is empty until a host has come for it, and
again when its host is lost; a job goes on with empty seats as long as only actors sat there.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Final

from tianji_cli.launch.node import RemoteNode
from tianji_cli.plan.plan import Host
from tianji_cli.root.observers.observer import Observer
from tianji_cli.root.running_job import RunningJob
from tianji_cli.signals import Interruption, StopSignals
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.telemetry.telemetry import Telemetry
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Arrive, Exited, FromNode, Present, Refuse, ToRoot, Welcome

LOOK_EVERY_S: Final = 1.0


class Rendezvous:
    """Admits nodes one by one.

    Args:
        welcome: for hosts that join, with the root's host in place of theirs.
    """

    def __init__(
        self, control: ControlServer, signals: StopSignals, telemetry: Telemetry, welcome: Welcome
    ) -> None:
        self._control = control
        self._signals = signals
        self._event = telemetry.event
        self._show = telemetry.doing
        self._welcome = welcome
        self._nodes: dict[str, RemoteNode] = {}

    def hosts(self, wanted: int, most: int) -> list[RemoteNode]:
        """Wait until ``wanted`` other hosts have joined and reported whether they reach the run directory.

        Args:
            most: maximum hosts that may join until then.

        Raises:
            Interruption: the user does not want to wait any longer.
        """
        while len(self._nodes) < wanted or any(node.reaches_run is None for node in self._nodes.values()):
            names = [self._welcome.host, *(node.host.name for node in self._nodes.values())]
            self._show(f"{len(names)} of {wanted + 1} hosts are here: {', '.join(names)}")
            for message in self._receive():
                if isinstance(message, Arrive) and self.knows(message):
                    continue
                if isinstance(message, Arrive) and len(self._nodes) < most:
                    self.admit(message)
                elif isinstance(message, Arrive):
                    self.refuse(message)
            for name, node in list(self._nodes.items()):
                node.check()
                if node.lost:
                    del self._nodes[name]
                    self._event(f"{node.host.name} has left again")
        return list(self._nodes.values())

    def ranks(self, hosts: Sequence[Host]) -> list[RemoteNode]:
        """Wait until all ranks of an MPI launcher are connected; rank 0 is the root itself.

        Raises:
            Interruption: the user does not want to wait any longer.
        """
        names = [f"rank-{rank}" for rank in range(1, len(hosts))]
        while missing := [name for name in names if name not in self._nodes]:
            self._show(f"waiting for {len(missing)} of {len(hosts)} ranks, such as {missing[0]}")
            for message in self._receive():
                if isinstance(message, Arrive) and message.node in names:
                    host = hosts[1 + names.index(message.node)]
                    self._nodes[message.node] = RemoteNode(
                        self._control, message.node, host, message.interface, can_kill=False
                    )
        return [self._nodes[name] for name in names]

    def dismiss(self) -> None:
        """Dismiss the hosts that have joined, unless they join the next session."""
        for node in self._nodes.values():
            node.end_job()

    def admit(self, arrival: Arrive, seat: str = "") -> RemoteNode | None:
        """Welcome a host to a seat, or under its own name; None if it is refused."""
        ours = version("tianji")
        if arrival.version != ours:
            reason = f"{arrival.host} has tianji {arrival.version} and the root has {ours}: install the same"
            self._event(f"refused a host: {reason}")
            self._control.send(arrival.node, Refuse(reason=reason))
            return None
        host = Host(seat or self._free_name(arrival.host), tuple(arrival.cores))
        node = RemoteNode(self._control, arrival.node, host, arrival.interface)
        self._nodes[arrival.node] = node
        self._control.send(arrival.node, self._welcome.model_copy(update={"host": host.name}))
        place = f" as {seat}" if seat else ""
        name = arrival.host if seat else host.name
        self._event(f"{name} ({arrival.interface}, {len(host.cores)} cores) has joined{place}")
        return node

    def refuse(self, arrival: Arrive, why: str = "") -> None:
        """Refuse a host that there is no seat for, or for another reason."""
        too_many = f"{arrival.host} came too late, or distribution.hosts is too small"
        self._control.send(arrival.node, Refuse(reason=why or f"the job has all its hosts: {too_many}"))
        self._event(f"{arrival.host} wanted to join and was refused: {why or 'all hosts are there'}")

    def knows(self, arrival: Arrive) -> bool:
        """Whether a host has been welcomed before: it asks again until it hears of that."""
        return arrival.node in self._nodes

    def _free_name(self, wanted: str) -> str:
        """Number hosts of the same name."""
        taken = {self._welcome.host, *(node.host.name for node in self._nodes.values())}
        name, number = wanted, 2
        while name in taken:
            name, number = f"{wanted}#{number}", number + 1
        return name

    def _receive(self) -> list[FromNode]:
        self._control.wait(LOOK_EVERY_S, (self._signals.descriptor,))
        self._signals.clear()
        if self._signals.count:
            raise Interruption
        received = [message for message in self._control.receive() if isinstance(message, FromNode)]
        for message in received:
            if message.node in self._nodes and not isinstance(message, Arrive | Exited):
                self._nodes[message.node].note(message)
        return received


class LateHosts(Observer):
    """Gives empty seats to hosts that come while a job trains; refuses hosts when none is empty."""

    def __init__(self, job: RunningJob, rendezvous: Rendezvous) -> None:
        self._job = job
        self._rendezvous = rendezvous
        self._coming: dict[str, RemoteNode] = {}
        """Hosts that were welcomed and have not answered yet, by node."""

    def on_message(self, message: ToRoot) -> None:
        """Welcome a host, and seat it when it has answered."""
        if isinstance(message, Arrive) and not self._rendezvous.knows(message):
            awaited = {node.host.name for node in self._coming.values()}
            seat = next((seat for seat in self._job.empty_seats if seat not in awaited), None)
            if self._job.outcome is not None:
                self._rendezvous.refuse(message, "the job is ending")
            elif seat is None:
                self._rendezvous.refuse(message)
            elif (node := self._rendezvous.admit(message, seat)) is not None:
                self._coming[message.node] = node
        elif isinstance(message, Present) and message.node in self._coming:
            node = self._coming.pop(message.node)
            node.note(message)
            if self._job.outcome is None:
                self._job.fill_seat(node.host.name, node)
            else:
                node.end_job()

    def on_tick(self, snapshot: Snapshot) -> None:  # noqa: ARG002 - it looks at hosts alone
        """Forget hosts that have left before they answered."""
        for name, node in list(self._coming.items()):
            node.check()
            if node.lost:
                node.end_job()
                del self._coming[name]

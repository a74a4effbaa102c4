"""Waits at the root until every host of the job has joined, before there is a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tianji_cli.plan.plan import Host
from tianji_cli.root.stations import Station, StationLauncher, admit, objection, refuse_late
from tianji_cli.signals import Interruption, StopSignals
from tianji_cli.wire.control import ControlServer
from tianji_cli.wire.messages import Arrive, Ended, FromStation, Refuse, Welcome

LOOK_EVERY_S: Final = 1.0


class Gathering:
    """Admits stations one by one.

    Args:
        control: the root's end of the control channel.
        signals: the user's wish to stop.
        say: tells the user something.
    """

    def __init__(self, control: ControlServer, signals: StopSignals, say: Callable[[str], None]) -> None:
        self._control = control
        self._signals = signals
        self._say = say
        self._launchers: dict[str, StationLauncher] = {}

    def hosts(self, wanted: int, here: Host, welcome: Welcome) -> list[StationLauncher]:
        """Wait until so many other hosts have joined, and have said whether they reach the run directory.

        Raises:
            Interruption: the user does not want to wait any longer.
        """
        while len(self._launchers) < wanted or any(
            launcher.reaches_run is None for launcher in self._launchers.values()
        ):
            for message in self._hear():
                if isinstance(message, Arrive) and len(self._launchers) < wanted:
                    self._admit(message, here, welcome)
                elif isinstance(message, Arrive):
                    self._say(refuse_late(self._control, message))
            for name, launcher in list(self._launchers.items()):
                launcher.mind()
                if launcher.lost:
                    del self._launchers[name]
                    self._say(f"{launcher.station.host.name} has left again")
        return list(self._launchers.values())

    def ranks(self, hosts: Sequence[Host]) -> list[StationLauncher]:
        """Wait until the ranks that an MPI launcher has started are connected; rank 0 is the root itself.

        Args:
            hosts: where each rank is, by rank.

        Raises:
            Interruption: the user does not want to wait any longer.
        """
        names = [f"rank-{rank}" for rank in range(1, len(hosts))]
        while len(self._launchers) < len(names):
            for message in self._hear():
                if isinstance(message, Arrive) and message.station in names:
                    host = hosts[1 + names.index(message.station)]
                    station = Station(message.station, host, message.interface, message.pid)
                    self._launchers[message.station] = StationLauncher(self._control, station, can_kill=False)
        return [self._launchers[name] for name in names]

    def dismiss(self) -> None:
        """Send home whoever has come."""
        for launcher in self._launchers.values():
            launcher.dismiss()

    def _hear(self) -> list[FromStation]:
        self._control.wait(LOOK_EVERY_S, (self._signals.descriptor,))
        self._signals.clear()
        if self._signals.count:
            raise Interruption
        heard = [message for message in self._control.receive() if isinstance(message, FromStation)]
        for message in heard:
            if message.station in self._launchers and not isinstance(message, Arrive | Ended):
                self._launchers[message.station].hear(message)
        return heard

    def _admit(self, arrival: Arrive, here: Host, welcome: Welcome) -> None:
        reason = objection(arrival)
        if reason:
            self._say(f"refused a host: {reason}")
            self._control.send(arrival.station, Refuse(reason=reason))
            return
        names = {here.name, *(launcher.station.host.name for launcher in self._launchers.values())}
        station = admit(arrival, names)
        self._launchers[arrival.station] = StationLauncher(self._control, station)
        self._control.send(arrival.station, welcome.model_copy(update={"host": station.host.name}))
        cores = len(station.host.cores)
        self._say(f"{station.host.name} ({station.interface}, {cores} cores) has joined")

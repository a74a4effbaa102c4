"""Roles, the triggers that decide when they send or receive, and the loop that runs a process's roles."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from tianji_cli.wire.reports import RoleReport, UserReport
from tianji_transports.core import Transport


@dataclass(frozen=True)
class Trigger:
    """A send or a receive, and the moment for it (paper, section 3.1).

    Attributes:
        when: looks at the role only; called before every turn, so it must cost next to nothing.
        do: the send or the receive; never waits, and returns whether it did anything.
    """

    when: Callable[[], bool]
    do: Callable[[], bool]


class Role(ABC):
    """A part of a job with a loop of its own.

    Attributes:
        name: kind of the role, such as ``"actor"``.
        busy_s: seconds in turns and triggers that did something; ``run_in_turns`` counts them.
        meeting: place where the learners of a group meet, at the first of them; else empty.
    """

    name: str
    busy_s: float = 0.0
    meeting: str = ""

    @property
    def triggers(self) -> Sequence[Trigger]:
        """The sends and receives of this role, in the order that the loop checks them."""
        return ()

    @abstractmethod
    def turn(self) -> bool:
        """Do a small piece of work; return False if there was none, so that the process may sleep."""

    def report(self) -> RoleReport | dict[str, Any]:
        """Return the report for the root, five times a second; a user role returns a dict of JSON values."""
        return UserReport()

    def checked_report(self) -> RoleReport:
        """Return a checked report; raises an error that names a part of user code that cannot be sent."""
        return cast("RoleReport", self.report())

    def own_report(self) -> RoleReport:
        """Return the report without the part of user code: it replaces a report that has raised."""
        return cast("RoleReport", self.report())

    @property
    def finished(self) -> str | None:
        """The reason once this role ends the run; None before."""
        return None

    def meet(self, place: str) -> None:  # noqa: B027 - only learners have connections of their own
        """Connect with the other learners of the group, at the place that the first has opened."""

    def allow(self, fragments: int | None) -> None:  # noqa: B027 - only actors begin fragments
        """Limit the number of further fragments; None allows any number."""

    def note_actors(self, actors: Sequence[int]) -> None:  # noqa: B027 - most have no use for them
        """Note which of the group's actors are there, by their numbers: hosts come and go."""

    def adopt_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:  # noqa: B027 - only actors
        """Adopt other hyperparameters of a population member; a learner gets them with a state instead."""

    def peer_lost(self, rank: int, counts_from: int) -> None:  # noqa: B027 - most roles know no rank
        """Handle the death of a peer. One that this role sends to does not come again.

        Args:
            counts_from: fragments of the rank's incarnations before it do not count any more.
        """

    def wind_down(self) -> None:  # noqa: B027 - most roles go on until they stop
        """Prepare for the end: training is over, but messages under way are still to be received."""

    def stop(self) -> None:  # noqa: B027 - most roles leave nothing unfinished
        """Give up unfinished work, and save what must be saved."""

    def settle(self) -> None:  # noqa: B027 - endpoints of built-in roles drain when they close
        """Wait, for some seconds at most, until the receivers have claimed all that was sent."""

    def keep(self) -> None:  # noqa: B027 - most keep nothing, or did so when they stopped
        """Save data for a later session, after the process's last report to the root."""

    def close(self) -> None:  # noqa: B027 - most roles hold nothing
        """Free the role's resources. Called once, after ``stop`` or an error."""


def rejected_by(transport: Transport) -> tuple[int, str]:
    """Return the number of frames that an endpoint has rejected, and the reason of the first."""
    return transport.counters.rejected, transport.counters.first_rejection


CHECK_EVERY_S: Final = 0.02
"""Seconds between two checks of the control channel while the roles are busy."""

SLEEP_S: Final = 0.25
"""Longest sleep; messages, credits and the control channel end it sooner."""


class RoleError(Exception):
    """A role raised an error."""

    def __init__(self, role: Role, error: BaseException) -> None:
        self.role = role
        self.error = error
        super().__init__(f"{role.name} raised {type(error).__name__}")


class ControlHandler(Protocol):
    """Handles the control channel and signals, between two rounds of turns."""

    def handle(self) -> bool:
        """Handle the waiting messages without waiting for others; return False to end the loop."""


def run_in_turns(roles: Sequence[Role], handler: ControlHandler, sleep: Callable[[float], object]) -> None:
    """Run every role's due triggers and its turn, over and over.

    Args:
        roles: roles in the order of their turns.
        handler: called every ``CHECK_EVERY_S``, and before each sleep.
        sleep: sleeps for at most so many seconds, or until there may be work.

    Raises:
        RoleError: names the role that raised.
    """
    triggers = [role.triggers for role in roles]
    checked = 0.0
    while True:
        any_worked = False
        for role, of_role in zip(roles, triggers, strict=True):
            began = time.perf_counter()
            worked = False
            try:
                # Triggers first: a role that was asleep begins its turn with the newest data.
                for trigger in of_role:
                    if trigger.when():
                        worked |= trigger.do()
                worked |= role.turn()
            except (Exception, SystemExit) as error:
                raise RoleError(role, error) from error
            if worked:
                role.busy_s += time.perf_counter() - began
                any_worked = True
        now = time.perf_counter()
        if not any_worked or now - checked > CHECK_EVERY_S:
            checked = now
            if not handler.handle():
                return
        if not any_worked:
            sleep(SLEEP_S)

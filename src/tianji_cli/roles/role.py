"""Roles, the triggers that decide when they send or receive, and the loop that runs those of a process."""

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
        when: looks at the role only; asked before every turn, so it must cost next to nothing.
        do: the send or the receive; never waits, and returns whether there was one.
    """

    when: Callable[[], bool]
    do: Callable[[], bool]


class Role(ABC):
    """A part of a job that loops by itself.

    Attributes:
        name: what it is, such as ``"actor"``.
        busy_s: seconds spent in turns and triggers that did something; kept by the loop that runs the role.
    """

    name: str
    busy_s: float = 0.0

    @property
    def triggers(self) -> Sequence[Trigger]:
        """The sends and receives of this role, in the order they are looked at."""
        return ()

    @abstractmethod
    def turn(self) -> bool:
        """Do a small piece of work; False if there was none: the process may sleep until a message comes."""

    def report(self) -> RoleReport | dict[str, Any]:
        """What goes to the root five times a second; of a user role it is a dict of JSON values."""
        return UserReport()

    def checked_report(self) -> RoleReport:
        """The report, which can be sent; raises an error that names what of a user's part of it cannot be."""
        return cast("RoleReport", self.report())

    def own_report(self) -> RoleReport:
        """The report without what a user's part says: once that has raised, this goes to the root instead."""
        return cast("RoleReport", self.report())

    @property
    def finished(self) -> str | None:
        """Why this role ends the run, once it does."""
        return None

    def allow(self, fragments: int | None) -> None:  # noqa: B027 - only actors begin fragments
        """Begin no more than so many further fragments; None: any number."""

    def adopt_hyperparameters(self, hyperparameters: Mapping[str, Any]) -> None:  # noqa: B027 - only actors
        """Go on with other hyperparameters of a member of a population; learners get theirs with a state."""

    def wind_down(self) -> None:  # noqa: B027 - most roles go on until they stop
        """Prepare for the end: training is over, and messages under way are still to be received."""

    def stop(self) -> None:  # noqa: B027 - most roles leave nothing unfinished
        """Give up what is unfinished, and keep what must be kept."""

    def keep(self) -> None:  # noqa: B027 - most keep nothing, or did so when they stopped
        """Save what a later session may use: all roles have stopped, and the root knows it."""

    def close(self) -> None:  # noqa: B027 - most roles hold nothing
        """Free what the role holds. Called once, after ``stop`` or an error."""


def rejected_by(transport: Transport) -> tuple[int, str]:
    """Frames that an endpoint has rejected, and the reason of the first of them: for a role's report."""
    return transport.counters.rejected, transport.counters.first_rejection


CHECK_EVERY_S: Final = 0.02
"""Seconds between two looks at the control channel while the roles are busy."""

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
        """Handle the messages that are there; never wait. False ends the loop."""


def run_in_turns(roles: Sequence[Role], handler: ControlHandler, sleep: Callable[[float], object]) -> None:
    """Let every role pull its triggers and take a turn, over and over.

    Args:
        roles: take their turns in this order.
        handler: is asked every ``CHECK_EVERY_S``, and before each sleep.
        sleep: sleeps for so many seconds at most, or until there may be something to do.

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

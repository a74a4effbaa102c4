"""A role: a loop of its own, and triggers that decide when it sends or receives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
        """Do a small piece of work.

        Returns:
            False if there was nothing to do: the process may sleep until a message comes.
        """

    def report(self) -> RoleReport | dict[str, Any]:
        """What goes to the root five times a second; of a user role it is a dict of JSON values."""
        return UserReport()

    @property
    def finished(self) -> str | None:
        """Why this role ends the run, once it does."""
        return None

    def allow(self, fragments: int | None) -> None:  # noqa: B027 - only actors begin fragments
        """Begin no more than so many further fragments; None: any number."""

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

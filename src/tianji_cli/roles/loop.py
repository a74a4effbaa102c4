"""Runs the roles of one process in turn, until it is told to stop or one of them raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tianji_cli.roles.role import Role

CHECK_EVERY_S: Final = 0.02
"""Seconds between two looks at the control channel while the roles are busy."""

SLEEP_S: Final = 0.25
"""Longest sleep; messages, credits and the control channel end it sooner."""


class RoleError(Exception):
    """A role raised.

    Attributes:
        role: which one.
        error: what it raised.
    """

    def __init__(self, role: Role, error: BaseException) -> None:
        self.role = role
        self.error = error
        super().__init__(f"{role.name} raised {type(error).__name__}")


class ControlHandler(Protocol):
    """Handles the control channel and signals, between two rounds of turns."""

    def attend(self) -> bool:
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
            if not handler.attend():
                return
        if not any_worked:
            sleep(SLEEP_S)

"""Runs the roles of one process in turn, until it is told to stop or one of them raises."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tianji_cli.roles.role import Role

ATTEND_EVERY_S: Final = 0.02
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


class Attendant(Protocol):
    """What a loop turns to between two rounds of turns: the control channel, signals."""

    def attend(self) -> bool:
        """Hear and answer whatever there is; never waits. False ends the loop."""


def run_in_turns(roles: Sequence[Role], handler: Attendant, sleep: Callable[[float], object]) -> None:
    """Let every role pull its triggers and take a turn, over and over.

    Args:
        roles: take their turns in this order.
        handler: is asked every ``ATTEND_EVERY_S``, and before each sleep.
        sleep: sleeps for so many seconds at most, or until there may be something to do.

    Raises:
        RoleError: a role raised, and which.
    """
    triggers = [role.triggers for role in roles]
    attended = 0.0
    while True:
        anyone_worked = False
        for role, of_role in zip(roles, triggers, strict=True):
            began = time.perf_counter()
            worked = False
            try:
                # Triggers first: who was asleep begins its turn with the newest there is.
                for trigger in of_role:
                    if trigger.when():
                        worked |= trigger.do()
                worked |= role.turn()
            except (Exception, SystemExit) as error:
                raise RoleError(role, error) from error
            if worked:
                role.busy_s += time.perf_counter() - began
                anyone_worked = True
        now = time.perf_counter()
        if not anyone_worked or now - attended > ATTEND_EVERY_S:
            attended = now
            if not handler.attend():
                return
        if not anyone_worked:
            sleep(SLEEP_S)

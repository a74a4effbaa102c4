"""Ctrl-C and SIGTERM outside of a running job: both end the command with status 130.

Imported before everything else, so it imports next to nothing.
"""

from __future__ import annotations

import signal
from typing import Final, NoReturn

INTERRUPTED: Final = 130
"""Exit status of a command that the user interrupted."""


class Interruption(BaseException):
    """The user wants the command to end. Not a KeyboardInterrupt, which typer gives a meaning of its own."""


def raise_signals() -> None:
    """From now on SIGINT and SIGTERM raise ``Interruption``."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise)


def ignore_signals() -> None:
    """Let nothing disturb a command that is as good as over."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _raise(_number: int, _frame: object) -> NoReturn:
    raise Interruption

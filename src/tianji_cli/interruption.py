"""Ctrl-C and SIGTERM outside of a running job: both end the command with status 130.

Imported before everything else, so it imports next to nothing.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

INTERRUPTED: Final = 130
"""Exit status of a command that the user interrupted."""

AGAIN_S: Final = 0.001
"""Seconds until an interruption that was swallowed is raised once more."""


_raised = False
"""There was an interruption. It matters only where the exception did not come through."""


class Interruption(BaseException):
    """The user wants the command to end. Not a KeyboardInterrupt, which typer gives a meaning of its own."""


def raise_signals() -> None:
    """From now on SIGINT and SIGTERM raise ``Interruption``.

    Every import runs callbacks of weak references, and there, as in a finalizer, Python swallows what is
    raised. An alarm then raises it once more.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise)
    signal.signal(signal.SIGALRM, _raise)
    sys.unraisablehook = _raise_again


def raise_swallowed() -> None:
    """Raise an interruption once more that a library has swallowed without a word, as code in C may do."""
    if _raised:
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # The alarm that would raise it, too.
        raise Interruption


def ignore_signals() -> None:
    """Let nothing disturb a command that is as good as over."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _raise_again(swallowed: UnraisableHookArgs) -> None:
    if isinstance(swallowed.exc_value, Interruption):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(swallowed)


def _raise(_number: int, _frame: object) -> NoReturn:
    global _raised  # noqa: PLW0603 - signals are the process's, too
    _raised = True
    raise Interruption

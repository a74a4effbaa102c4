"""Signals, and when the command began: Ctrl-C, SIGTERM and a closed terminal.

Outside of a running job they raise ``Interruption``, which ends the command with status 130; in a job the
root's loop waits for them (``StopSignals``). Imported before everything else, so it imports next to nothing.
"""

from __future__ import annotations

import atexit
import faulthandler
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


BEGAN_S: Final = time.monotonic()
"""``time.monotonic`` of the command's beginning. The process may be older: a shell's that became this one."""

STOP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""What asks a job to stop. They often reach its whole process group: it is the root's to act on them."""

SAME_S: Final = 0.5
"""Signals closer together are one request: `timeout` and others signal a process and then its whole group."""

INTERRUPTED: Final = 130
"""Exit status of a command that the user interrupted."""

AGAIN_S: Final = 0.001
"""Seconds until an interruption that was swallowed is raised once more."""

MOST_S: Final = 1e8
"""Longest that a timer takes; what is infinite is three years."""

LEAVE_S: Final = 0.5
"""How long a process that is over waits for threads that are left."""

DEAF_S: Final = 60.0
"""How long code in C that has not heard an alarm may go on."""


_raised = False
"""There was an interruption. It matters only where the exception did not come through."""
_last_s = float("-inf")
"""When the newest one came."""


class HangsError(BaseException):
    """A call does not return. Environments and agents may catch any Exception."""


class Interruption(BaseException):
    """The user wants the command to end. Not a KeyboardInterrupt, which typer gives a meaning of its own."""


def raise_signals() -> None:
    """From now on signals that ask to stop raise ``Interruption``; those that come at once raise one.

    Every import runs callbacks of weak references, and there, as in a finalizer, Python swallows what is
    raised. An alarm then raises it once more.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise)
    signal.signal(signal.SIGALRM, _raise)
    sys.unraisablehook = _raise_again


def raise_swallowed() -> None:
    """Raise an interruption once more that a library has swallowed without a word, as code in C may do."""
    if _raised:
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # The alarm that would raise it, too.
        raise Interruption


@contextmanager
def held_back() -> Iterator[None]:
    """Let no signal interrupt what has to be done as a whole; it comes when that is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def alarm(after_s: float) -> Iterator[None]:
    """Interrupt what is within, as Ctrl-C does, after so many seconds; one alarm at a time.

    Raises:
        HangsError: the time is up.
    """

    def ring(_number: int, _frame: object) -> NoReturn:
        faulthandler.cancel_dump_traceback_later()  # Of ``limit``: it was heard, and ends in order.
        raise_swallowed()
        raise HangsError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(after_s, MOST_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def limit(after_s: float) -> Iterator[None]:
    """``alarm``, and ``DEAF_S`` later the end of the command, with status 1 and where it was.

    Python hears of a signal between two of its own instructions: no exception ends code in C that hangs. The
    time in which the command is suspended counts.

    Raises:
        HangsError: the time is up.
    """
    faulthandler.dump_traceback_later(min(after_s + DEAF_S, MOST_S), file=2, exit=True)
    try:
        with alarm(after_s):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def ignore_signals() -> None:
    """Ignore signals from now on: the command is as good as over."""
    for number in (*STOP_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def leave_threads() -> None:
    """Have the interpreter's end wait for no thread longer than ``LEAVE_S``; call this last of all.

    It joins all threads that are no daemons, such as one of an environment that its ``close`` does not stop.
    What an alarm raises there ends the wait, as a Ctrl-C would, and nothing else.
    """
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        sys.unraisablehook = lambda _swallowed: None
        signal.signal(signal.SIGALRM, _raise)
        signal.setitimer(signal.ITIMER_REAL, LEAVE_S)
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.0)  # Then the wait is over.


def _raise_again(swallowed: UnraisableHookArgs) -> None:
    if isinstance(swallowed.exc_value, Interruption):
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)
    else:
        sys.__unraisablehook__(swallowed)


def _raise(number: int, _frame: object) -> None:
    global _raised, _last_s
    now = time.monotonic()
    if number != signal.SIGALRM and now - _last_s < SAME_S:
        return  # Taken for a second one, it would leave no time to those who are saving.
    _raised, _last_s = True, now
    raise Interruption


class StopSignals:
    """While entered, signals that ask the job to stop are counted, not raised, and wake a poll.

    Attributes:
        count: requests to stop so far.
        last: the newest one, in words.

    Raises:
        Interruption: on entering, if one came before and was swallowed.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
        self._last_s = float("-inf")
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._before: dict[signal.Signals, Any] = {}
        self._wakeup_before = -1

    @property
    def descriptor(self) -> int:
        """Readable after a signal."""
        return self._reader.fileno()

    def clear(self) -> None:
        """Make ``descriptor`` unreadable until the next signal."""
        try:
            self._reader.recv(4096)
        except BlockingIOError:
            return

    def __enter__(self) -> Self:
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background job
                self._before[number] = signal.signal(number, self._on_signal)
        try:
            raise_swallowed()
        except Interruption:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last_s < SAME_S:
            return
        self._last_s = now
        self.count += 1
        self.last = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name

"""Signals that stop a command (Ctrl-C, SIGTERM, a closed terminal), alarms, and the command's start time.

Outside of a running job a signal raises ``Interruption``, which ends the command with status 130; in a job
the root's loop waits for signals (``StopSignals``). Every command imports this module first, so it imports
next to nothing.
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
"""``time.monotonic`` at the command's start. The process may be older: a shell may have become this one."""

STOP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""Signals that ask a job to stop. They often reach its whole process group; only the root acts on them."""

SAME_S: Final = 0.5
"""Signals closer together, in seconds, are one request: `timeout` signals a process and then its group."""

INTERRUPTED: Final = 130
"""Exit status of a command that the user interrupted."""

AGAIN_S: Final = 0.001
"""Seconds until a swallowed interruption is raised once more."""

MOST_S: Final = 1e8
"""Maximum seconds of a timer; an infinite time becomes three years."""

LEAVE_S: Final = 0.5
"""Maximum seconds that an ending process waits for remaining threads."""

C_CALL_GRACE_S: Final = 60.0
"""Seconds that C code may go on after an alarm that it has not heard."""


_raised = False
"""Whether there was an interruption; matters only if a library has swallowed the exception."""
_last_s = float("-inf")
"""``time.monotonic`` of the newest interruption."""


class HangsError(BaseException):
    """A call does not return. Environments and agents may catch any Exception."""


class Interruption(BaseException):
    """The user wants the command to end. Not a KeyboardInterrupt, which typer gives a meaning of its own."""


def raise_signals() -> None:
    """Make signals that ask to stop raise ``Interruption``; signals close together raise one.

    Every import runs callbacks of weak references, and there, as in a finalizer, Python swallows exceptions.
    An alarm then raises the interruption once more.
    """
    for number in STOP_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _raise)
    signal.signal(signal.SIGALRM, _raise)
    sys.unraisablehook = _raise_again


def raise_swallowed() -> None:
    """Raise an interruption once more if a library has swallowed it silently, as C code may do."""
    if _raised:
        signal.setitimer(signal.ITIMER_REAL, 0.0)  # Cancels the alarm that would raise it, too.
        raise Interruption


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back signals while the body runs; they arrive at its end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*STOP_SIGNALS, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def alarm(after_s: float) -> Iterator[None]:
    """Interrupt the body after so many seconds, as Ctrl-C does; one alarm at a time.

    Raises:
        HangsError: the time is up.
    """

    def ring(_number: int, _frame: object) -> NoReturn:
        faulthandler.cancel_dump_traceback_later()  # Set by ``limit``: the alarm was heard.
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
    """Interrupt the body like ``alarm``; end the command with a traceback ``C_CALL_GRACE_S`` later, status 1.

    Python handles a signal between two of its own instructions, so no exception ends C code that hangs. The
    time in which the command is suspended counts.

    Raises:
        HangsError: the time is up.
    """
    faulthandler.dump_traceback_later(min(after_s + C_CALL_GRACE_S, MOST_S), file=2, exit=True)
    try:
        with alarm(after_s):
            yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def ignore_signals() -> None:
    """Ignore signals from now on: the command is about to end."""
    for number in (*STOP_SIGNALS, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def leave_threads() -> None:
    """Limit to ``LEAVE_S`` how long the interpreter waits for threads at its end; call this last of all.

    The interpreter joins all threads that are no daemons, such as one that an environment's ``close`` does
    not stop. The exception of an alarm ends that wait, as a Ctrl-C would, and nothing else.
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
        return  # A second interruption would leave no time to save.
    _raised, _last_s = True, now
    raise Interruption


class StopSignals:
    """Counts the signals that ask the job to stop, and wakes a poll; raises none while entered.

    Attributes:
        count: requests to stop so far.
        last: name of the newest one.

    Raises:
        Interruption: on entering, if an earlier one was swallowed.
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
        """File descriptor that is readable after a signal."""
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

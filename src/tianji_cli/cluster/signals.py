"""Ctrl-C, SIGTERM and a closed terminal as something the root's loop can wait for."""

from __future__ import annotations

import signal
import socket
import time
from types import FrameType, TracebackType
from typing import Any, Final, Self

from tianji_cli.interruption import Interruption, raise_swallowed

STOP_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
"""What asks a job to stop. They often reach its whole process group: it is the root's to act on them."""

SAME_S: Final = 0.5
"""Signals closer together are one wish: `timeout` and others signal a process and then its whole group."""


class StopSignals:
    """While entered, signals that ask the job to stop are counted, not raised, and wake a poll.

    Attributes:
        count: wishes to stop so far.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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

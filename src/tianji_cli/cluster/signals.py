"""Ctrl-C and SIGTERM as something the root's loop can wait for."""

from __future__ import annotations

import signal
import socket
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """While entered, SIGINT and SIGTERM are counted, not raised, and wake whoever polls ``descriptor``."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""
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
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._on_signal)
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
        self.count += 1
        self.last = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name

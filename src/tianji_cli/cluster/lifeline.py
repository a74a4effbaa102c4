"""What ties a worker's life to its root's: the kernel signals the worker the moment the root is gone.

The worker holds the reading end of a pipe that only the root can write to. With ``O_ASYNC`` the
kernel sends SIGIO when the last writer has closed it, which a SIGKILL of the root does too.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
from typing import Final

SAVE_LIMIT_S: Final = 20
"""How long an orphan may take to save what it has; the kernel ends it then."""


class Lifeline:
    """Watches the root from a worker.

    Args:
        saves: the worker has something to save: it gets a moment for it. Otherwise the kernel ends
            it where it stands (SIGIO's default), even inside a call that never returns.
    """

    def __init__(self, *, saves: bool) -> None:
        self.cut = False
        parent = multiprocessing.parent_process()
        assert parent is not None, "a worker is started by a root"
        if saves:
            signal.signal(signal.SIGIO, self._on_cut)
        descriptor = int(parent.sentinel)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        if not parent.is_alive():  # It died before the kernel was asked to tell.
            os.kill(os.getpid(), signal.SIGIO)

    def _on_cut(self, _number: int, _frame: object) -> None:
        self.cut = True
        signal.alarm(SAVE_LIMIT_S)  # SIGALRM's default ends the process.

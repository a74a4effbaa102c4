"""What ties a worker's life to its root's: the kernel signals the worker the moment the root is gone.

Every worker inherits the reading end of a pipe whose writing end only the root has. With ``O_ASYNC`` the
kernel sends SIGIO when the writing end is closed, which a SIGKILL of the root does too.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
from typing import Final

SAVE_LIMIT_S: Final = 20
"""How long an orphan may take to save what it has; the kernel ends it then."""


class Lifeline:
    """Watches the root from a worker.

    Args:
        inherited: descriptor of the pipe; closed here.
        saves: the worker has something to save: it gets a moment for it. Otherwise the kernel ends
            it where it stands (SIGIO's default), even inside a call that never returns.
    """

    def __init__(self, inherited: int, *, saves: bool) -> None:
        self.cut = False
        if saves:
            signal.signal(signal.SIGIO, self._on_cut)
        # Whom SIGIO goes to belongs to the open file, which all workers share; opened anew it is our own.
        descriptor = os.open(f"/proc/self/fd/{inherited}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.close(inherited)
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
        poller = select.poll()
        poller.register(descriptor, 0)
        if poller.poll(0):  # It was cut before the kernel was asked to tell.
            os.kill(os.getpid(), signal.SIGIO)

    def _on_cut(self, _number: int, _frame: object) -> None:
        self.cut = True
        signal.alarm(SAVE_LIMIT_S)  # SIGALRM's default ends the process.

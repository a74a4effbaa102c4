"""The interface of all observers of a running job."""

from __future__ import annotations

import math

from tianji_cli.launch.pool import WorkerProcess
from tianji_cli.telemetry.snapshot import Snapshot
from tianji_cli.wire.messages import ToRoot


class Observer:
    """Listens to a job while it runs; each method does nothing here, and observers override what they need.

    The root calls the methods from its loop, one observer after the other; no method may block. An observer
    that decides something about the job has a ``RunningJob`` and calls its ``finish`` or ``fail``.

    Attributes:
        deadline: time of ``time.monotonic`` at which ``on_turn`` has work even without a message.
    """

    deadline: float = math.inf

    def on_begin(self) -> None:
        """Training begins: all processes that it needs have registered, and none has begun yet."""

    def on_message(self, message: ToRoot) -> None:
        """A process of this job has sent a message, which the root has recorded already."""

    def on_exit(self, worker: WorkerProcess) -> None:
        """A process has ended; the root has decided already what becomes of its rank."""

    def on_turn(self) -> None:
        """The root has handled all messages that were there; called only until training ends."""

    def on_tick(self, snapshot: Snapshot) -> None:
        """Some time has passed: a second, or less in the beginning."""

    def on_wind_down(self) -> None:
        """Training is over, and the processes stop from now on."""

    def on_end(self) -> None:
        """All processes have ended; the summary is not written yet."""

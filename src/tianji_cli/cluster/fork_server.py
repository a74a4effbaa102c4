"""The fork server of a job: imports once what is slow to import, then makes a worker of each assignment.

Started by ``launcher`` as ``python -m tianji_cli.cluster.fork_server CHANNEL LIFELINE``, two descriptors.
Lines of JSON go over the channel: assignments come in, ``Ready``, ``Started``, ``Refused`` and ``Ended``
go out. The server ends as soon as the other end of the channel does, and so with its root.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import socket
import sys
from collections import deque
from typing import Annotated, Final, Literal

import setproctitle
from pydantic import BaseModel, Field, TypeAdapter

from tianji_cli.cluster.fresh_worker import turn_into
from tianji_cli.cluster.worker import Assignment, run_worker

PRELOAD: Final = "tianji_cli.cluster.preload"


class Ready(BaseModel):
    """Everything is imported; from now on a worker takes milliseconds."""

    kind: Literal["ready"] = "ready"


class Started(BaseModel):
    """The worker of the ``number``-th assignment runs."""

    kind: Literal["started"] = "started"
    number: int
    pid: int


class Refused(BaseModel):
    """The system makes no further process."""

    kind: Literal["refused"] = "refused"
    number: int
    cause: str


class Ended(BaseModel):
    """A worker has ended; ``status`` is minus a signal's number if one killed it."""

    kind: Literal["ended"] = "ended"
    number: int
    status: int


Notice = Ready | Started | Refused | Ended
NOTICE: Final[TypeAdapter[Notice]] = TypeAdapter(Annotated[Notice, Field(discriminator="kind")])


class ForkServer:
    """Makes workers and waits for their ends.

    Args:
        channel: to the launcher.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._received = b""
        self._requests: deque[bytes] = deque()
        self._requested = 0
        self._workers: dict[int, tuple[int, int]] = {}
        self._poller = select.poll()
        self._poller.register(channel, select.POLLIN)

    def run(self) -> Assignment | None:
        """Serve until the launcher is gone.

        Returns:
            In a worker its assignment; in the server, at its end, None.
        """
        try:
            self._say(Ready())
            while self._wait():
                while self._requests:
                    assignment = self._make_worker(self._requests.popleft())
                    if assignment is not None:
                        return assignment
        except (BrokenPipeError, ConnectionResetError):  # The root is dead.
            pass
        return None

    def _wait(self) -> bool:
        """Wait for requests and for ends; False once nobody is there to ask for anything."""
        for descriptor, _ in self._poller.poll():
            if descriptor in self._workers:
                self._bury(descriptor)
                continue
            data = self._channel.recv(1 << 16)
            if not data:
                return False
            *lines, self._received = (self._received + data).split(b"\n")
            self._requests.extend(lines)
        return True

    def _make_worker(self, request: bytes) -> Assignment | None:
        number, self._requested = self._requested, self._requested + 1
        try:
            pid = os.fork()
        except OSError as cause:
            self._say(Refused(number=number, cause=cause.strerror or str(cause)))
            return None
        if pid == 0:
            # A worker that held the channel would hide the server's end from the root.
            self._channel.close()
            for descriptor in self._workers:
                os.close(descriptor)
            return Assignment.decode(request)
        descriptor = os.pidfd_open(pid)
        self._workers[descriptor] = number, pid
        self._poller.register(descriptor, select.POLLIN)
        self._say(Started(number=number, pid=pid))
        return None

    def _bury(self, descriptor: int) -> None:
        self._poller.unregister(descriptor)
        os.close(descriptor)
        number, pid = self._workers.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        self._say(Ended(number=number, status=os.waitstatus_to_exitcode(status)))

    def _say(self, notice: Notice) -> None:
        self._channel.sendall(notice.model_dump_json().encode() + b"\n")


def main() -> None:
    """Serve; in the workers that come of it, work."""
    channel, lifeline = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    channel.set_inheritable(False)
    os.set_inheritable(lifeline, False)
    setproctitle.setproctitle("tianji: fork server")
    importlib.import_module(PRELOAD)
    # Workers share what is imported, and need not take it apart when they end, which takes half a second.
    gc.collect()
    gc.freeze()
    assignment = ForkServer(channel).run()
    if assignment is None:
        return
    if assignment.fresh:
        turn_into(assignment, lifeline)
    run_worker(assignment, lifeline)


if __name__ == "__main__":
    main()

"""The process of a fork server, as the process that starts it sees it: begun, killed, described.

Imports next to nothing: `tianji train` starts a server before it imports the rest of itself, which takes less
time than torch does.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import AbstractContextManager
from tempfile import TemporaryFile

from tianji_cli.errors import ProcessExit
from tianji_cli.launch.children import last_words
from tianji_cli.signals import STOP_SIGNALS


class ServerProcess(AbstractContextManager["ServerProcess"]):
    """Owns a fork server, the socket to it, and the pipe whose end tells workers that their root is dead.

    Args:
        preload: it imports at once what forked workers share, and not only when a job asks for such workers.

    Attributes:
        channel: socket to the server; it never blocks.

    Raises:
        OSError: the server cannot be started.
    """

    def __init__(self, *, preload: bool = False) -> None:
        self._output = TemporaryFile()  # noqa: SIM115 - open as long as the server
        self.channel, theirs = socket.socketpair()
        self.channel.setblocking(False)
        watched, alive = os.pipe()
        self._root_alive = open(alive, "wb", 0)  # noqa: SIM115 - likewise
        command = [sys.executable, "-P", "-m", "tianji_cli.launch.fork_server"]
        # Blocked signals stay blocked over fork and exec: a signal that stops the job reaches the whole
        # process group, and must not end the server, which alone learns how workers end.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno()), str(watched), *(["preload"] if preload else [])],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output,
                    stderr=self._output,
                    pass_fds=(theirs.fileno(), watched),
                )
        except BaseException:
            self._free()
            raise
        finally:
            os.close(watched)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def wait(self) -> ProcessExit:
        """Wait for the server's end; returns it with the server's last output."""
        return ProcessExit(status=self._process.wait(), last_words=last_words(self._output))

    def kill(self) -> None:
        """End the server at once; its workers live on."""
        self._process.kill()
        self._process.wait()

    def end_workers(self) -> None:
        """End the workers, as the death of this process would."""
        self._root_alive.close()

    def close(self) -> None:
        """End server and workers; a second call does nothing."""
        self.kill()
        self._free()

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def _free(self) -> None:
        self._root_alive.close()
        self.channel.close()
        self._output.close()

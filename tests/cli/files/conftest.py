"""Processes to kill while they write."""

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

NURSERY = """
import os, sys
{code}
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        write(*line.split())
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("dead", flush=True)
"""


class Nursery:
    """A process that forks writers, all of which are killed.

    Args:
        code: Python that defines ``write(*arguments)``, which never returns.
    """

    def __init__(self, code: str) -> None:
        command = [sys.executable, "-c", NURSERY.format(code=code)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._says() == "ready"

    def kill_a_writer(self, after_s: float, *arguments: object) -> None:
        assert self._process.stdin is not None
        print(*arguments, file=self._process.stdin, flush=True)
        pid = int(self._says())
        time.sleep(after_s)  # Any moment will do.
        os.kill(pid, signal.SIGKILL)
        assert self._says() == "dead"

    def await_a_writer_s_death(self, *arguments: object) -> None:
        """Let a writer run that kills itself."""
        assert self._process.stdin is not None
        print(*arguments, file=self._process.stdin, flush=True)
        int(self._says())
        assert self._says() == "dead"

    def close(self) -> None:
        self._process.communicate()

    def _says(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture
def nursery() -> Iterator[Callable[[str], Nursery]]:
    opened: list[Nursery] = []

    def open_nursery(code: str) -> Nursery:
        opened.append(Nursery(code))
        return opened[-1]

    yield open_nursery
    for one in opened:
        one.close()


@pytest.fixture
def moments() -> Iterator[float]:
    """Seconds to wait before each kill."""
    rng = random.Random(7)
    return (rng.uniform(0.0, 0.02) for _ in itertools.count())

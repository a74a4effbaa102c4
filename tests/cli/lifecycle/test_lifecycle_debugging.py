"""A `breakpoint()` in an environment finds the terminal of the job."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from cli.lifecycle.conftest import TIANJI
from cli.sessions import in_session, kill_session

STOPS = """
import gymnasium, os

class Stops(gymnasium.Wrapper):
    where = "{where}"

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        self.stop("building")

    def step(self, action):
        self.stop("training")
        return self.env.step(action)

    def stop(self, at):
        if at == self.where and not os.path.exists("stopped"):
            open("stopped", "w").close()
            breakpoint()
"""

ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def converse(descriptor: int, answers: list[bytes]) -> Iterable[bytes]:
    """Read a terminal to its end, and answer each prompt of the debugger."""
    seen = b""
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:  # Linux answers EIO once the other side has closed
            return
        yield data
        seen += data
        if seen.endswith(b"(Pdb) "):
            os.write(descriptor, answers.pop(0))
            seen = b""


@pytest.mark.parametrize(
    ("where", "transport"),
    [
        ("training", "inproc"),
        pytest.param("training", "shm", marks=pytest.mark.soak),
        pytest.param("building", "shm", marks=pytest.mark.soak),
    ],
)
def test_a_breakpoint_of_an_environment_is_debugged_at_the_terminal(
    workplace: Any, where: str, transport: str
) -> None:
    workplace.module(STOPS.replace("{where}", where))
    told = {"environment": {"type": "my_env:Stops", "id": ""}, "distribution": {"transport": transport}}
    command = [str(TIANJI), "train", str(workplace.config(told)), "--out", "out", "--quiet"]
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", ON_TERMINAL, *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        cwd=workplace.place,
        start_new_session=True,
        env=os.environ | {"TMPDIR": str(workplace.place / "tmp")},
    )
    os.close(theirs)
    try:
        shown = b"".join(converse(ours, [b"p self.where * 2\n", b"c\n"])).decode()
        assert child.wait(timeout=120) == 0, shown
        assert f"{where}{where}" in shown
        workplace.until(lambda: not in_session(child.pid), "all of its processes end")
    finally:
        os.close(ours)
        kill_session(child.pid)

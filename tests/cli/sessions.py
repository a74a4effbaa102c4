"""Commands that a test starts in a session of their own: who lives in it, and what they leave behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli.warm import TIANJI, WarmCommand, WarmCommands

SHM = Path("/dev/shm")
PATIENCE_S = 120.0
"""No claim is about speed: this only keeps a test that fails from taking forever."""
POLL_S = 0.03
"""A look at all processes takes milliseconds, and many tests look side by side."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """Poll for what another process does."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(POLL_S)
    pytest.fail(f"{what}: not within {PATIENCE_S:g} s")


def fill_disk(place: Path) -> Path:
    """Write a file until a file system has no room for more; removing the file makes it again."""
    filler = place / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 512)
    return filler


def in_session(session: int) -> dict[int, str]:
    """Living processes of a session: pid -> title."""
    found = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                fields = (place / "stat").read_text().rpartition(")")[2].split()
                # A first thread that is over leaves a zombie while others still hold files and locks.
                living = fields[0] != "Z" or len(list((place / "task").iterdir())) > 1
                if living and int(fields[3]) == session:
                    title = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    found[int(place.name)] = title
    return found


def kill_session(session: int) -> None:
    """Kill every process of a session."""
    for pid in in_session(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stale_shared_memory() -> set[str]:
    """Names of jobs of this user that no living process holds."""
    stems = {path.name[: len(f"tianji-{os.getuid()}-") + 12] for path in SHM.glob(f"tianji-{os.getuid()}-*")}
    stale = set()
    for stem in stems:
        try:
            descriptor = os.open(SHM / f"{stem}.page", os.O_RDWR)
        except FileNotFoundError:
            if list(SHM.glob(f"{stem}*")):
                stale.add(stem)
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stale.add(stem)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)
    return stale


Started = subprocess.Popen[str] | WarmCommand
Start = Callable[..., Started]


@contextlib.contextmanager
def commands(*words: str, cwd: Path, warm: WarmCommands | None = None) -> Iterator[Start]:
    """Let `tianji WORDS...` be started, each in a session of its own, which is empty at the end.

    Args:
        warm: what begins them, unless a launcher does; a shell's way if None.
    """
    started: list[Started] = []
    stale = stale_shared_memory()

    def begin(*arguments: str, launcher: Sequence[str] = ()) -> Started:
        environment = {**os.environ, "COLUMNS": "200"}
        if warm is not None and not launcher:
            started.append(warm.begin_kept([*words, *arguments], cwd, environment))
            return started[-1]
        process = subprocess.Popen(
            [*launcher, str(TIANJI), *words, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        kill_session(process.pid)
        process.communicate()
    assert stale_shared_memory() <= stale

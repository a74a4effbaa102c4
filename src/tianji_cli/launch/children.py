"""Child processes that run TianJi's own modules: how they begin, and how they end, whatever happens.

A child begins here, too: ``python -P -m tianji_cli.launch.children PATH MODULE ...`` runs a module as if it
were the program, but finds other modules where its parent finds them.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from tempfile import TemporaryFile
from typing import IO, Final

PR_SET_PDEATHSIG: Final = 1
"""Of Linux's prctl.h."""
LAST_LINES: Final = 5
LAST_BYTES: Final = 4096
"""Of what a child wrote to its standard error that are shown: the last ones."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that came to its end.

    Attributes:
        status: with which it exited; minus a signal's number if one killed it.
        output: what it wrote to its standard output.
        last_words: the last lines that it wrote to its standard error; its status if there are none.
    """

    status: int
    output: str
    last_words: str


def python_command(module: str, *arguments: str) -> list[str]:
    """Command that runs a module of TianJi's, and finds all others where this process does.

    Python by itself would look in the working directory first, where a user's ``queue.py`` would stand in
    for Python's own.

    Args:
        module: its name.
        arguments: that it is called with.
    """
    return [sys.executable, "-P", "-m", __name__, json.dumps(sys.path), module, *arguments]


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, however it does."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def run_child(command: Sequence[str], *, patience_s: float, limit_s: float | None = None) -> Ended:
    """Run a command to its end; whatever is raised here meanwhile ends it, and so does this process's end.

    It is in a process group of its own: a Ctrl-C is this process's, which then ends the other.

    Args:
        command: whose standard input is empty.
        patience_s: how long it may take to end once it was sent a SIGTERM; then its whole group is killed.
        limit_s: how long it may take, in seconds; None: as long as it likes.

    Raises:
        TimeoutError: it took longer.
    """
    with TemporaryFile() as output, TemporaryFile() as errors:
        process = start_child(command, output, errors)
        remaining_s = 0.0  # A second interruption has no patience left, even if it comes inside terminate.
        try:
            if not _has_ended(process, limit_s):
                raise TimeoutError(f"it takes longer than {limit_s:g} s")
        except BaseException:
            terminate(process)
            remaining_s = patience_s
            raise
        finally:
            end_groups([process], remaining_s)
        output.seek(0)
        said = last_lines(errors) or [f"exit status {process.returncode}"]
        return Ended(process.returncode, output.read().decode(errors="replace"), "\n".join(said))


def start_child(
    command: Sequence[str], output: IO[bytes] | int, errors: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own; the end of this process has it end, too.

    Args:
        command: whose standard input is empty.
        output: takes its standard output.
        errors: takes its standard error.

    Raises:
        OSError: it cannot be run.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        process_group=0,
        preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509 - no thread is there
    )


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Tell a child to end, without taking note of an end that it has come to.

    Popen's own ``terminate`` would take note, and so set its number free before its group is ended.
    """
    if process.returncode is None:
        os.kill(process.pid, signal.SIGTERM)


def end_groups(processes: Sequence[subprocess.Popen[bytes]], patience_s: float) -> None:
    """Wait for the ends of children that were told to end, then kill what is left of their process groups.

    Args:
        processes: each leads a group of its own. The group of one whose end was taken note of is left
            alone: its number may be another process's by now.
        patience_s: how long all of them may take.
    """
    deadline = time.monotonic() + patience_s
    try:
        for process in processes:
            _has_ended(process, max(0.0, deadline - time.monotonic()))
    finally:  # A user who interrupts this has no patience left.
        for process in (one for one in processes if one.returncode is None):
            # Before its end is reported: until then no other process has its number.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait()


def last_lines(errors: IO[bytes]) -> list[str]:
    """Read the last lines that a child wrote to a file."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - LAST_BYTES))
    return errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]


def process_state(pid: int) -> str | None:
    """Ask the kernel for the state of a process, as a letter: "T" if it is stopped; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


def _has_ended(process: subprocess.Popen[bytes], within_s: float | None) -> bool:
    """Wait for the end of a child without taking note of how it ended."""
    if process.returncode is not None:
        return True
    descriptor = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(None if within_s is None else 1e3 * within_s))
    finally:
        os.close(descriptor)


def main() -> None:
    """Become the program that ``python_command`` asks for."""
    sys.path[:] = json.loads(sys.argv.pop(1))
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

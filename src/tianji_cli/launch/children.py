"""Children of this process: commands that run TianJi's own modules, watched, and ended in order.

A training that is measured and a worker of a benchmark are such children. The
workers of a job are not: nodes start them (``node``).

A child's Python begins here, too: ``python -P -m tianji_cli.launch.children PATH MODULE ...`` runs a module
as if it were the program, but finds other modules where its parent finds them.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import runpy
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

from tianji_cli.errors import ProcessExit
from tianji_cli.launch import bound

LAST_LINES: Final = 5
LAST_BYTES: Final = 4096
"""Maximum lines and bytes shown of a child's standard error: the last ones."""
LOOK_S: Final = 0.5
"""Seconds between two pauses of a wait: a signal that came just before its poll, or to another thread, does
not interrupt the poll, and its handler raises at the pause."""
ORPHAN_LOOK_S: Final = 0.05
"""Seconds between two looks at orphans that are to end; children that they leave behind are orphans, too."""
ORPHAN_GRACE_S: Final = 1.0
"""Seconds that an orphan has to end after SIGTERM; then comes SIGKILL."""
ORPHANS_LIMIT_S: Final = 5.0
"""Maximum seconds that this process waits for orphans: one deep in a driver does not even obey SIGKILL."""


def python_command(module: str, *arguments: str) -> list[str]:
    """Command that runs a module of TianJi, and finds all other modules where this process does.

    Python by itself would look in the working directory first, where a user's ``queue.py`` would stand in
    for Python's own.
    """
    return [sys.executable, "-P", "-m", __name__, json.dumps(sys.path), module, *arguments]


def bound_command(command: Sequence[str], number: signal.Signals) -> list[str]:
    """Command that has the kernel send a program a signal when this process ends, however it does.

    For the kernel, this process is the thread that starts the program.

    Raises:
        FileNotFoundError: there is no such program.
    """
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    return [sys.executable, "-I", "-S", bound.__file__, str(int(number)), str(os.getpid()), *command]


def end_with_parent(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent ends, however it does."""
    ctypes.CDLL(None).prctl(bound.PR_SET_PDEATHSIG, number)


def adopt_orphans() -> set[int]:
    """Have the kernel make this process the parent of orphans among its descendants.

    Returns:
        Children that this process has already and did not start: those of a shell that became this program.
    """
    ctypes.CDLL(None).prctl(bound.PR_SET_CHILD_SUBREAPER, 1)
    return _children()


def _children() -> set[int]:
    with suppress(OSError):  # Some kernels list no children.
        return set(map(int, Path("/proc/thread-self/children").read_text().split()))
    return set()


def end_orphans(others: Collection[int], ending: dict[int, float]) -> None:
    """Ask every child but the ``others`` to end, or kill it if it was asked long ago; never waits.

    A process that outlives its parent is a child of the nearest ancestor that adopts orphans. Only children
    are signalled: their numbers cannot be those of strangers.

    Args:
        ending: time of each request, by ``time.monotonic``; kept from call to call, empty once all are gone.
    """
    now = time.monotonic()
    for pid in _children().difference(others, ending):
        ending[pid] = now
        with suppress(PermissionError):  # The child is another user's by now, as sudo's is.
            os.kill(pid, signal.SIGTERM)
    for pid, asked_s in list(ending.items()):
        try:
            over = os.waitpid(pid, os.WNOHANG)[0]
        except ChildProcessError:  # The kernel has reaped it: SIGCHLD is ignored.
            over = pid
        if over:
            del ending[pid]
        elif now - asked_s > ORPHAN_GRACE_S:
            with suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)


def end_descendants(others: Collection[int]) -> None:
    """End the remaining descendants of this process but ``others``, such as those of environments."""
    ending: dict[int, float] = {}
    deadline = time.monotonic() + ORPHANS_LIMIT_S
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    end_orphans(others, ending)
    while ending and time.monotonic() < deadline:
        signal.sigtimedwait({signal.SIGCHLD}, ORPHAN_LOOK_S)
        end_orphans(others, ending)


class Child:
    """A process that this one has started, in a process group of its own; it ends with this one.

    A Ctrl-C reaches this process alone, which then ends the child. The child stays a zombie until
    ``end_children``, so that no other process gets its number before its group is ended.

    Args:
        command: its program and arguments.
        stdout: as for ``Popen``; None for this process's.
        keep_errors: keep its standard error for ``last_words``; otherwise it writes where this process does.

    Attributes:
        process: the process, with unbuffered streams.
        descriptor: readable once it has ended.

    Raises:
        OSError: the command cannot be run.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int = subprocess.DEVNULL,
        stdout: IO[bytes] | int | None = subprocess.DEVNULL,
        keep_errors: bool = True,
    ) -> None:
        with ExitStack() as unless_it_begins:
            self._errors = unless_it_begins.enter_context(TemporaryFile()) if keep_errors else None
            self.process = subprocess.Popen(
                bound_command(command, signal.SIGTERM),
                bufsize=0,
                stdin=stdin,
                stdout=stdout,
                stderr=self._errors,
                process_group=0,
            )
            unless_it_begins.callback(self.process.wait)
            unless_it_begins.callback(self.process.kill)  # Without a descriptor nothing would watch it.
            self.descriptor = os.pidfd_open(self.process.pid)
            unless_it_begins.pop_all()

    @property
    def pid(self) -> int:
        """Process id."""
        return self.process.pid

    def wait(self) -> ProcessExit:
        """Wait for the child; returns its exit, with the status as last words if it wrote none."""
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None, "only WNOHANG finds no process"
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return ProcessExit(status, last_words=self.last_words or f"exit status {status}")

    @property
    def last_words(self) -> str:
        """The last lines that it has written to its standard error."""
        return last_words(self._errors) if self._errors is not None else ""

    def terminate(self) -> None:
        """Ask the child to end."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the child and the rest of its process group."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the child, whose number is free then, and free its resources here."""
        self.process.wait()
        os.close(self.descriptor)
        for file in (self.process.stdin, self.process.stdout, self._errors):
            if file is not None:
                file.close()


def wait_for_exit(children: Sequence[Child], timeout_s: float | None) -> list[Child]:
    """Wait until one of some children has ended, at most ``timeout_s``; returns those that have."""
    ended = wait_for_end([child.descriptor for child in children], timeout_s)
    return [child for child in children if child.descriptor in ended]


def wait_for_end(processes: Sequence[int], timeout_s: float | None) -> set[int]:
    """Wait until one of some processes has ended, as ``wait_for_exit``; takes and returns descriptors."""
    poller = select.poll()
    for descriptor in processes:
        poller.register(descriptor, select.POLLIN)
    deadline_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, deadline_s - time.monotonic())
        ready = poller.poll(1e3 * min(left_s, LOOK_S))
        if ready or left_s <= LOOK_S:
            return {descriptor for descriptor, _ in ready}


def end_children(children: Sequence[Child], patience_s: float) -> None:
    """Wait ``patience_s`` for children that were asked to end, then kill the rest of their process groups."""
    deadline = time.monotonic() + patience_s
    try:
        for child in children:
            wait_for_exit([child], deadline - time.monotonic())
    finally:  # A user who interrupts this has no patience left.
        for child in children:
            child.kill()
        for child in children:
            child.reap()


@contextmanager
def supervised(children: Sequence[Child], patience_s: float) -> Iterator[None]:
    """End children with the context; if the context raises, send them a SIGTERM first.

    Args:
        patience_s: seconds that all of them have to end; a second interruption leaves them no time.
    """
    remaining_s = 0.0
    try:
        yield
        remaining_s = patience_s
    except BaseException:
        for child in children:
            child.terminate()
        remaining_s = patience_s
        raise
    finally:
        end_children(children, remaining_s)


def run_child(
    command: Sequence[str], *, patience_s: float, limit_s: float | None = None
) -> tuple[ProcessExit, str]:
    """Run a command to its end; an exception here, or the end of this process, ends it early.

    Args:
        command: its standard input is empty.
        patience_s: seconds that it has to end after a SIGTERM; then its whole group is killed.
        limit_s: maximum seconds that it may take; None for no limit.

    Returns:
        Its exit, and its standard output.

    Raises:
        TimeoutError: the command took longer.
    """
    with TemporaryFile() as output:
        child = Child(command, stdout=output)
        with supervised([child], patience_s):
            if not wait_for_exit([child], limit_s):
                raise TimeoutError(f"it takes longer than {limit_s:g} s")
            exit_ = child.wait()
        output.seek(0)
        return exit_, output.read().decode(errors="replace")


def last_words(errors: IO[bytes]) -> str:
    """Read the last lines that a child wrote to a file."""
    errors.seek(0, os.SEEK_END)
    errors.seek(max(0, errors.tell() - LAST_BYTES))
    return "\n".join(errors.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:])


def process_state(pid: int) -> str | None:
    """Ask the kernel for the state of a process, as a letter: "T" if it is stopped; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return None


def main() -> None:
    """Become the program that ``python_command`` asks for."""
    sys.path[:] = json.loads(sys.argv.pop(1))
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

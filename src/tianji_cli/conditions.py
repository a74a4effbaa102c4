"""Checks that a machine has everything for a job.

`tianji doctor` shows all findings, a run checks before it begins, and errors that come of a lack name it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from tianji_cli.config.trust import UntrustedPlaceError, check_trusted
from tianji_cli.errors import UsageError, describe
from tianji_cli.files.rundir import DEFAULT_OUT
from tianji_cli.limits import NOT_PINNED, can_pin
from tianji_transports.errors import TransportMemoryError
from tianji_transports.shm.page import SHM

MIB: Final = 1 << 20
LITTLE_SHARED_MEMORY: Final = 256 * MIB
"""Less than this holds a small job; Docker gives 64 MiB unless told otherwise."""
NO_SHARED_MEMORY: Final = MIB // 4
"""Less than this holds no job."""
LITTLE_FILE: Final = 1024 * MIB
"""A limit on the size of files below this may be too low for checkpoints and shared memory."""
NO_FILE: Final = MIB
"""With a lower limit not even a small job can write its files."""
LOOPBACK_S: Final = 5.0
"""Maximum seconds of a connection to this host."""
OF_THE_MACHINE: Final = {errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.ENOMEM}
"""Errors of the system that a limit of the machine causes."""

Grade = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of a report; a problem keeps a training from running, a warning from running well."""

    subject: str
    found: str
    grade: Grade = "ok"
    remedy: str = ""

    @property
    def in_words(self) -> str:
        """The finding and its remedy, in one sentence."""
        return f"{self.subject}: {self.found}; {self.remedy}"


def judged(subject: str, found: str, fine: bool, remedy: str, grade: Grade = "warning") -> Finding:
    """Make a finding: "ok" if it is ``fine``; otherwise of ``grade``, with a remedy."""
    return Finding(subject, found) if fine else Finding(subject, found, grade, remedy)


def working_directory() -> Iterator[Finding]:
    """Whether a run can be made below the working directory."""
    subject, elsewhere = "working directory", "cd to another one, or name a place for runs (--out DIR)"
    try:
        here = Path.cwd()
        runs = here / DEFAULT_OUT
        warnings = check_trusted(runs)
    except FileNotFoundError:
        yield Finding(subject, "it was deleted", "problem", "cd to a directory that is there")
        return
    except UntrustedPlaceError as error:
        found, _, remedy = str(error).partition("\n")
        yield Finding(subject, found, "problem", remedy)
        return
    there = runs if runs.is_dir() else here
    if not os.access(there, os.W_OK | os.X_OK):
        yield Finding(subject, f"{there} cannot be written to", "problem", elsewhere)
        return
    yield judged(subject, "; ".join(warnings) or str(here), not warnings, elsewhere)


def shared_memory(place: Path = SHM) -> Iterator[Finding]:
    """Shared memory that the shm transport can have."""
    docker = 'start the container with more: docker run --shm-size=2g (or use transport = "zmq")'
    if not place.is_dir() or not os.access(place, os.W_OK):
        remedy = 'mount it as tmpfs (or use transport = "zmq")'
        yield Finding(str(place), "not there or not writable", "problem", remedy)
        return
    usage = shutil.disk_usage(place)
    found = f"{usage.free / MIB:.0f} MiB free of {usage.total / MIB:.0f}"
    grade: Grade = "problem" if usage.free < NO_SHARED_MEMORY else "warning"
    yield judged(str(place), found, usage.free >= LITTLE_SHARED_MEMORY, docker, grade)


def limits() -> Iterator[Finding]:
    """Limits on the files of a process: how many may be open, and how large one may be."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    suffices = descriptors >= 256 or descriptors == resource.RLIM_INFINITY
    yield judged("open files", f"{descriptors} allowed", suffices, "ulimit -n 1024")
    largest = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if largest != resource.RLIM_INFINITY:
        grade: Grade = "problem" if largest < NO_FILE else "warning"
        found = f"at most {largest:,} bytes"
        yield judged("size of files", found, largest >= LITTLE_FILE, "ulimit -f unlimited", grade)


def loopback() -> Iterator[Finding]:
    """Whether processes of this host reach one another."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), LOOPBACK_S).close()
    except OSError as cause:
        found = f"127.0.0.1 cannot be reached: {cause.strerror or cause}"
        yield Finding("loopback interface", found, "problem", "ip link set lo up")
    else:
        yield Finding("loopback interface", "up")


def system_calls() -> Iterator[Finding]:
    """Whether the system grants the calls that watch processes, and that tie them to cores."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as cause:
        found = f"processes cannot be watched: {cause.strerror}"
        remedy = "it takes Linux 5.3 and a seccomp profile that allows it (Docker 20.10); gVisor has none"
        yield Finding("pidfd_open", found, "problem", remedy)
    pins = can_pin()
    found = "granted" if pins else NOT_PINNED
    yield judged("sched_setaffinity", found, pins, "use a seccomp profile that allows it")


def memory_of_others(grade: Grade = "warning") -> Iterator[Finding]:
    """Whether processes may read one another's memory, by which MPI moves large messages inside a host."""
    granted = ctypes.CDLL(None).process_vm_readv(os.getpid(), None, 0, None, 0, 0) == 0
    found = "granted" if granted else "refused, and MPI does not do without it"
    remedy = "docker run --cap-add SYS_PTRACE (or another transport)"
    yield judged("process_vm_readv", found, granted, remedy, grade)


LOOKS: Final = (working_directory, limits, loopback, system_calls, shared_memory, memory_of_others)


def check_machine(transport: str = "") -> None:
    """Refuse to start processes on a machine that lacks something.

    Args:
        transport: engine that carries data inside this host; empty for none.

    Raises:
        UsageError: names everything that is missing, with the remedies.
    """
    own = {"shm": shared_memory, "mpi": partial(memory_of_others, "problem")}
    looks = [limits, loopback, system_calls, *([own[transport]] if transport in own else ())]
    lacking = [finding for look in looks for finding in look() if finding.grade == "problem"]
    if lacking:
        raise UsageError("\n".join(finding.in_words for finding in lacking))


def explained(error: BaseException) -> str:
    """Describe an error in one line, with the lacks of this machine that may have caused it."""
    words = [describe(error)]
    looks: list[Callable[[], Iterator[Finding]]] = []
    if isinstance(error, TransportMemoryError) or getattr(error, "errno", None) in OF_THE_MACHINE:
        looks = [limits, *([] if str(SHM) in words[0] else [shared_memory])]
    elif isinstance(error, FileNotFoundError) and error.filename is None:  # As os.getcwd() raises it.
        looks, words = [working_directory], []
    words += [finding.in_words for look in looks for finding in look() if finding.grade != "ok"]
    return "; ".join(words) or describe(error)

"""Start and end of MPI in this process, and the sends that endpoints leave behind.

MPI begins with the first endpoint, or with ``initialise`` in a process that has none: every process of the
job has to take part, because MPI's own start waits for all of them. It ends in ``finalise``, which runs at
exit and in which all processes of the job take part, too: they receive and discard the messages that no
endpoint received, since MPI cannot end with them. A process that must not wait for the others, because
something went wrong in it, calls ``abort``; one that ends with an uncaught exception does so by itself.

Nothing here touches MPI before it is asked to, so that the engine can be imported anywhere.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import NoReturn

# MPICH's wheel brings an older UCX than the `ucx` engine's, and a process can hold one: MPICH can do with the
# newer, and not the other way round.
with contextlib.suppress(ImportError, OSError):
    import libucx

    libucx.load_library()

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

from mpi4py import MPI  # noqa: E402 - after the settings that keep it from initialising

from tianji_transports.errors import TransportError  # noqa: E402

__all__ = ["MPI", "abort", "discard", "finalise", "initialise", "largest_tag", "leave", "reap", "sleep_until"]

FINALISE_S = 60.0
"""Seconds that a process that has ended waits for the others of the job."""
FINAL_MESSAGE_LIMIT_S = 0.5
"""Seconds for the launcher to pass on printed lines before a process aborts the job; the rest is lost."""
ABORT_S = 5.0
"""Maximum seconds that the launcher takes to end a process that has aborted the job."""
PAUSE_S = 0.001
SHARED_MEMORY = re.compile(r"/dev/shm/mpich_shm_\w+$")  # noqa: S108 - MPICH's, not ours
LEAST_LARGEST_TAG = 32767
"""The MPI standard's minimum of the largest tag."""
MPIEXEC_PIPE = "HYDI_CONTROL_FD"
"""Environment variable that MPICH's mpiexec sets."""
NETMOD = "MPIR_CVAR_CH4_NETMOD"
"""Environment variable that names the network module for MPICH to use."""

_adrift: list[tuple[MPI.Request, object]] = []
"""Sends that no endpoint waits for, with the memory that MPI may still read."""


def initialise() -> MPI.Intracomm:
    """Begin MPI, unless it has begun, and return the communicator of all processes of the job.

    Raises:
        TransportError: MPI does not start, or has ended already.
    """
    if MPI.Is_finalized():
        raise TransportError("MPI has ended in this process and cannot begin again")
    if not MPI.Is_initialized():
        _avoid_long_addresses()
        try:
            MPI.Init_thread(MPI.THREAD_FUNNELED)
        except MPI.Exception as error:
            raise TransportError(f"MPI does not start: {error}") from error
    if not _hooked:
        _unlink_shared_memory()
        _hooked.append(os.getpid())
        MPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)
        atexit.register(_at_exit)
    return MPI.COMM_WORLD


_hooked: list[int] = []


def _avoid_long_addresses() -> None:
    """Under Slurm, have MPICH use libfabric if it has that as well as UCX, unless the user has chosen.

    With UCX each process puts 4 KiB into Slurm's key-value store, beginning with its address; the memory
    behind the address goes along. Runs of zeros are shortened, and where there are too few of them a line
    is longer than the 1,024 bytes that Slurm's PMI reads: "value not properly terminated in client request",
    and the job dies or hangs as it starts (3 of 60 starts with a used heap). libfabric's addresses are short.
    """
    device = re.search(r"^MPICH Device:\s*ch4:(.*)$", MPI.Get_library_version(), re.MULTILINE)
    has_both = device is not None and {"ucx", "ofi"} <= set(re.split(r"[ ,]+", device[1].strip()))
    # Under MPICH's mpiexec, inside a job of Slurm or not, mpiexec keeps the key-value store.
    by_srun = {"SLURM_STEP_ID", "PMI_FD"} <= os.environ.keys() and MPIEXEC_PIPE not in os.environ
    if has_both and by_srun:
        os.environ.setdefault(NETMOD, "ofi")


def _unlink_shared_memory() -> None:
    """Take the name off MPICH's shared memory, which every process of the host has mapped by now.

    MPICH itself does so only when it ends: never if the job is killed or aborted.
    """
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        found = SHARED_MEMORY.search(line)
        if found is not None:
            Path(found[0]).unlink(missing_ok=True)


def sleep_until(request: MPI.Request) -> None:
    """Wait for a request whose other side may take seconds; MPI's own wait would keep a core busy."""
    while not request.Test():
        time.sleep(PAUSE_S)


def largest_tag() -> int:
    """Ask MPI for its largest tag."""
    largest = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    return largest if isinstance(largest, int) else LEAST_LARGEST_TAG


def leave(request: MPI.Request, memory: object) -> None:
    """Take over a send that its endpoint does not wait for."""
    _adrift.append((request, memory))


def reap() -> int:
    """Drop the sends that have been received meanwhile; returns the number of those left."""
    _adrift[:] = [(request, memory) for request, memory in _adrift if not _is_over(request)]
    return len(_adrift)


def _is_over(request: MPI.Request) -> bool:
    if not request.Test():
        return False
    if isinstance(request, MPI.Prequest):
        request.Free()
    return True


def discard(message: MPI.Message, nbytes: int) -> None:
    """Receive a matched message and discard it."""
    message.Recv([bytearray(nbytes), MPI.BYTE])


def finalise(timeout_s: float = FINALISE_S) -> None:
    """End MPI together with every other process of the job; endpoints have to be closed before.

    Every process receives and discards the messages under way until all sends of all processes are over
    (Hoefler, Siebert and Lumsdaine, PPoPP 2010: a barrier that does not block, entered by a process that has
    nothing in flight). If the others do not come in time, the job is aborted: they are dead or stuck.
    """
    if not MPI.Is_initialized() or MPI.Is_finalized():
        return
    world, status = MPI.COMM_WORLD, MPI.Status()
    deadline = time.monotonic() + timeout_s
    barrier: MPI.Request | None = None
    while barrier is None or not barrier.Test():
        idle = True
        while (message := world.Improbe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)) is not None:
            discard(message, status.Get_count(MPI.BYTE))
            idle = False
        if barrier is None and reap() == 0:
            barrier = world.Ibarrier()
        if time.monotonic() > deadline:
            abort(1, f"the other processes of the job did not end within {timeout_s:g} s")
        if idle:
            time.sleep(PAUSE_S)
    MPI.Finalize()


def abort(status: int, reason: str) -> NoReturn:
    """End every process of the job at once; ``mpiexec`` exits with ``status``."""
    rank = MPI.COMM_WORLD.Get_rank() if MPI.Is_initialized() and not MPI.Is_finalized() else None
    print(f"rank {rank}: {reason}; the job is aborted", file=sys.stderr, flush=True)  # noqa: T201
    if rank is not None:
        time.sleep(FINAL_MESSAGE_LIMIT_S)
        try:
            MPI.COMM_WORLD.Abort(status)
        finally:  # Abort returns before the launcher has ended this process.
            time.sleep(ABORT_S)
    raise SystemExit(status)


def _at_exit() -> None:
    if _hooked != [os.getpid()] or MPI.Is_finalized():
        return
    uncaught = getattr(sys, "last_value", None)
    if uncaught is not None:
        abort(1, f"{type(uncaught).__name__}: {uncaught}")
    finalise()

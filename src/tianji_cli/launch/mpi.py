"""Jobs under MPI: this command started anew under ``mpiexec`` where it has to be, and its ranks.

Rank 0 is the root. It tells the others once, over MPI, where its control channel is; from then on they are
nodes like hosts that have joined, each for the one worker that it becomes. MPI itself then carries
samples, if the plan's engine is ``mpi``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ProcessExit, RunFailed, UsageError, os_errors_as
from tianji_cli.files.directories import remove_stale
from tianji_cli.files.regular import read_json
from tianji_cli.files.rundir import RunDirectory, write_whole
from tianji_cli.launch.children import bound_command, python_command
from tianji_cli.launch.ranks import Launch
from tianji_cli.plan.job import Job
from tianji_cli.plan.plan import Host, this_host
from tianji_cli.signals import INTERRUPTED, STOP_SIGNALS, held_back
from tianji_cli.wire.address import LOOPBACK, JobKey, RootAddress, address_towards, parse_address
from tianji_cli.wire.control import ControlClient
from tianji_cli.wire.messages import Arrive, Began, Begin, Dismiss, Exited, Prepare, Present
from tianji_transports import registry
from tianji_transports.errors import TransportError

STARTED_AGAIN: Final = "TIANJI_STARTED_AGAIN"
"""Environment variable that tells the ranks who started them."""

CODE: Final = "code.json"
"""File in a run's directory while ranks start: digests of the user's modules as the build found them."""

EXIT_STATUS: Final = {"finished": 0, "failed": 1, "stopped": INTERRUPTED}


def run_under_mpiexec(
    job: JobConfig, processes: int, run: RunDirectory, code: Mapping[str, str], *, resumed: bool
) -> int:
    """Run the job in as many ranks as the plan has processes, and stay until it is over.

    Args:
        job: the job. The root may be bound to fewer cores, and gets the choices for the cores seen here.
        run: its directory, which tells afterwards whether the root came to its end.
        code: digests of the user's modules, by name, as the build found them.
        resumed: the directory is an earlier run's.

    Returns:
        The exit status of the root.

    Raises:
        UsageError: there is no mpiexec, or no mpi4py.
        RunFailed: mpiexec ended the job before the root could, because a rank died.
    """
    before = _identity(run.summary)
    distribution = job.distribution
    more = ["--set", f"distribution.actor.num={distribution.actor.num.max}"]
    more += ["--set", f"distribution.pin_cores={str(distribution.pin_cores).lower()}"]
    place = run.path / CODE
    with os_errors_as(RunFailed, f"cannot write {place}"):
        write_whole(place, json.dumps(code).encode())
    try:
        status = run_again_under_mpiexec(processes, more if resumed else [*more, "--run", str(run.path)])
    finally:
        place.unlink(missing_ok=True)
    try:
        if _identity(run.summary) == before:  # An earlier session's.
            raise FileNotFoundError
        summary = read_json(run.summary)
        run_status, reason = summary["status"], summary["reason"]
    except (OSError, ValueError, KeyError):
        raise RunFailed(_cause(status, run)) from None
    if run_status == "failed" and status != EXIT_STATUS["failed"]:
        # A rank has died, and its launcher passes on no more of the root's stderr.
        raise RunFailed(reason)
    return EXIT_STATUS[run_status]


def code_of_job(run: RunDirectory) -> dict[str, str]:
    """Read the digests of the user's modules from the command that started these ranks."""
    found: dict[str, str] = json.loads((run.path / CODE).read_text(encoding="utf-8"))
    return found


def _identity(path: Path) -> tuple[int, int] | None:
    """Inode and time of a file, which tell it from earlier files of its name; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def run_again_under_mpiexec(processes: int, more: Sequence[str] = ()) -> int:
    """Run this very command in so many ranks, and stay until they have ended.

    Returns:
        The exit status of mpiexec.

    Raises:
        UsageError: there is no mpiexec, or no mpi4py.
    """
    os.environ[STARTED_AGAIN] = "1"
    again = python_command("tianji_cli", *sys.argv[1:], *more)
    command = [*_launcher(), "-n", str(processes), *again]
    sys.stdout.flush()
    sys.stderr.flush()
    for number in STOP_SIGNALS:  # Not SIG_IGN, which mpiexec would inherit.
        signal.signal(number, lambda _number, _frame: None)
    # With mpiexec the kernel ends every rank, too.
    launcher = subprocess.Popen(bound_command(command, signal.SIGKILL))
    for number in (signal.SIGTERM, signal.SIGHUP):  # A Ctrl-C reaches mpiexec through the terminal.
        signal.signal(number, lambda number, _frame: launcher.send_signal(number))
    status = launcher.wait()
    remove_stale()  # A killed rank could not do so.
    return status


def started_again() -> bool:
    """Whether this is a rank that ``run_again_under_mpiexec`` has started."""
    return STARTED_AGAIN in os.environ


def has_mpiexec() -> bool:
    """Whether MPI jobs can be started here."""
    return _find_mpiexec() is not None


def _find_mpiexec() -> str | None:
    # The one beside this Python belongs to its mpi4py.
    beside = Path(sys.executable).with_name("mpiexec")
    return str(beside) if beside.exists() else shutil.which("mpiexec")


def _launcher() -> list[str]:
    try:
        registry.load("mpi")
    except TransportError as cause:
        raise UsageError(str(cause)) from cause
    mpiexec = _find_mpiexec()
    if mpiexec is None:
        raise UsageError("transport 'mpi' needs mpiexec: pip install 'tianji[mpi]', or load a cluster's MPI")
    shown = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, check=False).stdout
    if "HYDRA" in shown:
        # When a rank dies, MPICH shall leave it to the root to end the job, and to save.
        return [mpiexec, "-disable-auto-cleanup"]
    return [mpiexec, "--oversubscribe"]


def _cause(status: int, run: RunDirectory) -> str:
    number = abs(status) & 0x7F
    try:
        how = f"a process was killed by {signal.Signals(number).name}"
    except ValueError:
        how = f"it exited with status {status}"
    saved = (
        ""
        if not (run.checkpoints / "last").exists()
        else f"; --resume {run.path} goes on from its last checkpoint"
    )
    return f"mpiexec has ended the job: {how}{saved}"


PRESENT_EVERY_S: Final = 1.0
PLACE_BYTES: Final = 16 << 10
"""Bytes of a rank's message about its host and cores, or of the root's about its address."""


class World(contextlib.AbstractContextManager["World"]):
    """All ranks of an MPI job, each of which builds a ``World`` at the same time.

    The other ranks wait in ``brief`` while rank 0 is in its ``with`` block, whose end briefs them if nothing
    else has.

    Attributes:
        hosts: host of each rank.

    Raises:
        UsageError: MPI is missing, or does not see the ranks that the launcher has started.
    """

    def __init__(self, launch: Launch) -> None:
        self._mpi = _load_mpi()
        self._comm = self._mpi.initialise()
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        # MPICH tells the survivors of a dead rank by this signal, whose default would end them too.
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        if self.size != launch.size:
            raise UsageError(
                f"the launcher started {launch.size} processes and MPI sees {self.size}: this MPI is not the "
                "launcher's (with Slurm and MPICH: srun --mpi=pmi2), or variables are left over from an "
                "outer step: unset PMI_RANK, PMI_SIZE, OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE"
            )
        self.hosts = self._exchange_places()
        self._briefed = False

    def _exchange_places(self) -> list[Host]:
        here = this_host()
        mine = json.dumps([here.name, here.cores]).encode().ljust(PLACE_BYTES)
        everybody = bytearray(PLACE_BYTES * self.size)
        with held_back():  # An interruption would free memory that MPI goes on writing to.
            self._mpi.sleep_until(self._comm.Iallgather(mine, everybody))
        places = [
            json.loads(everybody[i * PLACE_BYTES : (i + 1) * PLACE_BYTES].decode()) for i in range(self.size)
        ]
        cores: dict[str, set[tuple[int, ...]]] = {}
        for name, usable in places:
            cores.setdefault(name, set()).add(tuple(usable))
        # Where the launcher has bound the ranks already, each to cores of its own, nothing is left to pin.
        hosts = {name: Host(name, next(iter(sets)) if len(sets) == 1 else ()) for name, sets in cores.items()}
        return [hosts[name] for name, _ in places]

    def brief(self, root: RootAddress | None) -> RootAddress | None:
        """Send the address of rank 0's control channel to all ranks; None if there is nothing to do."""
        payload = b"" if root is None else json.dumps(asdict(root)).encode()
        message = bytearray(payload.ljust(PLACE_BYTES))
        # The root builds an environment and a model before it sends: seconds, on cores that it needs.
        with held_back():
            self._mpi.sleep_until(self._comm.Ibcast(message, root=0))
        self._briefed = True
        text = message.decode().strip()
        if not text:
            return None
        fields = json.loads(text)
        return RootAddress(fields["address"], JobKey(**fields["key"]))

    def __exit__(self, *_exception: object) -> None:
        if not self._briefed:
            self.brief(None)

    def abort(self, reason: str, status: int = 1) -> NoReturn:
        """End all ranks at once: one is dead, and without it they would wait in vain to end together."""
        abort: Callable[[int, str], NoReturn] = self._mpi.abort
        abort(status, reason)


def _load_mpi() -> Any:
    try:
        from tianji_transports.mpi import world as mpi_world  # noqa: PLC0415
    except (ImportError, RuntimeError) as cause:
        raise UsageError(
            f"an MPI launcher has started this, and mpi4py does not load ({cause}): pip install 'tianji[mpi]'"
        ) from cause
    return mpi_world


def serve(launch: Launch) -> int:
    """Run the root's worker in this rank until the job is over; aborts the job if the root is lost."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # They reach the root as well, which handles them.
    world = World(launch)
    root = world.brief(None)
    if root is None:
        return 0
    host, _ = parse_address(root.address)
    interface = LOOPBACK if host == LOOPBACK else address_towards(host)
    node = f"rank-{world.rank}"
    with ControlClient(root, watched=True) as control:
        here = this_host()
        control.send(Arrive.of_this_process(node, here.name, here.cores, interface))
        lost = _serve(control, node)
    if lost:
        world.abort("the root is gone")
    return 0


def _serve(control: ControlClient, node: str) -> bool:
    """Handle the root's messages until the job is over; returns True if the root was lost."""
    last_sent = time.monotonic()
    severed = False
    job: Job | None = None
    while not severed:
        control.wait(PRESENT_EVERY_S)
        severed = control.severed  # Asked before the root's last messages are read.
        for message in control.receive():
            match message:
                case Prepare():
                    job = Job.from_json(message.job)
                case Begin(number=number):
                    assert job is not None, "a root says what the job is before it asks for a worker"
                    control.send(Began(node=node, number=number, pid=os.getpid()))
                    status = _work(job, message)
                    control.send(Exited(node=node, number=number, exit=ProcessExit(status)))
                case Dismiss():
                    return False
                case _:
                    pass
        if time.monotonic() - last_sent > PRESENT_EVERY_S:
            last_sent = time.monotonic()
            control.send(Present(node=node, reaches_run=True))
    return True


def _work(job: Job, own: Begin) -> int:
    from tianji_cli.worker.worker import run_worker  # noqa: PLC0415 - the root imports this module, too

    try:
        run_worker(job, own)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def check_size(size: int, processes: int) -> None:
    """Reject a number of ranks that differs from the plan's.

    Raises:
        UsageError: the numbers differ; the message names the right one.
    """
    if size != processes:
        raise UsageError(
            f"the launcher started {size} processes and this job has {processes}: "
            f"mpiexec -n {processes} (`--dry-run` prints who would be who)"
        )

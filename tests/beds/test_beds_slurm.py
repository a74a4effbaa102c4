"""The Slurm bed itself: two nodes that run tasks and jobs, and nothing left of it afterwards."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beds.slurm import Slurm

TESTS = Path(__file__).parents[1]

SAYS_WHO_IT_IS = """
import os
from mpi4py import MPI
ranks = MPI.COMM_WORLD
line = f"{ranks.rank} of {ranks.size} on {os.environ['SLURMD_NODENAME']}, {ranks.allreduce(1)} met"
print(line, flush=True)
"""

BEGINS_WITH_A_USED_HEAP = """
import ctypes, os
from tianji_transports.mpi import world

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [(libc.malloc(nbytes), nbytes) for nbytes in (24, 64, 200, 700, 1500, 3000, 8000) * 2000]
for block, nbytes in blocks:
    ctypes.memmove(block, os.urandom(nbytes), nbytes)
for block, _ in blocks:
    libc.free(block)
print(world.initialise().allreduce(1), "met over", os.environ.get(world.NETMOD), flush=True)
"""

HOLDS_A_SLURM = """
import sys, time
from beds.slurm import Slurm
with Slurm() as slurm:
    print(slurm.environment["SLURM_CONF"], flush=True)
    time.sleep(600)
"""


def test_srun_spreads_tasks_over_both_nodes_in_blocks(slurm: Slurm) -> None:
    tasks = slurm.run("srun", "-N2", "--ntasks-per-node=2", "-l", "sh", "-c", "echo $SLURMD_NODENAME")
    assert sorted(tasks.stdout.splitlines()) == ["0: n1", "1: n1", "2: n2", "3: n2"], tasks.stderr


def test_sbatch_runs_a_script_and_hands_on_its_status(slurm: Slurm, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\nsrun hostname\nexit 3\n")
    job = slurm.run("sbatch", "--parsable", "--wait", "-N2", script, cwd=tmp_path)
    assert job.returncode == 3
    assert slurm.job_state(int(job.stdout)) == "FAILED"
    assert slurm.exit_status(int(job.stdout)) == 3
    assert len((tmp_path / f"slurm-{int(job.stdout)}.out").read_text().split()) == 2


def test_mpi_ranks_meet_under_pmi2(slurm: Slurm) -> None:
    pytest.importorskip("mpi4py")
    # Slurm's store cuts what UCX puts there where the heap has certain bytes: the next test is of that.
    ofi = {"MPIR_CVAR_CH4_NETMOD": "ofi"}
    command = (sys.executable, "-c", SAYS_WHO_IT_IS)
    ranks = slurm.run("srun", "--mpi=pmi2", "-N2", "-n3", *command, environment=ofi)
    assert sorted(ranks.stdout.splitlines()) == [
        "0 of 3 on n1, 3 met",
        "1 of 3 on n1, 3 met",
        "2 of 3 on n2, 3 met",
    ], ranks.stderr


def test_ranks_with_used_heaps_put_no_more_into_slurms_store_than_it_reads(slurm: Slurm) -> None:
    """With UCX one start in twenty failed. A choice of the user's stands."""
    command = (sys.executable, "-c", BEGINS_WITH_A_USED_HEAP)
    for _ in range(3):
        ranks = slurm.run("srun", "--mpi=pmi2", "-N2", "-n3", *command)
        assert ranks.stdout.splitlines() == ["3 met over ofi"] * 3, ranks.stderr
    chosen = slurm.run("srun", "--mpi=pmi2", "-n1", *command, environment={"MPIR_CVAR_CH4_NETMOD": "ucx"})
    assert chosen.stdout.splitlines() == ["1 met over ucx"], chosen.stderr


def test_nothing_of_a_slurm_outlives_a_killed_maker(slurm: Slurm) -> None:
    command = [sys.executable, "-c", HOLDS_A_SLURM]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as maker:
        assert maker.stdout is not None
        place = Path(maker.stdout.readline().strip()).parent
        assert _processes_of(place)
        maker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while (place.exists() or _processes_of(place)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not place.exists()
    assert not _processes_of(place)


def _processes_of(place: Path) -> set[str]:
    """Pids of processes that work in a directory, or have its Slurm in their environment."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            works_there = place in (cwd := (process / "cwd").readlink(), *cwd.parents)
            if works_there or str(place).encode() in (process / "environ").read_bytes():
                found.add(process.name)
        except OSError:
            continue  # It has ended meanwhile.
    return found

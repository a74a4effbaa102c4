"""`mpi` beyond the contract, in MPI jobs of their own: how they begin, end and are ended."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

BESIDE = Path(sys.executable).with_name("mpiexec")
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec") or "mpiexec"
PATIENCE_S = 60.0

PREAMBLE = """
import os, signal, sys, time
from pathlib import Path
from tianji_transports.mpi import world as mpi_world
from tianji_transports.core import FULL
from tianji_transports.errors import TransportError
from tianji_transports.mpi.transport import MpiTransport
from tianji_transports.mpi.world import MPI
from tianji_transports.wiring import Channel, Slot, Wiring

world = mpi_world.initialise()
rank, count = world.Get_rank(), world.Get_size()
Path(f"pid-{rank}").write_text(str(os.getpid()))
mapped = [line.split()[5] for line in open("/proc/self/maps") if "/dev/shm/" in line]
Path(f"shared-{rank}").write_text("\\n".join(mapped))
everybody = {other: f"mpi:{other}" for other in range(count)}

def open_endpoint(*channels, slots=(), job="job"):
    endpoint = MpiTransport(Wiring(job, channels, slots), rank)
    endpoint.connect(everybody)
    return endpoint

def until(endpoint, condition):
    deadline = time.monotonic() + 20
    while (found := condition()) is None:
        assert time.monotonic() < deadline
        endpoint.wait(0.1)
    return found

def push(endpoint, payload, dest=0, channel="f"):
    loan = until(endpoint, lambda: endpoint.loan(dest, channel, len(payload)) or None)
    loan.memory[:] = payload
    endpoint.push(loan)
"""


def run_job(folder: Path, ranks: int, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script as every rank of an MPI job."""
    path = folder / "job.py"
    path.write_text(PREAMBLE + textwrap.dedent(script))
    return subprocess.run(
        [MPIEXEC, "-n", str(ranks), sys.executable, str(path)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def assert_nothing_is_left(folder: Path, ranks: int) -> None:
    """No process of the job, and no name of shared memory that it used."""
    deadline = time.monotonic() + 5.0
    pids = [int((folder / f"pid-{rank}").read_text()) for rank in range(ranks)]
    while alive := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
    for rank in range(ranks):
        names = (folder / f"shared-{rank}").read_text().splitlines()
        assert not [name for name in names if Path(name).exists()]


STREAM = """
endpoint = open_endpoint(Channel("f", 0, (1, 2), 1000, window=4))
number = 0
while True:
    if rank == 0:
        claim = until(endpoint, lambda: endpoint.probe("f"))
        claim.release()
        number += 1
    else:
        push(endpoint, bytes(500))
        number += 1
    if rank == {rank} and number == 100:
        {deed}
"""


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_job_with_its_cause_and_leaves_nothing(tmp_path: Path, victim: int) -> None:
    script = STREAM.format(rank=victim, deed="os.kill(os.getpid(), signal.SIGKILL)")
    done = run_job(tmp_path, 3, script)
    assert done.returncode in (9, 128 + 9)  # MPICH, Open MPI
    assert "signal 9" in done.stdout + done.stderr
    assert_nothing_is_left(tmp_path, 3)


@pytest.mark.parametrize("victim", [0, 1])
def test_an_exception_on_one_rank_ends_the_job_and_is_shown(tmp_path: Path, victim: int) -> None:
    done = run_job(tmp_path, 3, STREAM.format(rank=victim, deed='raise ValueError("no such luck")'))
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stderr
    assert f"rank {victim}: ValueError" in done.stderr
    assert_nothing_is_left(tmp_path, 3)


def test_a_job_ends_with_messages_and_values_that_nobody_ever_takes(tmp_path: Path) -> None:
    """Rank 2 has no endpoint, as the root of a job: it takes part in the end all the same."""
    done = run_job(
        tmp_path,
        3,
        """
        if rank < 2:
            channel = Channel("f", 0, (1,), 1_000_000, window=4)
            endpoint = open_endpoint(channel, slots=(Slot("p", 1, (0,), 300_000),))
            if rank == 1:
                for number in range(4):
                    push(endpoint, bytes(10 ** (2 * number)))
                for version in range(20):
                    endpoint.publish("p", memoryview(bytes(300_000)), version)
                report = endpoint.close()
                assert report.unconfirmed == {(0, "f"): 4}, report
            else:
                time.sleep(0.5)
                # closed late, early, or not at all: the process ends
        """,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_receiver_that_closes_first_has_confirmed_what_it_claimed(tmp_path: Path) -> None:
    """A message that the receiver threw away is unconfirmed, though MPI has delivered it."""
    done = run_job(
        tmp_path,
        2,
        """
        endpoint = open_endpoint(Channel("f", 0, (1,), 1000, window=4))
        if rank == 1:
            for number in range(4):
                push(endpoint, bytes(1000))
            endpoint.wait(0)
            world.Barrier()
            world.Barrier()
            until(endpoint, lambda: endpoint.loan(0, "f", 1) is FULL or None)
            assert endpoint.unconfirmed(0, "f") == 3
            assert endpoint.close().unconfirmed == {(0, "f"): 3}
        else:
            until(endpoint, lambda: endpoint.probe("f")).release()
            world.Barrier()
            assert endpoint.close().unclaimed == {(1, "f"): 3}
            world.Barrier()
        """,
    )
    assert done.returncode == 0, done.stderr


def test_take_receives_into_the_callers_memory_and_needs_none_of_the_engines(tmp_path: Path) -> None:
    done = run_job(
        tmp_path,
        2,
        """
        endpoint = open_endpoint(Channel("f", 0, (1,), 700_000, window=4))
        if rank == 1:
            for number in range(10):
                push(endpoint, bytes([number]) * 700_000)
            assert endpoint.close(20).unconfirmed == {}
        else:
            into = bytearray(700_001)
            for number in range(10):
                claim = until(endpoint, lambda: endpoint.probe("f"))
                assert claim.take(memoryview(into)) == 700_000
                assert into == bytes([number]) * 700_000 + bytes(1)
            assert endpoint._ports["f"].free == []
        """,
    )
    assert done.returncode == 0, done.stderr


def test_foreign_and_wrong_messages_are_counted_and_dropped(tmp_path: Path) -> None:
    """Not a sender of the channel, too large, not a frame: the stream goes on. Other tags are left alone."""
    done = run_job(
        tmp_path,
        3,
        """
        endpoint = open_endpoint(Channel("f", 0, (1,), 100), slots=(Slot("p", 1, (0,), 100),))
        tags = endpoint._tags
        if rank == 2:
            world.Send(bytes(10), 0, tags.data[0])
            world.Send(bytes(10), 1, tags.back[0, 1])
            world.Send(bytes(24), 1, tags.join[0])
            world.Send(bytes(10), 0, tags.join[0] + 1000)
        elif rank == 1:
            world.Send(bytes(101), 0, tags.data[0])
            world.Send(bytes(5), 0, tags.value[0, 0])
            world.Send(bytes(70), 0, tags.value[0, 0])
        world.Barrier()
        if rank == 1:
            for number in range(20):
                push(endpoint, bytes([number]))
            endpoint.publish("p", memoryview(b"value"), 0)
            assert endpoint.close(20).unconfirmed == {}
            assert endpoint.counters.rejected == 2, endpoint.counters
            world.Barrier()
        elif rank == 0:
            for number in range(20):
                claim = until(endpoint, lambda: endpoint.probe("f"))
                assert (claim.source, bytes(claim.view())) == (1, bytes([number]))
                claim.release()
            value = until(endpoint, lambda: endpoint.latest("p"))
            assert bytes(value.view()) == b"value"
            value.release()
            assert endpoint.counters.rejected == 4, endpoint.counters
            world.Barrier()
            world.Recv(bytearray(10), 2, tags.join[0] + 1000)
        else:
            world.Barrier()
        """,
    )
    assert done.returncode == 0, done.stderr


def test_a_reader_that_never_looks_costs_its_writer_a_few_values_of_memory(tmp_path: Path) -> None:
    done = run_job(
        tmp_path,
        2,
        """
        endpoint = open_endpoint(slots=(Slot("p", 0, (1,), 1_000_000),))
        if rank == 0:
            head = endpoint._heads["p"]
            until(endpoint, lambda: endpoint.wait(0.2) or head.readers[1].process == 1 or None)
            value = bytearray(1_000_000)
            for version in range(200):
                value[:8] = version.to_bytes(8, "little")
                endpoint.publish("p", memoryview(value), version)
            assert len(head.readers[1].flying) == head.depth == 2
            assert len(head.free) <= 2
            world.Barrier()
            until(endpoint, lambda: endpoint.wait(0.1) or world.Iprobe(1, 7) or None)
            world.Recv(bytearray(1), 1, 7)
        else:
            world.Barrier()
            versions = []
            while not versions or versions[-1] != 199:
                claim = until(endpoint, lambda: endpoint.latest("p", versions[-1] if versions else -1))
                assert claim.view()[:8] == claim.version.to_bytes(8, "little")
                versions.append(claim.version)
                claim.release()
            assert len(versions) <= 3, versions
            world.Send(bytes(1), 0, 7)
        """,
    )
    assert done.returncode == 0, done.stderr


def test_two_senders_of_a_channel_in_one_process_are_refused(tmp_path: Path) -> None:
    done = run_job(
        tmp_path,
        2,
        """
        if rank == 0:
            endpoint = MpiTransport(Wiring("job", (Channel("f", 0, (1, 2), 100),)), 0)
            for wrong in ({1: "mpi:1", 2: "mpi:1"}, {1: "mpi:2"}, {1: "tcp://127.0.0.1:1"}):
                try:
                    endpoint.connect(wrong)
                except TransportError as error:
                    print(error)
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "ranks 1 and 2 both send 'f' from process 1" in done.stdout
    assert "'mpi:2' is no address in an MPI job of 2 processes" in done.stdout
    assert "'tcp://127.0.0.1:1' is no address" in done.stdout


def test_several_ranks_without_a_launcher_are_told_to_use_mpiexec(tmp_path: Path) -> None:
    script = PREAMBLE + 'open_endpoint(Channel("f", 0, (1,), 100))'
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 1
    assert "start it under mpiexec or srun" in done.stderr


def test_the_end_does_not_wait_for_ever_for_a_rank_that_is_stuck(tmp_path: Path) -> None:
    done = run_job(
        tmp_path,
        2,
        """
        if rank == 1:
            time.sleep(60)
        mpi_world.finalise(timeout_s=0.5)
        """,
    )
    assert done.returncode == 1
    assert "rank 0: the other processes of the job did not end within 0.5 s" in done.stderr
    assert_nothing_is_left(tmp_path, 2)


def test_importing_the_engine_leaves_mpi_alone() -> None:
    script = "import tianji_transports.mpi.transport; from mpi4py import MPI; assert not MPI.Is_initialized()"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)

"""Raw loops: two processes move messages by the plain library, and what is missing or altered is noticed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.bench import raw_side
from cli.bench.raw_side import MESSAGES, SIZES, STORES, WRONG, trial_of, trials

from tianji_cli.bench.contents import explain, stamp
from tianji_cli.bench.raw.end import LOOPS, open_end
from tianji_cli.bench.raw.memcpy import memcpy_mb_per_s
from tianji_cli.bench.slots import RING_BYTES, Slots
from tianji_cli.errors import UsageError
from tianji_transports.core import EngineOptions
from tianji_transports.shm_page import SHM, job_stem, remove_stale

MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
ENGINES = sorted(LOOPS)
PATIENCE_S = 30.0

Play = Callable[..., Any]


@pytest.fixture
def job() -> str:
    return f"raw {uuid.uuid4().hex}"


@pytest.fixture
def play(tmp_path: Path, job: str) -> Play:
    """Have two processes play a scenario; what the leading one says."""

    def play(scenario: str, engine: str, statuses: tuple[int, int] = (0, 0)) -> Any:
        for rank in (0, 1):
            os.mkfifo(tmp_path / f"to-{rank}")
        command = [sys.executable, raw_side.__file__, str(tmp_path), scenario, engine, job]
        if engine == "mpi":
            subprocess.run([MPIEXEC, "-n", "2", *command], timeout=PATIENCE_S, check=True)
        else:
            sides = [subprocess.Popen([*command, str(rank)]) for rank in (0, 1)]
            try:
                assert tuple(side.wait(PATIENCE_S) for side in sides) == statuses
            finally:
                for side in sides:
                    side.kill()
                    side.wait()
        said = tmp_path / "said"
        return json.loads(said.read_text()) if said.exists() else None

    return play


def left(*jobs: str) -> list[Path]:
    """What jobs have in shared memory."""
    return [path for job in jobs for path in SHM.glob(f"{job_stem(job)}*")]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_message_arrives_in_every_run_and_store(play: Play, engine: str, job: str) -> None:
    moved = play("move", engine)
    runs = [[nbytes, store, MESSAGES, MESSAGES] for nbytes in SIZES for store in STORES for _ in range(3)]
    assert moved == runs
    assert left(*(trial.job for trial in trials(engine, job))) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_an_altered_or_lost_message_fails_the_run_and_ends_the_sender(play: Play, engine: str) -> None:
    altered, lost = play("damage", engine)
    assert f"{explain(stamp(1, 0, WRONG))} is altered at byte 1000" in altered
    assert f"{explain(stamp(1, 0, WRONG))} should come next" in lost
    assert lost.endswith(f"says {explain(stamp(1, 0, WRONG + 1))}")


@pytest.mark.parametrize("engine", sorted(set(ENGINES) - {"mpi"}))  # MPI ends all processes of a job itself.
def test_the_death_of_the_sender_fails_the_run_and_leaves_nothing_behind(
    play: Play, engine: str, job: str
) -> None:
    assert play("die", engine, (0, -signal.SIGKILL)) == "rank 1 died"
    assert left(trial_of(engine, job, SIZES[0]).job) == []


def test_what_both_sides_leave_when_killed_is_found_and_removed(play: Play, job: str) -> None:
    play("both_die", "shm", (-signal.SIGKILL, -signal.SIGKILL))
    killed = trial_of("shm", job, SIZES[0]).job
    assert left(killed) != []
    assert job_stem(killed) in remove_stale()
    assert left(killed) == []


def test_an_engine_without_a_raw_loop_is_a_usage_error(job: str) -> None:
    with pytest.raises(UsageError, match="transport 'inproc' has no raw loop; there are: shm, zmq, ucx, mpi"):
        open_end("inproc", trial_of("inproc", job, SIZES[0]), 0, EngineOptions())


def test_slots_are_as_many_as_needed_and_lie_apart() -> None:
    slots = Slots(72, 3)
    memory = [slots.next() for _ in range(4)]
    for number, slot in enumerate(memory[:3]):
        assert slot.nbytes == 72
        slot[:] = bytes([number]) * 72
    assert [slot.tobytes() for slot in memory] == [bytes([number]) * 72 for number in (0, 1, 2, 0)]


@pytest.mark.parametrize(("nbytes", "expected"), [(1 << 24, RING_BYTES >> 24), (RING_BYTES, 2)])
def test_slots_of_large_messages_share_the_ring(nbytes: int, expected: int) -> None:
    slots = Slots(nbytes, 1000)
    first = slots.next()
    first[0] = 1
    others = 1
    while slots.next()[0] == 0:
        others += 1
    assert others == expected


@pytest.mark.parametrize("nbytes", SIZES)
def test_memcpy_has_a_rate(nbytes: int) -> None:
    assert memcpy_mb_per_s(nbytes) > 0

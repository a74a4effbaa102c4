"""Raw loops: messages move by the plain library, and what is missing or altered is noticed.

All four of them are measured in ``test_bench_command``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lab.bench.stages import called_off, opened, trial_of

from tianji_cli.errors import UsageError
from tianji_lab.bench.contents import RING_BYTES, Slots, explain, stamp
from tianji_lab.bench.experiment import Trial, TrialFailed
from tianji_lab.bench.raw.iceoryx import IceoryxEnd
from tianji_lab.bench.raw.loop import RawEnd, memcpy_mb_per_s, open_end
from tianji_lab.bench.raw.sockets import SocketEnd
from tianji_lab.bench.workers import BenchWorkers, local_workers
from tianji_transports.core import EngineOptions
from tianji_transports.shm.page import SHM, job_stem, remove_stale

ENDS: dict[str, type[RawEnd]] = {"shm": IceoryxEnd, "zmq": SocketEnd}
SIZES = (64, 512 * 1024)
MESSAGES = 300
WRONG = 41
"""Message that is altered, or lost, or the last one of a sender."""

Spoil = Callable[[memoryview], memoryview | None]


@pytest.fixture(scope="module")
def workers() -> Iterator[BenchWorkers]:
    with local_workers(1) as there:
        yield there


def raw(engine: str, nbytes: int = SIZES[1], store: str = "copy") -> Trial:
    return trial_of("comm", engine, raw=True, nbytes=nbytes, window=8, store=store)


def left(trial: Trial) -> list[Path]:
    """A trial's shared memory."""
    return list(SHM.glob(f"{job_stem(trial.job)}*"))


def spoil(monkeypatch: pytest.MonkeyPatch, engine: str, how: Spoil) -> None:
    """Have message WRONG received as ``how`` makes it."""
    receive, number = ENDS[engine].receive, -1

    def spoilt(end: RawEnd, into: memoryview | None) -> memoryview | None:
        nonlocal number
        memory = receive(end, into)
        number += memory is not None
        return how(memory) if memory is not None and number == WRONG else memory

    monkeypatch.setattr(ENDS[engine], "receive", spoilt)


@pytest.mark.parametrize("engine", ENDS)
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("store", ["copy", "inplace"])
def test_every_message_arrives_in_every_run(
    workers: BenchWorkers, engine: str, nbytes: int, store: str
) -> None:
    trial = raw(engine, nbytes, store)
    with opened(workers, trial) as session:
        for thorough in (True, False, False):
            outcome = session.run(MESSAGES, thorough=thorough)
            assert (outcome.messages, outcome.sent[1].messages) == (MESSAGES, MESSAGES)
            assert outcome.seconds > 0
    assert left(trial) == []


def altered(memory: memoryview) -> memoryview:
    memory[1000] ^= 1
    return memory


def lost(_memory: memoryview) -> None:
    return None


@pytest.mark.parametrize("engine", ENDS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        (altered, f"{explain(stamp(1, 1, WRONG))} is altered at byte 1000"),
        (lost, f"{explain(stamp(1, 1, WRONG))} should come next, .* says {explain(stamp(1, 1, WRONG + 1))}"),
    ],
)
def test_an_altered_or_lost_message_fails_the_run_and_ends_the_sender(
    workers: BenchWorkers, monkeypatch: pytest.MonkeyPatch, engine: str, how: Spoil, said: str
) -> None:
    spoil(monkeypatch, engine, how)
    with opened(workers, raw(engine)) as session:
        with pytest.raises(TrialFailed, match=said):
            session.run(MESSAGES, thorough=True)
        assert called_off(session)[1].messages < MESSAGES, "the sender ends although it has more to send"


@pytest.mark.parametrize("engine", ENDS)
def test_the_death_of_the_sender_fails_the_run_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    trial = raw(engine, SIZES[0])
    with local_workers(1) as mortal:
        (member,) = mortal.members
        assert member.child is not None
        sender = member.child.pid

        def kill(memory: memoryview) -> memoryview:
            os.kill(sender, signal.SIGKILL)
            return memory

        spoil(monkeypatch, engine, kill)
        said = "worker 1 was killed by SIGKILL"
        with pytest.raises(TrialFailed, match=said), opened(mortal, trial) as session:
            session.run(1_000_000_000)
    assert left(trial) == []


def test_what_a_killed_raw_loop_leaves_is_found_and_removed() -> None:
    trial = raw("shm")
    code = """
import os, signal, sys
from tianji_lab.bench.raw.loop import open_end
from tianji_lab.bench.experiment import Trial
from tianji_transports.core import EngineOptions
end = open_end(Trial.model_validate_json(sys.argv[1]), 0, EngineOptions())
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code, trial.model_dump_json()], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert left(trial) != []
    assert job_stem(trial.job) in remove_stale()
    assert left(trial) == []


def test_an_engine_without_a_raw_loop_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="transport 'inproc' has no raw loop; there are: shm, zmq, ucx, mpi"):
        open_end(raw("inproc"), 0, EngineOptions())


@pytest.mark.parametrize(
    ("nbytes", "most", "expected"),
    [(72, 3, 3), (1 << 24, 1000, RING_BYTES >> 24), (RING_BYTES, 1000, 2)],
)
def test_slots_lie_apart_and_are_as_many_as_are_needed_or_fit_into_the_ring(
    nbytes: int, most: int, expected: int
) -> None:
    slots = Slots(nbytes, most)
    memory = [slots.next() for _ in range(expected)]
    for number, slot in enumerate(memory):
        slot[0] = slot[-1] = number + 1
    assert [(slot[0], slot[-1]) for slot in memory] == [(number + 1,) * 2 for number in range(expected)]
    assert slots.next()[0] == 1, "the ring is over"


@pytest.mark.parametrize("nbytes", SIZES)
def test_memcpy_has_a_rate(nbytes: int) -> None:
    assert memcpy_mb_per_s(nbytes) > 0

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tianji_transports.errors import TransportError, TransportMemoryError
from tianji_transports.shm.page import SHM, job_stem
from tianji_transports.shm.transport import ShmTransport, remove_stale
from tianji_transports.testing import Job, verbs
from tianji_transports.wiring import Channel, Slot, Wiring

RANKS = """
import sys
from tianji_transports.shm.transport import ShmTransport
from tianji_transports.testing import verbs
from tianji_transports.wiring import Channel, Slot, Wiring
wiring = Wiring(sys.argv[1], (Channel("f", 0, (0,), 100_000),), (Slot("p", 0, (0,), 1000),))
endpoint = ShmTransport(wiring, 0)
verbs.stream(endpoint, 0, "f", 2)
verbs.publish(endpoint, "p", 1, 1000)
claim = verbs.claim(endpoint, "f")
print("running", flush=True)
sys.stdin.read()
"""


def names(job: str) -> list[Path]:
    return list(SHM.glob(f"{job_stem(job)}*"))


def test_what_a_sigkill_of_everything_left_is_removed() -> None:
    job = f"killed-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", RANKS, job], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        assert job_stem(job) not in remove_stale(), "the job is alive"
        assert len(names(job)) > 3
        process.kill()
    assert names(job)
    assert job_stem(job) in remove_stale()
    assert names(job) == []
    assert job_stem(job) not in remove_stale()


def test_a_restarted_job_of_the_same_name_works_after_a_sigkill_of_everything() -> None:
    job = f"again-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-c", RANKS, job], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"running\n"
        process.kill()
    remove_stale()
    wiring = Wiring(job, (Channel("f", 0, (0,), 5),))
    with ShmTransport(wiring, 0) as endpoint:
        verbs.push(endpoint, 0, "f", 0, 5)
        verbs.receive(endpoint, "f", 0, 0)
    assert names(job) == []


def test_the_last_endpoint_removes_every_name_of_the_job() -> None:
    with Job("shm", (Channel("f", 0, (1,), 1000),), (Slot("p", 0, (1,), 1000),)) as job:
        receiver, sender = job.open(0), job.start(1)
        sender.tell("push", 0, "f", 0)
        verbs.receive(receiver, "f", 1, 0)
        sender.answer()
        receiver.close()
        assert names(job.wiring.job), "the sender is still there"
        job.stop(sender)
        assert names(job.wiring.job) == []


def test_a_wiring_beyond_the_shared_memory_names_the_way_out() -> None:
    job = f"huge-{os.getpid()}"
    free = os.statvfs(SHM)
    nbytes = free.f_bavail * free.f_frsize // 2
    wiring = Wiring(job, (Channel("f", 0, (1,), min(nbytes, 1 << 34), window=4000),))
    with pytest.raises(TransportMemoryError, match="--shm-size"):
        ShmTransport(wiring, 0)
    assert names(job) == []


def test_another_wiring_under_the_same_job_is_refused() -> None:
    job = f"twice-{os.getpid()}"
    with ShmTransport(Wiring(job, (Channel("f", 0, (1,), 100),)), 0):
        for channel in (Channel("f", 0, (1,), 200), Channel("f", 0, (1, 2), 100)):
            with pytest.raises(TransportError, match="wiring"):
                ShmTransport(Wiring(job, (channel,)), 1)
    assert names(job) == []


def test_a_slot_writer_needs_no_more_buffers_than_readers_plus_two() -> None:
    readers = (1, 2, 3)
    with Job("shm", slots=(Slot("p", 0, readers, 1000),)) as job:
        writer = job.open(0)
        held = []
        for version, rank in enumerate(readers):
            verbs.publish(writer, "p", version, 1000)
            value = job.open(rank).latest("p")
            assert value is not None
            held.append(value)
        for version in range(3, 20):
            verbs.publish(writer, "p", version, 1000)
        for version, value in enumerate(held):
            verbs.check(value.view(), 0, version)
            value.release()


def test_other_users_of_iceoryx2_are_left_alone() -> None:
    before = set(Path("/tmp").glob("iceoryx2*")) | set(SHM.glob("iox2_*"))
    with Job("shm", (Channel("f", 0, (0,), 1000),)) as job:
        endpoint = job.open(0)
        verbs.push(endpoint, 0, "f", 0)
        verbs.receive(endpoint, "f", 0, 0)
        assert set(Path("/tmp").glob("iceoryx2*")) | set(SHM.glob("iox2_*")) == before

"""A host of actors that fails in many ways while a job trains, between network namespaces."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from beds.namespaces import Wire
from beds.training import ENDLESS, Training


@pytest.fixture
def training(
    wire: Wire, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Training, subprocess.Popen[bytes]]]:
    one = Training(wire, tmp_path, request.param, *ENDLESS)
    try:
        yield one, one.join()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.root.pid, signal.SIGKILL)
        one.root.wait()


over = pytest.mark.parametrize(
    "training", ["zmq", pytest.param("ucx", marks=pytest.mark.soak)], indirect=True, ids=str
)
Begun = tuple[Training, subprocess.Popen[bytes]]


def is_missed(training: Training, times: int = 1) -> bool:
    return training.log.count("a host that joins takes its place") == times


@over
def test_a_host_that_is_killed_twice_comes_again(training: Begun) -> None:
    job, host = training
    for times in (1, 2):
        os.killpg(host.pid, signal.SIGKILL)
        host.wait()
        job.until(lambda times=times: is_missed(job, times), "it is missed")
        job.train_on()
        host = job.join()
    summary = job.finish()
    assert host.wait(60) == 0
    assert [role["restarts"] for role in summary["roles"] if role["role"] == "actor"] == [0, 2]


@pytest.mark.soak
@pytest.mark.timeout(400)
@over
def test_a_host_that_was_suspended_for_90_seconds_is_fenced_and_takes_a_seat_anew(training: Begun) -> None:
    job, host = training
    old = job.actors
    pids = job.wire.hosts[1].processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    job.until(lambda: is_missed(job), "it is given up")
    job.train_on()
    time.sleep(25)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    job.until(lambda: bool(job.actors - old) and not job.actors & old, "it has taken its seat anew")
    job.train_on(10_000)
    job.finish()
    assert host.wait(60) == 0


@pytest.mark.soak
@pytest.mark.timeout(400)
@over
@pytest.mark.parametrize("seconds", [10, 75])
def test_a_host_that_was_cut_off(training: Begun, seconds: int) -> None:
    job, host = training
    job.wire.set_link(up=False)
    time.sleep(seconds)
    if seconds > 60:
        job.until(lambda: is_missed(job), "it is given up")
    job.train_on()
    job.wire.set_link(up=True)
    if seconds > 60:
        assert host.wait(60) == 1, "its root was gone"
        host = job.join()
    job.train_on(10_000)
    summary = job.finish()
    assert host.wait(60) == 0
    assert len(summary["last_report_only"]) == (seconds > 60)


@pytest.mark.soak
@pytest.mark.timeout(400)
@over
def test_a_host_far_away_loses_nothing(training: Begun) -> None:
    job, host = training
    job.wire.slow_down(delay_s=0.2, loss=0.05)
    job.train_on(20_000)
    summary = job.finish()
    assert host.wait(60) == 0
    assert (summary["lost"], summary["last_report_only"]) == (0, [])

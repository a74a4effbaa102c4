"""The launcher, and a fork server that does not listen: nothing is waited for, and nothing is forgotten."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tianji_cli.config.loader import dump_config, load_config
from tianji_cli.errors import ProcessExit
from tianji_cli.launch.local import LocalLauncher
from tianji_cli.plan.plan import make_plan
from tianji_cli.plan.spec import JobSpec, ProcessSpec

MANY = 20_000
"""More requests than any buffer of a socket takes."""


def of_rank(rank: int) -> ProcessSpec:
    return ProcessSpec(rank, 0, f"actor {rank}", Path(f"actor-{rank}.log"))


def job_of(place: Path) -> JobSpec:
    """A job whose workers find no root, and end."""
    job = load_config("configs/ppo_cartpole.toml")
    return JobSpec("", dump_config(job), make_plan(job), place, place, path=tuple(sys.path))


@pytest.fixture
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher() as launcher:
        yield launcher


def test_requests_wait_for_no_server_and_all_are_answered_for_when_it_is_ended(
    launcher: LocalLauncher,
) -> None:
    os.kill(launcher.pid, signal.SIGSTOP)
    while not launcher.stopped:
        launcher.wait(0.01)
    workers = [launcher.start(of_rank(rank)) for rank in range(MANY)]
    launcher.check()
    assert launcher.exited == []
    launcher.start_no_more()
    assert launcher.exited == workers
    assert {(worker.pid, worker.exit) for worker in workers} == {(None, ProcessExit())}


def test_what_the_server_did_not_take_at_once_it_takes_when_it_goes_on(launcher: LocalLauncher) -> None:
    os.kill(launcher.pid, signal.SIGSTOP)
    for rank in range(MANY):
        launcher.start(of_rank(rank))
    os.kill(launcher.pid, signal.SIGCONT)
    while not launcher.lost:
        launcher.wait(1.0)
        launcher.check()
    assert "a launcher says what the job is before it asks for a worker" in launcher.cause_of_loss()


def test_one_job_may_follow_another_and_nothing_said_of_the_first_concerns_it(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    job = job_of(tmp_path)
    for _ in range(2):
        launcher.begin(job)
        launcher.start_no_more()
        late = launcher.start(of_rank(1))
        assert late.exit == ProcessExit(), "it came too late"
        launcher.wait_for_server()
        launcher.begin(job)
        worker = launcher.start(replace(of_rank(1), log=tmp_path / "actor.log"))
        while worker.exit is None:
            launcher.wait(1.0)
            launcher.check()
        assert worker.pid is not None
        assert launcher.exited == [worker]
        launcher.start_no_more()
        launcher.wait_for_server()
    assert not launcher.lost

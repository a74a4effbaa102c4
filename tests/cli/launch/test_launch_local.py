"""The launcher, and a fork server that does not listen: nothing is waited for, and nothing is forgotten."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tianji_cli.errors import ProcessExit
from tianji_cli.launch.local import LocalLauncher
from tianji_cli.plan.spec import ProcessSpec

MANY = 20_000
"""More requests than any buffer of a socket takes."""


def of_rank(rank: int) -> ProcessSpec:
    return ProcessSpec(rank, 0, f"actor {rank}", Path(f"actor-{rank}.log"))


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

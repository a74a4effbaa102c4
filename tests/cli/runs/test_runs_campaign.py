"""Trainings that run side by side on cores of their own; other commands stand for them here."""

import os
import sys
import time
from pathlib import Path

import pytest

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.launch.children import process_state
from tianji_cli.runs.campaign import Campaign, Member

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
TELLS = "import os, sys; sys.exit(sum(1 << core for core in os.sched_getaffinity(0)))"


@pytest.mark.parametrize(
    ("cores", "each", "at_once"), [(16, 2, 8), (16, 5, 3), (2, 3, 1), (1, 1, 1), (7, 2, 3)]
)
def test_as_many_run_as_the_cores_carry_and_one_at_least(cores: int, each: int, at_once: int) -> None:
    assert Campaign(range(cores), each).at_once == at_once


@pytest.fixture
def members(tmp_path: Path) -> list[Member]:
    return [Member(RunDirectory(tmp_path / str(seed)), tmp_path / "base.toml", seed) for seed in range(3)]


def test_a_command_runs_on_cores_that_no_other_has_and_leaves_them_to_the_next(
    members: list[Member],
) -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    bits = {1 << core for core in cores}
    assert max(bits) < 128, "an exit status holds no more"
    with Campaign(cores, 1) as campaign:
        found = {}
        for member in members:
            while not campaign.has_room:
                found |= {ended.seed: how.status for ended, how in campaign.wait(10.0)}
            campaign.start(member, [sys.executable, "-c", TELLS])
        while campaign.running:
            found |= {ended.seed: how.status for ended, how in campaign.wait(10.0)}
    assert {found[0], found[1]} == bits
    assert found[2] in bits
    assert os.sched_getaffinity(0) >= set(cores)


def test_an_exception_ends_what_runs(members: list[Member]) -> None:
    campaign = Campaign(os.sched_getaffinity(0), 1)

    def interrupted() -> None:
        with campaign:
            campaign.start(members[0], SLEEPS)
            pids.append(next(iter(campaign._running.values()))[0].pid)
            raise KeyError

    pids: list[int] = []
    with pytest.raises(KeyError):
        interrupted()
    assert process_state(pids[0]) is None
    assert members[0].status == "waiting", "it has left no rows"
    assert campaign.running == ()


def test_a_command_that_cannot_be_run_takes_no_place(members: list[Member]) -> None:
    with Campaign(os.sched_getaffinity(0), 1) as campaign:
        with pytest.raises(FileNotFoundError):
            campaign.start(members[0], ["/nowhere/at/all"])
        assert campaign.has_room
        began_s = time.monotonic()
        assert campaign.wait(0.01) == []
        assert time.monotonic() - began_s < 60

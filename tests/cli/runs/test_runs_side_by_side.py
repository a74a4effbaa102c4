"""Commands that run side by side on cores of their own."""

import os
import sys
import time

import pytest

from tianji_cli.launch.children import process_state
from tianji_cli.runs.side_by_side import SideBySide

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]
TELLS = "import os, sys; sys.exit(sum(1 << core for core in os.sched_getaffinity(0)))"


@pytest.mark.parametrize(
    ("cores", "each", "at_once"), [(16, 2, 8), (16, 5, 3), (2, 3, 1), (1, 1, 1), (7, 2, 3)]
)
def test_as_many_run_as_the_cores_carry_and_one_at_least(cores: int, each: int, at_once: int) -> None:
    assert SideBySide[int](range(cores), each).at_once == at_once


def test_a_command_runs_on_cores_that_no_other_has_and_leaves_them_to_the_next() -> None:
    cores = sorted(os.sched_getaffinity(0))[:2]
    bits = {1 << core for core in cores}
    assert max(bits) < 128, "an exit status holds no more"
    with SideBySide[str](cores, 1) as runner:
        found = {}
        for key in "abc":
            while not runner.has_room:
                found |= {name: ended.status for name, ended in runner.wait(10.0)}
            runner.start(key, [sys.executable, "-c", TELLS])
        while runner.running:
            found |= {name: ended.status for name, ended in runner.wait(10.0)}
    assert {found["a"], found["b"]} == bits
    assert found["c"] in bits
    assert os.sched_getaffinity(0) >= set(cores)


def test_an_exception_ends_what_runs() -> None:
    runner = SideBySide[str](os.sched_getaffinity(0), 1)

    def interrupted() -> None:
        with runner:
            runner.start("a", SLEEPS)
            pids.append(next(iter(runner._running.values()))[0].pid)
            raise KeyError

    pids: list[int] = []
    with pytest.raises(KeyError):
        interrupted()
    assert process_state(pids[0]) is None
    assert runner.running == ()


def test_a_command_that_cannot_be_run_takes_no_place() -> None:
    with SideBySide[str](os.sched_getaffinity(0), 1) as runner:
        with pytest.raises(FileNotFoundError):
            runner.start("a", ["/nowhere/at/all"])
        assert runner.has_room
        began_s = time.monotonic()
        assert runner.wait(0.01) == []
        assert time.monotonic() - began_s < 60

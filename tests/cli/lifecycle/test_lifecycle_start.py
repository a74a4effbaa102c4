"""A job whose processes take their time to start: the others wait as long, and end as in training."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENDLESS = {"experiment": {"stop": {"env_steps": 10**9}}}

STUCK = """
import os, signal
from setproctitle import getproctitle
from tianji_envs.gym import GymFactory

class Stuck(GymFactory):
    def make(self, *arguments, **keywords):
        if os.environ["WHO_HANGS"] in getproctitle() and not os.path.exists("stuck"):
            with open("stuck", "w") as file:
                file.write(str(os.getpid()))
            while True:
                signal.pause()
        return super().make(*arguments, **keywords)
"""
"""The first process of a kind that builds an environment never comes back from it."""


@pytest.fixture
def waiting(workplace: Any) -> Callable[[str], tuple[Any, int]]:
    """Start a job of which one process hangs, and wait until the other is ready; gives the hanging one."""
    workplace.module(STUCK)
    file: Path = workplace.place / "stuck"

    def start(who: str) -> tuple[Any, int]:
        workplace.environment["WHO_HANGS"] = who
        run = workplace.train({"environment": {"type": "my_env:Stuck"}}, ENDLESS)

        def one_is_ready() -> bool:
            states = [role["state"] for row in run.rows for role in row["roles"] or () if role["rank"]]
            return "running" in states and file.exists() and bool(file.read_text())

        workplace.until(one_is_ready, "one process is ready and the other hangs")
        return run, int(file.read_text())

    return start


def test_who_waits_for_a_process_that_hangs_is_stopped_with_the_job(
    waiting: Callable[[str], tuple[Any, int]],
) -> None:
    run, _ = waiting("actor")
    run.command.signal_all(signal.SIGINT)
    run.command.wait(130)
    run.command.wait_for_all()


def test_who_waits_for_a_process_that_hangs_does_not_outlive_the_root(
    waiting: Callable[[str], tuple[Any, int]],
) -> None:
    run, _ = waiting("actor")
    os.kill(run.command.pid, signal.SIGKILL)
    assert run.command.wait() == -signal.SIGKILL
    run.command.wait_for_all()


def test_an_actor_that_hung_and_was_killed_is_started_again_and_nobody_waits_any_more(
    waiting: Callable[[str], tuple[Any, int]],
) -> None:
    run, hanging = waiting("actor")
    os.kill(hanging, signal.SIGKILL)
    run.train_until(1000)
    run.command.signal_all(signal.SIGINT)
    run.finish(130)


def test_a_learner_that_hung_and_was_killed_ends_the_job(waiting: Callable[[str], tuple[Any, int]]) -> None:
    run, hanging = waiting("learner")
    os.kill(hanging, signal.SIGKILL)
    run.command.wait(1)
    assert "was killed by SIGKILL" in run.command.last_words
    run.command.wait_for_all()

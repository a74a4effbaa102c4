"""Jobs whose environments must not be forked: workers that are started anew, and end as all others do."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS
from cli.sessions import in_session
from ports import free_address

ORIGINS = """
import os, pathlib, sys
from tianji_envs.gym import GymFactory

class Forked(GymFactory):
    def make(self, *arguments, **keywords):
        with open(os.environ["ORIGINS"], "a") as file:
            file.write(f"{os.getpid()} {pathlib.Path(sys.argv[0]).stem}\\n")
        return super().make(*arguments, **keywords)

class Fresh(Forked):
    wants_fresh_process = True
"""


BROKEN_PYTHON = """
import sys
if any("fresh_worker" in word for word in sys.orig_argv):
    sys.modules["pydantic"] = None
"""


@pytest.fixture
def origins(workplace: Any) -> Callable[[], dict[int, str]]:
    """The module that each process with environments was started as."""
    workplace.module(ORIGINS)
    file: Path = workplace.place / "origins"
    workplace.environment["ORIGINS"] = str(file)
    return lambda: {int(pid): module for pid, module in map(str.split, file.read_text().splitlines())}


def of_class(name: str, **distribution: Any) -> dict[str, Any]:
    return {"environment": {"type": f"my_env:{name}"}, "distribution": distribution}


@pytest.mark.parametrize(("kind", "module"), [("Fresh", "fresh_worker"), ("Forked", "fork_server")])
def test_processes_are_started_anew_where_the_environment_says_so(
    workplace: Any, origins: Callable[[], dict[int, str]], kind: str, module: str
) -> None:
    run = workplace.train(of_class(kind), {"experiment": {"eval_episodes": 2}})
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["evaluation"]["episodes"] == 2
    found = origins()
    assert len(found) == 4  # the first build; the actor; buffer and learner; the evaluator
    assert set(found.values()) == {module}


def test_a_killed_worker_that_was_started_anew_is_replaced_by_another_one(
    workplace: Any, origins: Callable[[], dict[int, str]]
) -> None:
    run = workplace.train(of_class("Fresh"), ENDLESS)
    run.train_until(1000)
    killed = run.command.kill("actor 0")
    workplace.until(lambda: len(origins()) == 4, "the actor is there again")
    assert killed in origins()
    run.train_until(run.env_steps + 4000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) == 1
    assert set(origins().values()) == {"fresh_worker"}


@pytest.mark.parametrize("moment_steps", [0, pytest.param(3000, marks=pytest.mark.soak)])
def test_an_interruption_ends_workers_that_are_being_started_anew_or_at_work(
    workplace: Any, origins: Callable[[], dict[int, str]], moment_steps: int
) -> None:
    run = workplace.train(of_class("Fresh"), ENDLESS)
    if moment_steps:
        run.train_until(moment_steps)
    else:
        run.command.pid_of("fork server")
        workplace.until(
            lambda: any("fresh_worker" in title for title in in_session(run.command.pid).values()), "a start"
        )
    run.command.signal_all(signal.SIGINT)
    run.command.wait(130)


def test_nobody_started_anew_outlives_a_killed_root_and_the_learner_saves_first(
    workplace: Any, origins: Callable[[], dict[int, str]]
) -> None:
    run = workplace.train(of_class("Fresh"), ENDLESS)
    run.train_until(5000)
    saved = run.saved_env_steps
    os.kill(run.command.pid, signal.SIGKILL)
    assert run.command.wait() == -signal.SIGKILL
    run.command.wait_for_all()
    assert run.saved_env_steps > saved
    # If the learner was not the last to end, the next command removes the shared memory.
    workplace.command("eval", str(run.path), "--episodes", "1").wait(0)


def test_what_keeps_a_process_from_being_started_anew_is_said_before_there_is_a_run(
    workplace: Any, origins: Callable[[], dict[int, str]]
) -> None:
    workplace.customize(BROKEN_PYTHON)
    run = workplace.train(of_class("Fresh"), ENDLESS)
    run.command.wait(2)
    assert "exited with status 1" in run.command.last_words
    assert "import of pydantic halted" in run.command.last_words
    assert not run.path.exists()


@pytest.mark.soak
def test_a_host_that_joins_starts_its_workers_anew_too(
    workplace: Any, origins: Callable[[], dict[int, str]]
) -> None:
    address = free_address()
    two = of_class("Fresh", transport="zmq", hosts=2, actor={"num": 2})
    run = workplace.train(two, options=("--listen", address, "--quiet"))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    assert run.finish()["status"] == "finished"
    host.wait(0)
    found = origins()
    assert len(found) == 4  # the first build; an actor of each host; buffer and learner
    assert set(found.values()) == {"fresh_worker"}


def test_a_fork_server_imports_nothing_for_workers_that_are_started_anew(
    workplace: Any, origins: Callable[[], dict[int, str]]
) -> None:
    workplace.begins_cold = True
    run = workplace.train(of_class("Fresh"), ENDLESS)
    run.train_until(1000)
    server = run.command.pid_of("fork server")
    assert "libtorch" not in Path(f"/proc/{server}/maps").read_text()
    run.command.signal_all(signal.SIGINT)
    run.finish(130)

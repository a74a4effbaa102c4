"""A job whose processes take their time to start: the others wait as long, and end as in training."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

STUCK = """
import os, signal
import gymnasium
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

class Pausing(gymnasium.Env):
    def __init__(self):
        signal.pause()
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


MEDDLED = """
import pathlib
pathlib.Path(__file__).with_name("meddled").touch()
"""


@pytest.mark.parametrize("who", ["first build", "actor", pytest.param("learner", marks=pytest.mark.soak)])
def test_a_start_that_hangs_ends_the_command_which_says_where(workplace: Any, who: str) -> None:
    workplace.module(STUCK)
    workplace.environment["WHO_HANGS"] = who
    command = workplace.train(
        {"environment": {"type": "my_env:Stuck", "start_limit_s": 8.0}}, ENDLESS
    ).command
    command.wait(2 if who == "first build" else 1)
    assert "environment.start_limit_s: a call had not returned after 8 s: " in command.last_words
    assert "in make: signal.pause()" in command.last_words


def test_an_environment_that_hangs_when_it_is_looked_at_ends_the_command(workplace: Any) -> None:
    workplace.module(STUCK)
    workplace.environment["PYTHONPATH"] = str(workplace.place)
    command = workplace.command("train", "--env", "my_env:Pausing", "--set", "environment.start_limit_s=8")
    command.wait(2)
    assert "in __init__: signal.pause()" in command.last_words


THREADED = """
import threading
import gymnasium

class Threaded(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        threading.Thread(target=threading.Event().wait).start()
"""


def test_a_thread_that_an_environment_leaves_holds_no_process_up(workplace: Any) -> None:
    workplace.module(THREADED)
    environment = {"num_envs": 2, "wrappers": ["my_env:Threaded"]}
    run = workplace.train({"environment": environment, "training": {"minibatch_size": 64}})
    run.finish()
    workplace.command("check", "run.toml").wait(0)
    workplace.command("eval", str(run.path), "--episodes", "1").wait(0)


def test_a_config_that_is_replaced_while_the_job_runs_is_read_by_no_process(workplace: Any) -> None:
    workplace.module(MEDDLED)
    run = workplace.train({"experiment": {"eval_episodes": 3}}, workplace.with_goal())
    run.train_until(1000)
    config = run.path / "config.toml"
    config.write_text(config.read_text().replace('type = "gym"', 'type = "my_env:Theirs"'))
    run.command.kill("actor 0")  # Its successor begins after the change, as the evaluator does.
    workplace.until(lambda: "restarting it" in run.log, "it is restarted")
    run.train_until(run.env_steps + 1000)
    run.reach_goal()
    summary = run.finish()
    assert sum(role["restarts"] for role in summary["roles"]) == 1
    assert summary["evaluation"]["episodes"] == 3
    assert not (workplace.place / "meddled").exists()


def test_a_fork_server_that_began_before_the_config_was_read_ends_with_the_command(workplace: Any) -> None:
    workplace.begins_cold = True
    run = workplace.train({"training": {"gama": 0.9}})
    run.command.wait(2)
    assert "did you mean 'gamma'?" in run.command.last_words
    run.command.wait_for_all()


UNFIT = {
    "Image": "a convolutional one would be right",
    "Tuple": "Box, Discrete, MultiBinary and MultiDiscrete",
    "Leaver": "exited with status 0; it wrote last: the last line",
}

ODD = """
import os, signal
import gymnasium as gym, numpy as np
from gymnasium.spaces import Box, Discrete, Tuple

class Image(gym.Env):
    observation_space, action_space = Box(0, 255, (84, 84, 3), np.uint8), Discrete(2)

class Odd(gym.Env):
    observation_space, action_space = Box(-1, 1, (4,)), Tuple((Discrete(2), Discrete(2)))

class Leaver(gym.Env):
    def __init__(self):
        print("the last line", flush=True)
        os._exit(0)

for name, kind in {"Image": Image, "Tuple": Odd, "Leaver": Leaver}.items():
    gym.register(f"{name}-v0", kind)
"""


@pytest.mark.parametrize("what", UNFIT)
@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["train", "dry-run"])
def test_what_cannot_be_built_is_the_only_error_and_leaves_no_run(
    workplace: Any, what: str, options: tuple[str, ...]
) -> None:
    (workplace.place / "odd.py").write_text(ODD)
    run = workplace.train({"environment": {"id": f"odd:{what}-v0"}}, options=options)
    run.command.wait(2)
    assert UNFIT[what] in run.command.stderr
    assert len(run.command.stderr.splitlines()) == 1
    assert not run.command.stdout
    assert not run.path.exists()


PRINTS = """
from tianji_envs.gym import GymFactory

class Prints(GymFactory):
    def make(self, *arguments, **keywords):
        while True:
            print("still loading" * 5000)
"""


def test_what_the_first_build_prints_without_end_does_not_fill_the_memory(workplace: Any) -> None:
    workplace.module(PRINTS)
    run = workplace.train({"environment": {"type": "my_env:Prints"}})
    printed = Path(f"/proc/{run.command.pid_of('first build')}/fd/1")

    def is_bounded() -> bool:
        memory = printed.stat()
        return memory.st_size > 1 << 26 and 512 * memory.st_blocks < memory.st_size / 4

    workplace.until(is_bounded, "memory is freed")
    run.command.signal_all(signal.SIGINT)
    run.command.wait(130)


def test_a_fork_server_that_dies_while_many_actors_start_holds_nothing_up(workplace: Any) -> None:
    run = workplace.train({"distribution": {"actor": {"num": 40}}})
    workplace.until(lambda: run.command.pids("actor"), "the first actor starts")
    run.command.kill("fork server")
    began = time.monotonic()
    run.command.wait(1)
    assert time.monotonic() - began < 35, "none of those that never began has anything to say"
    assert "the fork server was killed by SIGKILL" in run.command.last_words


def test_a_replay_that_cannot_fit_is_refused_before_anything_starts(workplace: Any) -> None:
    learner = {"agent": {"type": "dqn"}, "model": {"type": "mlp_q", "hidden": [16]}}
    workplace.base = {**learner, "experiment": {"name": "run", "stop": {"wall_s": 5.0}}}
    changes = {"distribution": {"groups": 2, "buffer": {"capacity": 10**9, "memory": "ram"}}}
    run = workplace.train(
        {"environment": {"type": "gym", "id": "CartPole-v1"}}, changes, options=("--dry-run",)
    )
    run.command.wait(2)
    assert "distribution.buffer.capacity: 2 replays of 1000000000 env steps take" in run.command.last_words
    assert "a capacity of at most" in run.command.last_words

"""Processes that die: who is restarted, what ends a run, what is left, and that the books are right."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

BROKEN = """
import atexit, os, signal, time
from contextlib import suppress
from pathlib import Path
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

FIRST = Path(__file__).with_name("first")
CLOSED = Path(__file__).with_name("closed")

class Base(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        if self.steps == 500:
            self.die()
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False

class Boom(Base):
    def die(self):
        raise RuntimeError("the boom\\nof two lines")

class Leaver(Base):
    def die(self):
        os._exit(0)

class Quitter(Base):
    def die(self):
        raise SystemExit(0)

class LateLeaver(Base):  # The first actor that comes so far leaves when the other was told to stop.
    def die(self):
        with suppress(FileExistsError), open(FIRST, "x") as first:
            first.write(str(os.getpid()))
        if FIRST.read_text() == str(os.getpid()):
            while not CLOSED.exists():
                time.sleep(0.01)
            os._exit(0)

    def close(self):
        if self.steps > 500:
            CLOSED.touch()

class Lingerer(Base):
    def die(self):
        atexit.register(time.sleep, 60)
        raise SystemExit(0)

class Suicide(Base):
    def die(self):
        os.kill(os.getpid(), signal.SIGSEGV)

class Leaky(Base):
    def die(self):
        atexit.register(time.sleep, 3.0)  # Its process takes longer to end than the root waits.
        self.leak = np.nan

    def step(self, action):
        shown, *rest = super().step(action)
        return shown + getattr(self, "leak", 0.0), *rest

class Old(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 1.0, False, {}

class Stillborn(Base):
    def __init__(self):
        raise ValueError("no such maze")

class Needy(Base):
    def __init__(self):
        import a_package_that_is_not_there
"""


LIMITED = "distribution.max_restarts_per_minute=1"


def of_class(name: str, transport: str = "shm", **distribution: Any) -> dict[str, Any]:
    return {
        "environment": {"type": f"my_env:{name}", "id": "", "num_envs": 8},
        "distribution": {"transport": transport, **distribution},
    }


@pytest.mark.parametrize(
    ("mode", "transport"),
    [
        ("async", "shm"),
        pytest.param("async", "zmq", marks=pytest.mark.soak),
        *(pytest.param(*one, marks=pytest.mark.soak) for one in (("sync", "shm"), ("async", "ucx"))),
    ],
)
def test_a_run_goes_on_to_its_end_though_actors_are_killed_at_random_moments(
    workplace: Any, mode: str, transport: str
) -> None:
    dice = random.Random(11)
    run = workplace.train(
        workplace.with_goal(),
        {"distribution": {"mode": mode, "transport": transport, "actor": {"num": 2}}},
    )
    run.train_until(1000)
    kills = 0
    while kills < 4:
        time.sleep(dice.uniform(0.1, 0.9))
        victim = run.command.kill(f"actor {dice.randrange(2)}")
        kills += 1
        while victim in run.command.pids("actor"):
            time.sleep(0.01)
    trained = run.env_steps
    workplace.until(lambda: run.log.count("; restarting it") == kills, "the last one is restarted")
    run.train_until(trained + 1000)
    run.reach_goal()
    summary = run.finish()

    assert summary["status"] == "finished"
    assert sum(role["restarts"] for role in summary["roles"]) == kills
    assert summary["received"] > trained
    run.check_refusals(kills, such_as="of a connection that did not come as far as to show a key")


@pytest.mark.parametrize("transport", ["shm", "inproc"])
def test_an_exception_in_an_environment_ends_the_run_with_it_as_the_last_line(
    workplace: Any, transport: str
) -> None:
    workplace.module(BROKEN)
    run = workplace.train(of_class("Boom", transport), ENDLESS)
    summary = run.finish(1)
    assert summary["status"] == "failed"
    assert "RuntimeError: the boom of two lines" in run.command.last_words
    (log,) = (run.path / "logs").glob("actor-*.log")
    assert str(log.relative_to(workplace.place)) in run.command.last_words
    assert "Traceback" in log.read_text()
    assert "in die" in log.read_text()
    # What was trained before is saved, also where the learner is in the same process.
    assert run.saved_env_steps == summary["received"] > 0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("Leaky", "environment 0 of actor 0 gave nan as observation[0] in step "),
        (
            "Old",
            "step() gave 4 values; gymnasium's (observation, reward, terminated, truncated, info) is wanted",
        ),
    ],
)
def test_an_environment_that_gives_what_nothing_can_be_learnt_from_is_named_and_not_the_loss(
    workplace: Any, kind: str, words: str
) -> None:
    workplace.module(BROKEN)
    run = workplace.train(of_class(kind), ENDLESS)
    run.finish(1)
    assert words in run.command.last_words
    assert "learning_rate" not in run.command.stderr


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("Leaver", "exited with status 0"),
        ("Quitter", "SystemExit: 0"),
        ("Stillborn", "ValueError: no such maze"),
        ("Needy", "No module named 'a_package_that_is_not_there'"),
    ],
)
def test_an_environment_that_cannot_go_on_ends_the_command_with_the_reason(
    workplace: Any, kind: str, cause: str
) -> None:
    workplace.module(BROKEN)
    run = workplace.train(of_class(kind), ENDLESS)
    status = run.command.wait()
    assert status in {1, 2}  # 2 where the config was refused before anything started.
    assert cause in run.command.stderr
    if status == 1:
        assert cause in run.command.last_words
    else:
        assert not run.path.exists()


def test_what_an_actor_left_unfinished_is_lost_though_it_was_killed_after_its_last_word(
    workplace: Any,
) -> None:
    workplace.module(BROKEN)
    run = workplace.train(of_class("Lingerer", actor={"send_size": 64}), ENDLESS)
    summary = run.finish(1)
    assert "SystemExit: 0" in run.command.last_words
    assert summary["lost"] > 0
    assert "in none of the accounts" not in run.log


def test_an_actor_that_dies_again_and_again_ends_the_run(workplace: Any) -> None:
    workplace.module(BROKEN)
    run = workplace.train(of_class("Suicide", max_restarts_per_minute=2), ENDLESS)
    summary = run.finish(1)
    assert "was killed by SIGSEGV" in run.command.last_words
    assert "limited to 2 a minute" in run.command.last_words
    assert sum(role["restarts"] for role in summary["roles"]) == 2
    assert summary["lost"] > 0


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("Boom", "actor 0 (group 0): RuntimeError: the boom of two lines (its output: "),
        ("Leaver", "actor 0 (group 0) exited with status 0 (its output: "),
        pytest.param("Quitter", "actor 0 (group 0): SystemExit: 0 (its output: ", marks=pytest.mark.soak),
    ],
)
def test_an_environment_that_raises_or_leaves_is_restarted_where_that_is_asked_for(
    workplace: Any, kind: str, cause: str
) -> None:
    workplace.module(BROKEN)
    on_error = {"environment": {"on_error": "restart"}}
    twice = {"experiment": {"stop": {"env_steps": 10_000}}}
    run = workplace.train(of_class(kind), on_error, twice)
    summary = run.finish()
    restarts = sum(role["restarts"] for role in summary["roles"])
    assert restarts >= 2
    assert run.log.count("; restarting it") == restarts
    assert run.log.count(cause) == restarts + run.log.count("while it was stopping")
    assert summary["lost"] > 0

    again = workplace.resume(run, "--set", f"experiment.stop.env_steps={10**9}", "--set", LIMITED)
    again.finish(1)
    assert cause in again.command.last_words
    assert again.command.last_words.endswith("; restarts are limited to 1 a minute")


def test_an_environment_that_leaves_while_its_actor_stops_does_not_fail_the_run(workplace: Any) -> None:
    workplace.module(BROKEN)
    on_error = {"environment": {"on_error": "restart"}}
    goal = {"experiment": {"stop": {"env_steps": 10_000}}}
    run = workplace.train(of_class("LateLeaver", actor={"num": 2}), on_error, goal)
    assert sum(role["restarts"] for role in run.finish()["roles"]) == 0
    assert "exited with status 0" in run.log
    assert "while it was stopping" in run.log


def test_a_dead_learner_ends_the_run_which_can_be_resumed(workplace: Any) -> None:
    run = workplace.train(ENDLESS, {"experiment": {"checkpoint_every_s": 0.2}})
    run.train_until(5000)
    while run.saved_env_steps == 0:
        time.sleep(0.01)
    run.command.kill("buffer and learner")
    summary = run.finish(1)
    assert "buffer and learner (group 0) was killed by SIGKILL" in run.command.last_words
    saved = run.saved_env_steps
    assert saved > 0
    assert summary["status"] == "failed"

    text = (run.path / "config.toml").read_text()
    assert str(10**9) in text.replace("_", "")
    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={saved + 4096}")
    again = resumed.finish()
    assert again["status"] == "finished"
    assert again["env_steps"] == saved + again["received"] >= saved + 4096
    assert again["updates"] > again["received"] // 512 * 8  # The counters went on from the checkpoint's.


def test_a_killed_evaluator_fails_the_run_and_leaves_what_was_trained(workplace: Any) -> None:
    run = workplace.train({"experiment": {"eval_episodes": 100000}})
    run.command.kill("evaluator")
    summary = run.finish(1)
    assert summary["evaluation"] is None
    assert "the evaluation failed, after training was over (" in run.command.last_words
    assert "was killed by SIGKILL" in run.command.last_words
    assert run.saved_env_steps == summary["env_steps"]


def test_a_dead_fork_server_ends_the_run_in_order(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    run.command.kill("fork server")
    summary = run.finish(1)
    assert "fork server" in run.command.last_words
    assert run.saved_env_steps == summary["received"]
    assert summary["lost"] == 0


@pytest.mark.parametrize("transport", ["shm", "inproc", pytest.param("zmq", marks=pytest.mark.soak)])
def test_nobody_outlives_a_killed_root_and_the_learner_saves_first(workplace: Any, transport: str) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"transport": transport}})
    run.train_until(5000)
    saved = run.saved_env_steps
    os.kill(run.command.pid, signal.SIGKILL)
    assert run.command.wait() == -signal.SIGKILL
    run.command.wait_for_all()
    assert run.saved_env_steps > saved

    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={run.saved_env_steps + 2048}")
    assert resumed.finish()["env_steps"] > run.saved_env_steps - 4096


def test_the_next_command_removes_what_a_sigkill_of_everything_left(workplace: Any) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(1000)
    left = {path.name for path in run.path.parent.parent.parent.rglob("job.key")}
    assert left
    run.command.signal_all(signal.SIGKILL)
    run.command.wait()
    run.command.wait_for_all()
    assert workplace.stale_shared_memory(), "something has to be left for this to be a test"
    workplace.command("eval", str(run.path), "--episodes", "1").wait(0)
    # The fixture finds no names of dead jobs now.


def test_nothing_stays_in_shared_memory_though_an_actor_outlives_the_learner_of_a_killed_root(
    workplace: Any,
) -> None:
    run = workplace.train(ENDLESS)
    run.train_until()
    actor = run.command.kill("actor 0", signal.SIGSTOP)
    os.kill(run.command.pid, signal.SIGKILL)
    run.command.wait(-signal.SIGKILL)
    workplace.until(lambda: not run.command.pids("buffer and learner"), "the learner ends")
    os.kill(actor, signal.SIGCONT)
    run.command.wait_for_all()  # Nothing stays behind, as after every test.


STARTS = """
import os, subprocess
import gymnasium

# A simulator that hears no SIGTERM, its child, and one that has lost its parent; in sessions of their own.
SIMULATOR = '''
trap "" TERM
(trap - TERM; exec sleep 1000) & echo $0 $! >> "$PIDS"
echo $0 $$ >> "$PIDS"
echo begun
while :; do sleep 1000; done
'''

class Starts(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        command = ["sh", "-c", SIMULATOR, str(os.getpid())]
        simulator = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        simulator.stdout.readline()  # It hears no SIGTERM now.
        subprocess.run(["sh", "-c", 'setsid sleep 1000 & echo $0 $! >> "$PIDS"', str(os.getpid())])
"""
"""A program that an environment starts and does not end."""


class Simulators:
    """The programs that the environments of a test have started."""

    def __init__(self, workplace: Any) -> None:
        self._notes = workplace.place / "pids"
        workplace.module(STARTS)
        workplace.environment["PIDS"] = str(self._notes)

    def of(self, worker: int | None = None) -> set[int]:
        """The programs that one process has started, or all."""
        lines = self._notes.read_text().splitlines() if self._notes.exists() else []
        pairs = (map(int, line.split()) for line in lines)
        return {pid for by, pid in pairs if worker in (None, by)}

    @property
    def alive(self) -> set[int]:
        return {pid for pid in self.of() if Path(f"/proc/{pid}").exists()}


STARTING = {"environment": {"num_envs": 1, "wrappers": ["my_env:Starts"]}, "training": {"minibatch_size": 64}}


def test_what_environments_have_started_ends_with_a_run_that_ends_in_order(workplace: Any) -> None:
    simulators = Simulators(workplace)
    workplace.train(STARTING).finish()
    assert len(simulators.of()) >= 3 * 2, "those of the first build and of the actor"
    assert not simulators.alive


def test_what_its_environments_have_started_ends_with_a_killed_actor_and_not_with_another(
    workplace: Any,
) -> None:
    simulators = Simulators(workplace)
    run = workplace.train(STARTING, ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until()
    other = simulators.of(run.command.pid_of("actor 1"))
    killed = run.command.kill("actor 0")
    assert len(simulators.of(killed)) >= 3 <= len(other)
    workplace.until(lambda: not simulators.of(killed) & simulators.alive, "what it has started ends")
    assert other <= simulators.alive
    os.kill(run.command.pid, signal.SIGKILL)
    run.command.wait(-signal.SIGKILL)
    run.command.wait_for_all()
    assert not simulators.alive


def test_what_environments_have_started_ends_with_a_run_whose_fork_server_was_killed(workplace: Any) -> None:
    simulators = Simulators(workplace)
    run = workplace.train(STARTING, ENDLESS)
    run.train_until(1000)
    run.command.kill("fork server")
    summary = run.finish(1)
    assert summary["status"] == "failed"
    assert "the fork server was killed by SIGKILL" in summary["reason"]
    assert run.saved_env_steps == summary["received"]
    assert not simulators.alive
    more = f"experiment.stop.env_steps={run.saved_env_steps + 2048}"
    assert workplace.resume(run, "--set", more).finish()["status"] == "finished"
    assert not simulators.alive


@pytest.mark.parametrize("command", [("check", "run.toml"), ("eval", "out/run/1")])
def test_what_environments_have_started_ends_with_a_command_that_steps_them_itself(
    workplace: Any, command: tuple[str, ...]
) -> None:
    simulators = Simulators(workplace)
    workplace.train(STARTING).finish()
    before = simulators.of()
    workplace.command(*command).wait()
    assert simulators.of() - before
    assert not simulators.alive

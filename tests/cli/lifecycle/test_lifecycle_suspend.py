"""Suspended processes are not dead: they are reported, waited for, and only ended when the run ends."""

import os
import signal
import time
from typing import Any

from cli.lifecycle.conftest import ENDLESS


def test_a_suspended_actor_is_reported_and_goes_on_when_it_is_continued(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    actor = run.command.kill("actor 0", signal.SIGSTOP)
    workplace.until(lambda: "nothing heard of actor 0" in run.log, "it is missed")
    steps = run.env_steps
    os.kill(actor, signal.SIGCONT)
    run.train_until(steps + 1000)
    assert "actor 0 (group 0) is heard of again" in run.log
    assert run.command.pids("actor 0") == [actor]
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert sum(role["restarts"] for role in summary["roles"]) == 0
    assert summary["lost"] == 0


def test_an_actor_that_is_suspended_when_the_run_ends_is_killed_and_accounted_for(
    workplace: Any,
) -> None:
    run = workplace.train(ENDLESS, {"distribution": {"actor": {"num": 2}}})
    run.train_until(3000)
    run.command.kill("actor 1", signal.SIGSTOP)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["status"] == "stopped"
    assert summary["dropped"] + summary["in_flight"] + summary["lost"] < 1000  # Windows of two fragments.
    assert run.saved_env_steps == summary["env_steps"]


STUCK = """
import time
from tianji_envs.core import BaseEnv
import gymnasium, numpy as np

class Stuck(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        if self.steps == 500:
            time.sleep(3600)
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False
"""

SAVED_REPLAY: dict[str, Any] = {
    "environment": {"type": "my_env:Stuck", "num_envs": 2},
    "agent": {"type": "dqn"},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 32, "warmup_steps": 128, "replay_ratio": 1.0},
    "distribution": {"buffer": {"save_with_checkpoint": True, "capacity": 8192}},
}


def test_a_suspended_fork_server_is_named_and_holds_no_end_up(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    server = run.command.kill("fork server", signal.SIGSTOP)
    named = f"the fork server (process {server}) is stopped"
    workplace.until(lambda: named in run.log, "the server is named")
    run.command.signal_all(signal.SIGINT)
    began = time.monotonic()
    summary = run.finish(130)
    assert time.monotonic() - began < 60
    assert summary["status"] == "stopped"
    assert summary["lost"] == 0
    assert run.saved_env_steps == summary["env_steps"]


def test_with_a_suspended_fork_server_a_second_signal_ends_a_run_that_does_not_stop(workplace: Any) -> None:
    run = workplace.train(ENDLESS)
    run.train_until(1000)
    run.command.kill("fork server", signal.SIGSTOP)
    run.command.kill("buffer and learner", signal.SIGSTOP)
    run.command.interrupt()
    run.command.signal_all(signal.SIGINT)
    assert run.finish(130)["status"] == "stopped"


def test_a_run_that_is_over_is_so_though_its_fork_server_is_suspended(workplace: Any) -> None:
    run = workplace.train({"experiment": {"eval_episodes": 5}}, workplace.with_goal())
    run.train_until(1000)
    run.command.kill("fork server", signal.SIGSTOP)
    run.reach_goal()
    summary = run.finish()
    assert summary["status"] == "finished"
    assert "no evaluation: the fork server was stopped" in summary["reason"]
    assert summary["evaluation"] is None
    assert "had ended after" not in run.command.stdout


def test_an_environment_that_hangs_is_given_no_time_to_save_a_replay(workplace: Any) -> None:
    workplace.module(STUCK)
    workplace.base = SAVED_REPLAY | {"experiment": {"name": "run", "eval_episodes": 0}}
    run = workplace.train(ENDLESS)
    run.train_until(900)
    workplace.until(lambda: "nothing heard of actor 0" in run.log, "the actor hangs")
    run.command.signal_all(signal.SIGINT)
    began = time.monotonic()
    summary = run.finish(130)
    assert time.monotonic() - began < 90, "the replay's own time is two minutes"
    assert "actor 0 (group 0) did not stop within 1.5 s: killed" in run.log
    assert "in step\n" in next((run.path / "logs").glob("actor-*.log")).read_text()
    assert (run.path / "checkpoints/replay").exists()
    assert summary["lost"] > 0

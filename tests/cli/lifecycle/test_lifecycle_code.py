"""The user's modules are edited under a run: it goes on with what they were when its session began."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = """
import os
from pathlib import Path
import gymnasium
import amounts
from tianji_envs.gym import GymFactory

class Paid(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.left = 0
        if Path("broken").exists():  # It is built once before processes start, which then fail.
            Path("broken").write_text(Path("broken").read_text() or str(os.getpid()))
            assert Path("broken").read_text() == str(os.getpid()), "not today"

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), amounts.REWARD, self.left == 0, False, {}

class Fresh(GymFactory):
    wants_fresh_process = True

gymnasium.register("Paid-v0", Paid)
"""
ENDLESS = {"experiment": {"stop": {"env_steps": 10**9}}, "environment": {"id": "my_env:Paid-v0"}}


@pytest.fixture
def pays(workplace: Any) -> Any:
    """Writes what the environment pays in a step, in a module that its own module imports."""
    workplace.module(ENVIRONMENT)

    def pay(reward: float) -> None:
        (Path(workplace.place) / "amounts.py").write_text(f"REWARD = {reward}\n")

    pay(1.0)
    return pay


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["gym", "my_env:Fresh"])
def test_a_restarted_actor_runs_the_code_of_the_start_and_a_resumed_run_names_what_changed(
    workplace: Any, pays: Any, kind: str
) -> None:
    run = workplace.train(ENDLESS, {"environment": {"type": kind}})
    run.train_until(500)
    pays(100.0)
    run.command.kill("actor 0")
    workplace.until(lambda: "restarting" in run.log, "the actor is restarted")
    before = run.env_steps
    run.train_until(before + 4000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    assert first["returns"]["mean_100"] == 10.0, "the last 100 episodes are the new actor's"
    (session,) = map(json.loads, (run.path / "sessions.jsonl").read_text().splitlines())
    assert set(session["code"]) == {"my_env", "amounts"}

    evaluated = workplace.command("eval", str(run.path), "--episodes", "2", "--json", "-")
    evaluated.wait(0)
    assert json.loads(evaluated.stdout)["mean"] == 1000.0
    assert "warning: the code of amounts changed" in evaluated.stderr

    steps = first["env_steps"] + 4000
    again = workplace.command(
        "train", "--resume", str(run.path), "--set", f"experiment.stop.env_steps={steps}"
    )
    again.wait(0)
    assert again.stderr.count("the code of amounts changed") == 1
    assert run.summary["returns"]["mean_100"] == 1000.0
    assert run.summary["returns"]["best_mean_100"] > 10.0


@pytest.mark.timeout(300)
def test_a_run_that_goes_on_with_the_same_code_says_nothing_of_it(workplace: Any, pays: Any) -> None:
    run = workplace.train(ENDLESS, {"experiment": {"stop": {"env_steps": 1000}}})
    run.finish()
    pays(1.0)
    again = workplace.command("train", "--resume", str(run.path), "--set", "experiment.stop.env_steps=2000")
    again.wait(0)
    assert "the code of" not in again.stderr


@pytest.mark.timeout(300)
def test_changed_code_is_named_and_goals_are_open_again_also_after_a_session_that_did_not_begin(
    workplace: Any, pays: Any
) -> None:
    goal = {"experiment": {"stop": {"mean_return": 9.0, "env_steps": 4000}}}
    run = workplace.train(ENDLESS, goal)
    assert run.finish()["reason"].startswith("mean return")
    reached = workplace.command("train", "--resume", str(run.path))
    reached.wait(0)
    assert "has reached its goal" in reached.stdout

    pays(0.5)
    (Path(workplace.place) / "broken").touch()
    broken = workplace.command("train", "--resume", str(run.path))
    broken.wait(1)
    assert "not today" in broken.stderr
    assert "begins its own best" not in broken.stderr
    (Path(workplace.place) / "broken").unlink()
    again = workplace.command("train", "--resume", str(run.path))
    again.wait(0)
    assert "the code of amounts changed" in again.stderr
    assert run.summary["returns"]["best_mean_100"] == 5.0
    assert run.summary["reason"] == "4000 environment steps"

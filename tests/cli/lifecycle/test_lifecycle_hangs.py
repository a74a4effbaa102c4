"""Environments that do not come back from a call: who is ended, what its log has, how the run ends."""

from typing import Any

import pytest

HANGS = """
import os, pathlib, time
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

class Hangs(BaseEnv):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, at=500, once=False):
        self.at, self.once, self.steps = at, once, 0

    def reset(self, seed=None):
        if self.steps >= self.at:
            self.hang_in_reset()
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        if self.once and self.steps == self.at:
            try:
                pathlib.Path("hung").touch(exist_ok=False)
            except FileExistsError:
                self.at = 10**9
            else:
                time.sleep(1e9)
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False

    def hang_in_reset(self):
        time.sleep(1e9)
"""


def hanging(step_limit_s: float, at: int = 500, *, once: bool = False) -> dict[str, Any]:
    options = {"at": at, "once": once}
    of_it = {"type": "my_env:Hangs", "id": "", "num_envs": 8, "options": options}
    return {"environment": {**of_it, "step_limit_s": step_limit_s}}


@pytest.mark.parametrize("mode", [pytest.param("async", marks=pytest.mark.soak), "sync"])
def test_an_actor_that_hangs_in_a_step_comes_again_and_the_run_goes_on(workplace: Any, mode: str) -> None:
    workplace.module(HANGS)
    two = {"distribution": {"mode": mode, "actor": {"num": 2}}}
    run = workplace.train(hanging(3.0, once=True), two, {"experiment": {"stop": {"env_steps": 20_000}}})
    summary = run.finish()
    assert sum(role["restarts"] for role in summary["roles"]) >= 1
    assert " in a step, an action or a picture (its output: " in run.log
    assert any("in step\n" in log.read_text() for log in (run.path / "logs").glob("actor-*.log"))


def test_an_environment_that_hangs_again_and_again_ends_the_run_with_that_as_its_reason(
    workplace: Any,
) -> None:
    workplace.module(HANGS)
    few = {"distribution": {"max_restarts_per_minute": 1}}
    run = workplace.train(hanging(2.0), few, {"experiment": {"stop": {"env_steps": 10**9}}})
    summary = run.finish(1)
    assert "actor 0 (group 0) hung for " in summary["reason"]
    assert "restarts are limited to 1 a minute" in summary["reason"]
    assert summary["bottleneck"] is None, "no transport is to blame"
    (log,) = (run.path / "logs").glob("actor-*.log")
    assert "in hang_in_reset\n" in log.read_text()


def test_a_run_that_hangs_when_its_time_is_up_has_failed(workplace: Any) -> None:
    workplace.module(HANGS)
    run = workplace.train(hanging(3600.0), {"experiment": {"stop": {"wall_s": 12.0}}})
    summary = run.finish(1)
    assert summary["env_steps"] > 0
    assert "actor 0 (group 0) hangs, and nothing was made or learnt since" in summary["reason"]
    assert "12 s of training" in summary["reason"]
    (log,) = (run.path / "logs").glob("actor-*.log")
    assert "in hang_in_reset\n" in log.read_text()


def test_roles_that_share_a_process_with_one_that_hangs_end_with_it(workplace: Any) -> None:
    workplace.module(HANGS)
    run = workplace.train(
        hanging(0.2), {"distribution": {"transport": "inproc"}, "experiment": {"stop": {"env_steps": 10**9}}}
    )
    assert "hung for " in run.finish(1)["reason"]

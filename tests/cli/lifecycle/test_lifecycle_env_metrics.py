"""Runs whose environment is made by a function, wrapped, and asked for metrics, through the command line."""

from typing import Any

import pytest

WALK = """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-5, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.at = self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.at += 2 * int(action) - 1
        self.steps += 1
        there = self.at == 3
        info = {"success": there, "steps": self.steps, "name": "walk"}
        return np.full(1, self.at, np.float32), float(there), abs(self.at) == 3, self.steps == 12, info


def make(twice=False):
    return Walk()


def pays(env, price):
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward * price)
"""
FACTORY = """
import gymnasium
import numpy as np

from tianji_envs.core import EnvironmentFactory, VectorEnvironment


class Walks(VectorEnvironment):
    observation_space = gymnasium.spaces.Box(-5, 5, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, num_envs, metrics):
        self.num_envs = num_envs
        self.asked = metrics
        self.metrics = np.zeros((num_envs, len(metrics)), np.float32) if metrics else None
        self.at, self.steps = np.zeros((2, num_envs), np.int64)
        self.ended = np.zeros(num_envs, np.bool_)

    def reset(self, seed, observation):
        self.at[:] = self.steps[:] = observation[:] = 0
        self.ended[:] = False

    def step(self, actions, observation, reward, terminated, truncated):
        self.at[:] = np.where(self.ended, 0, self.at + 2 * actions - 1)
        self.steps[:] = np.where(self.ended, 0, self.steps + 1)
        observation[:, 0], reward[:] = self.at, 2 * (self.at == 3)
        terminated[:], truncated[:] = abs(self.at) == 3, self.steps == 12
        self.ended = terminated | truncated
        known = {"success": self.at == 3, "steps": self.steps}
        for k, name in enumerate(self.asked):
            self.metrics[self.ended, k] = known[name][self.ended]

    def render(self): ...

    def close(self): ...


class Factory(EnvironmentFactory):
    makes_teams = False
    takes_metrics = True

    def check_id(self, id): ...

    def make(
        self, id, num_envs, max_episode_steps=None, options=None, render=False,
        *, evaluation=False, threads=1, metrics=(),
    ):
        return Walks(num_envs, metrics)


class OneEach(Factory):
    def make(self, id, num_envs, *others, metrics=(), **more):
        return Walks(num_envs, metrics[:1])
"""
OF_FACTORY: dict[str, Any] = {"environment": {"type": "my_env:Factory", "wrappers": []}}
WALKS: dict[str, Any] = {
    "environment": {
        "type": "my_env:make",
        "id": "",
        "wrappers": [{"type": "my_env:pays", "price": 2}, "OrderEnforcing"],
        "metrics": ["success", "steps"],
    },
}
DQN: dict[str, Any] = {
    "experiment": {"stop": {"env_steps": 4096}},
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q"},
    "training": {"batch_size": 64, "replay_ratio": 1.0, "warmup_steps": 512, "publish_every": 8},
}
HERE = {"distribution": {"buffer": {"capacity": 4096}}}
ELSEWHERE = {"distribution": {"buffer": {"capacity": 4096, "colocate": False}}}


def of_dqn(workplace: Any) -> None:
    workplace.base = {
        **{key: value for key, value in workplace.base.items() if key not in ("training", "model")},
        "model": {"hidden": [16]},
    }


@pytest.mark.parametrize(
    ("module", "changes"),
    [
        pytest.param(WALK, (), id="rollouts"),
        pytest.param(WALK, (DQN, HERE), id="a replay"),
        pytest.param(WALK, (DQN, ELSEWHERE), id="a replay in a process of its own"),
        pytest.param(FACTORY, (OF_FACTORY,), id="rollouts of a factory of the user's own"),
        pytest.param(FACTORY, (OF_FACTORY, DQN, HERE), id="a replay of a factory of the user's own"),
    ],
)
def test_a_run_reports_the_metrics_of_its_episodes(
    workplace: Any, module: str, changes: tuple[Any, ...]
) -> None:
    workplace.module(module)
    if DQN in changes:
        of_dqn(workplace)
    run = workplace.train(WALKS, *changes, {"experiment": {"eval_episodes": 5}})
    summary = run.finish()
    returns, played = summary["returns"], summary["evaluation"]
    assert returns["episodes"] > 100
    # A success is paid with 2, by the wrapper or the factory's environments, and nothing else is.
    assert returns["metrics"]["success"] == pytest.approx(returns["mean_100"] / 2)
    assert 3 <= returns["metrics"]["steps"] <= 12
    assert played["metrics"]["success"] == pytest.approx(played["mean"] / 2)
    known = [row for row in run.rows if row.get("returns.metrics")]
    assert known
    assert all(
        row["returns.metrics"]["success"] == pytest.approx(row["returns.mean_100"] / 2) for row in known
    )
    assert "metrics         success " in run.command.stdout


def test_a_metric_that_is_not_there_ends_the_run_with_those_that_are(workplace: Any) -> None:
    workplace.module(WALK)
    run = workplace.train(WALKS, {"environment": {"metrics": ["succes"]}})
    run.finish(1)
    assert "environment.metrics: there is no 'succes' in the info of an episode's last step" in (
        run.command.last_words
    )
    assert "such are: 'success', 'steps'" in run.command.last_words


def test_a_factory_that_has_other_metrics_than_were_asked_for_is_refused(workplace: Any) -> None:
    workplace.module(FACTORY)
    other = {"environment": {"type": "my_env:OneEach"}}
    command = workplace.command("train", str(workplace.config(WALKS, OF_FACTORY, other)))
    command.wait(2)
    assert "environment.metrics: my_env:OneEach made environments with metrics of shape (1, 1)" in (
        command.stderr
    )
    assert "Traceback" not in command.stderr


def test_a_wrapper_that_raises_is_refused_before_anything_is_trained(workplace: Any) -> None:
    workplace.module(WALK)
    wrappers = ["OrderEnforcing", {"type": "RescaleObservation", "min_obs": 0, "max_obs": "x"}]
    command = workplace.command(
        "train", str(workplace.config(WALKS, {"environment": {"wrappers": wrappers}})), "--dry-run"
    )
    command.wait(2)
    assert "environment.wrappers[1] (RescaleObservation) cannot wrap" in command.stderr
    assert command.stdout == ""


@pytest.mark.parametrize(
    ("begins", "why"),
    [
        ("np.full(1, np.nan, np.float32), {}", "my_env:make gave nan as observation[0] when it was reset"),
        ("np.zeros(2, np.float32), {}", "shape (2,)"),
        (
            'np.zeros(1, np.float32), {"action_mask": np.zeros(2, np.int8)}',
            "my_env:make gave an action_mask that forbids all actions when it was reset",
        ),
    ],
)
def test_an_episode_that_cannot_be_acted_in_is_refused_before_there_is_a_run(
    begins: str, why: str, workplace: Any
) -> None:
    workplace.module(WALK.replace("np.zeros(1, np.float32), {}", begins))
    masked = {"environment": {"wrappers": ["ActionMask"] if "action_mask" in begins else [], "metrics": []}}
    command = workplace.command("train", str(workplace.config(WALKS, masked)))
    command.wait(2)
    assert why in command.last_words
    assert "Traceback" not in command.stderr
    assert not (workplace.place / "experiments").exists()


def test_a_mask_that_forbids_every_action_ends_the_run_and_is_named(workplace: Any) -> None:
    forbids = 'info = {"action_mask": np.full(2, self.steps != 5, np.int8), "success": there'
    begins = 'return np.zeros(1, np.float32), {"action_mask": np.ones(2, np.int8)}'
    workplace.module(
        WALK.replace('info = {"success": there', forbids).replace(
            "return np.zeros(1, np.float32), {}", begins
        )
    )
    masked = {"environment": {"wrappers": ["ActionMask"], "metrics": []}}
    run = workplace.train(WALKS, masked)
    run.finish(1)
    assert "gave an action_mask that forbids all actions in step " in run.command.last_words
    assert "one at least would be right" in run.command.last_words


@pytest.mark.parametrize("wrappers", [[], ["ActionMask"]])
def test_a_mask_that_policies_do_not_see_is_said(workplace: Any, wrappers: list[str]) -> None:
    begins = 'return np.zeros(1, np.float32), {"action_mask": np.ones(2, np.int8)}'
    forbids = 'info = {"action_mask": np.array([1, 0], np.int8), "success": there'
    module = WALK.replace("return np.zeros(1, np.float32), {}", begins)
    workplace.module(module.replace('info = {"success": there', forbids))
    run = workplace.train(WALKS, {"environment": {"wrappers": wrappers, "metrics": []}})
    run.finish()
    assert run.log.count("info has an action_mask that policies do not see") == (not wrappers)

"""Runs that nothing disturbs: what they leave behind and what it says."""

import json
from typing import Any

import pytest

SUMMARY_KEYS = """
    schema experiment status reason session wall_s train_s env_steps updates transport mode groups produced
    received consumed in_flight lost dropped produced_per_s received_per_s consumed_per_s replay_ratio
    staleness returns time_to evaluation rejected_frames roles last_report_only sample_age uses replay
    staleness_p stale_priorities bottleneck averaging by_group extra overshoot frames frames_per_s
    version frames_per_step losses
"""


@pytest.mark.parametrize(
    "transport",
    ["inproc", "shm", *(pytest.param(one, marks=pytest.mark.soak) for one in ("zmq", "mpi", "ucx"))],
)
def test_a_finished_run_leaves_everything_the_design_names(workplace: Any, transport: str) -> None:
    run = workplace.train(
        {
            "experiment": {"eval_episodes": 3, "thresholds": [10.0, 475.5], "plots": True},
            "distribution": {"transport": transport},
        },
        options=("--quiet", "--json", "figures.json"),
    )

    summary = run.finish()

    assert list(summary) == SUMMARY_KEYS.split()
    assert list(summary["roles"][0]) == ["rank", "role", "group", "host", "cores", "restarts", "busy"]
    assert list(summary["time_to"]) == ["10", "475.5"]
    assert summary["evaluation"]["episodes"] == 3
    assert (summary["status"], summary["transport"]) == ("finished", transport)
    run.check_refusals()
    assert summary["lost"] == 0
    assert summary["env_steps"] == summary["received"] >= 2048
    assert json.loads((workplace.place / "figures.json").read_text()) == summary | {"run": str(run.path)}
    files = {str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file()}
    for rank, role in enumerate(dict.fromkeys(role["rank"] for role in summary["roles"])):
        roles = [entry["role"] for entry in summary["roles"] if entry["rank"] == role]
        assert f"logs/{'-'.join(dict.fromkeys(roles))}-{rank}.log" in files
    for checkpoint in ("last", "best"):
        assert (run.path / "checkpoints" / checkpoint / "model.safetensors").is_file()
    assert {"config.toml", "metrics.jsonl", "summary.json"} <= files
    assert any(name.startswith("events.out.tfevents") for name in files)
    assert any(name.startswith("plots/") and name.endswith(".png") for name in files)
    assert "finished" in run.command.stdout
    assert not run.command.stderr


KINDS = {
    "ppo_cartpole": "shm",
    "impala_cartpole": "shm",
    "a2c_cartpole": "inproc",
    "dqn_cartpole": "shm",
    "qmix_two_step": "inproc",
    "maddpg_adversary": "shm",
    "mappo_spread": "shm",
    "sac_pendulum": "shm",
    "td3_hopper": "inproc",
    "ppo_memory": "shm",
    "dqn_minatar_breakout": "shm",
}


@pytest.mark.parametrize(("config", "transport"), KINDS.items())
def test_each_kind_of_algorithm_trains_and_its_policy_plays(
    workplace: Any, config: str, transport: str
) -> None:
    settings = {"experiment.stop": "{env_steps=12_000}", "experiment.eval_episodes": "2"}
    settings |= {"experiment.plots": "false", "distribution.transport": f"'{transport}'"}
    if config in {"dqn_cartpole", "maddpg_adversary", "dqn_minatar_breakout"}:
        settings["training.warmup_steps"] = "1024"
    if config in {"sac_pendulum", "td3_hopper"}:
        few = {"training.replay_ratio": "16.0", "experiment.stop": "{env_steps=4_000}"}
        settings |= few | {"training.warmup_steps": "1024"}
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = workplace.command("train", config, "--out", "out", "--quiet", *words, "--json", "-")
    command.wait(0)
    summary = json.loads(command.stdout)
    assert (summary["status"], summary["transport"], summary["lost"]) == ("finished", transport, 0)
    assert summary["updates"] > 0
    assert summary["produced"] == sum(summary[account] for account in ("received", "in_flight", "dropped"))
    assert summary["evaluation"]["episodes"] == 2


SLOW = """
import time
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

class Slow(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        time.sleep(0.005)
        return np.zeros(2, np.float32), 1.0, False, False
"""


def test_many_actors_stop_producing_once_what_is_under_way_suffices(workplace: Any) -> None:
    workplace.module(SLOW)
    actors, fragment = 16, 8 * 16
    goal = 2 * actors * fragment  # Two fragments of each actor.
    run = workplace.train(
        {"experiment": {"stop": {"env_steps": goal}}, "distribution": {"actor": {"num": actors}}},
        {"environment": {"type": "my_env:Slow", "id": ""}},
    )
    summary = run.finish()
    assert (summary["overshoot"], summary["env_steps"]) == (0, goal)
    assert summary["produced"] == goal, "none began a fragment that was not needed"
    rows = run.rows
    assert [row["env_steps"] for row in rows] == sorted(row["env_steps"] for row in rows)
    assert rows[-1]["env_steps"] == summary["env_steps"]
    assert rows[-1]["reached"]["env_steps"] == summary["env_steps"]


ENDLESS_EPISODE = """
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

class Endless(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        return np.ones(2, np.float32), 1.0, False, False
"""


def test_a_run_in_step_produces_what_the_config_says_and_its_resolved_config_runs_again(
    workplace: Any,
) -> None:
    workplace.module(ENDLESS_EPISODE)
    first = workplace.train(
        {"environment": {"type": "my_env:Endless", "id": "", "num_envs": 8}},
        {"distribution": {"mode": "sync", "actor": {"num": 2}}},
    )
    summary = first.finish()

    assert not list((first.path / "plots").iterdir()), "the config wants none"
    # Four rollouts of 512 steps are 2048; the fourth ends the run, so three are trained on, twice each.
    assert summary["produced"] == summary["received"] == summary["env_steps"] == 2048
    assert summary["consumed"] == 3 * 512 * 2
    assert summary["updates"] == 3 * 2 * 512 // 128
    assert summary["staleness"] == {"mean": 0.0, "p50": 0.0, "p95": 0.0, "max": 0.0}
    assert summary["returns"] == {
        "episodes": 0,
        "episodes_in_mean": 0,
        "mean_100": None,
        "best_mean_100": None,
    }

    resolved = (first.path / "config.toml").read_text()
    workplace.begins_cold = True  # Warm commands have one seed of hashes in common.
    again = workplace.command("train", str(first.path / "config.toml"), "--out", "again", "--quiet")
    again.wait(0)
    second = workplace.place / "again/run/1"
    assert (second / "config.toml").read_text() == resolved
    model = "checkpoints/last/model.safetensors"
    assert (second / model).read_bytes() == (first.path / model).read_bytes()


def test_a_short_run_has_a_learning_curve(workplace: Any) -> None:
    run = workplace.train({"experiment": {"stop": {"wall_s": 2.0}}})
    run.finish()
    assert sum(row["returns.mean_100"] is not None for row in run.rows) >= 4


def test_json_on_stdout_is_all_there_is_on_stdout(workplace: Any) -> None:
    run = workplace.train(options=("--json", "-"))
    run.command.wait(0)
    assert json.loads(run.command.stdout) == run.summary | {"run": str(run.path)}
    assert "env_steps=" in run.command.stderr


def test_a_dry_run_prints_who_would_run_where_and_starts_nothing(workplace: Any) -> None:
    config = str(
        workplace.config({"experiment": {"eval_episodes": 3}, "distribution": {"actor": {"num": 2}}})
    )
    shown = workplace.command("train", config, "--dry-run", "--out", "out")
    shown.wait(0)
    for word in ("rank", "roles", "group", "host", "cores", "device", "learner", "actor", "evaluator", "cpu"):
        assert word in shown.stdout
    told = workplace.command("train", config, "--dry-run", "--out", "out", "--json", "-")
    told.wait(0)
    processes = json.loads(told.stdout)["processes"]
    assert [process["rank"] for process in processes] == [0, 1, 2, 3, 4]
    assert [process["roles"] for process in processes] == [
        ["root"],
        ["buffer", "learner"],
        ["actor"],
        ["actor"],
        ["evaluator"],
    ]
    assert not (workplace.place / "out").exists()


CHATTY = """
import gymnasium

class Chatty(gymnasium.Wrapper):
    def step(self, action):
        print("x" * 65536)
        return super().step(action)
"""


def test_an_environment_that_prints_in_each_step_does_not_fill_the_disk(workplace: Any) -> None:
    workplace.module(CHATTY)
    longer = {"experiment": {"stop": {"env_steps": 8192}}}  # Than from one report to the next.
    run = workplace.train({"environment": {"wrappers": ["my_env:Chatty"]}}, longer)
    run.finish()
    (log,) = (run.path / "logs").glob("actor-*.log")
    assert log.stat().st_size <= 16 << 20
    assert "[tianji: what comes here is left out: a log has 16 MiB at most]" in log.read_text()
    memory = [row["memory"] for row in run.rows if row.get("memory")]
    assert any(row["actor-2"] and row["root-0"] for row in memory)

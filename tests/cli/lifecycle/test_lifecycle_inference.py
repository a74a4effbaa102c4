"""Runs whose network acts in a process of its own: they learn, account for all, and survive their actors."""

import signal
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS
from ports import free_address

APART: dict[str, Any] = {"distribution": {"inference": {}, "actor": {"num": 4}}}
DQN: dict[str, Any] = {
    "agent": {"type": "dqn", "epsilon_steps": 2000, "epsilon_schedule": "per_actor", "priorities": True},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": 2.0, "warmup_steps": 512, "publish_every": 8},
    "distribution": {"buffer": {"sampler": "prioritised"}},
}
SAC: dict[str, Any] = {
    "environment": {"id": "Pendulum-v1"},
    "agent": {"type": "sac"},
    "model": {"type": "mlp_gaussian_q", "hidden": [16]},
    "training": {"batch_size": 64, "replay_ratio": 1.0, "warmup_steps": 512, "publish_every": 8},
}
LSTM: dict[str, Any] = {
    "model": {"type": "recurrent_actor_critic", "encoder": "mlp", "hidden": [8], "width": 8}
}
MASKED = """
import gymnasium, numpy as np

class Masked(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        x=gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
        action_mask=gymnasium.spaces.MultiBinary(3),
    )
    action_space = gymnasium.spaces.Discrete(3)

    def _shown(self):
        self.mask = self.np_random.permutation([1, 0, 1]).astype(np.int8)
        return {"x": self.np_random.uniform(-1, 1, 2).astype(np.float32), "action_mask": self.mask}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._shown(), {}

    def step(self, action):
        assert self.mask[action], "it is forbidden"
        self.steps += 1
        return self._shown(), 1.0, self.steps == 20, False, {}
"""
OWN = """
from tianji_algos.ppo.ppo import PPOAgent

class Own(PPOAgent):
    def __init__(self, spaces, model, settings, num_envs, seed):
        self.settings = settings
"""


def apart(summary: dict[str, Any]) -> dict[str, int]:
    """Sum of the counts of all processes of inference."""
    said = [one for name, one in summary["extra"].items() if name.startswith("inference-")]
    return {key: sum(one[key] for one in said) for key in ("requests", "passes")}


def check(summary: dict[str, Any]) -> None:
    assert summary["rejected_frames"] == 0
    assert summary["lost"] == 0
    assert apart(summary)["requests"] >= apart(summary)["passes"] > 0


@pytest.mark.parametrize(
    "transport",
    ["shm", "zmq", *(pytest.param(engine, marks=pytest.mark.soak) for engine in ("mpi", "ucx"))],
)
def test_ppo_learns_with_inference_apart(workplace: Any, transport: str) -> None:
    learns = {
        "experiment": {"stop": {"mean_return": 100.0, "env_steps": 400_000}},
        "model": {"hidden": [32]},
        "training": {"epochs": 6},
        "distribution": {"transport": transport},
    }
    summary = workplace.train(APART, learns).finish()
    check(summary)
    assert summary["returns"]["mean_100"] >= 100
    # One for each step of an actor's 8 environments, and one for the value after each 16th.
    assert apart(summary)["requests"] == pytest.approx(summary["produced"] / 8 * 17 / 16, rel=0.1)


@pytest.mark.parametrize("learns", [DQN, SAC, LSTM], ids=["dqn", "sac", "lstm"])
def test_agents_of_all_kinds_act_through_it(workplace: Any, learns: dict[str, Any]) -> None:
    config = workplace.base | {key: value for key, value in learns.items() if key in {"agent", "training"}}
    workplace.base = config
    check(workplace.train(learns, APART).finish())


def test_masks_keep_actions_out_and_statistics_come_with_the_answers(workplace: Any) -> None:
    workplace.module(MASKED)
    masked = {
        "environment": {"type": "my_env:Masked", "id": ""},
        "training": {"normalize_observations": True, "normalize_rewards": True},
    }
    check(workplace.train(masked, APART).finish())


def test_each_group_has_its_own_and_several_share_a_group(workplace: Any) -> None:
    several = {
        "experiment": {"evaluation": {"every_env_steps": 500, "episodes": 2}},
        "distribution": {"groups": 2, "inference": {"num": 2, "max_wait_ms": 1.0, "max_batch": 16}},
    }
    summary = workplace.train(APART, several).finish()
    check(summary)
    assert sum(name.startswith("inference-") for name in summary["extra"]) == 4


def test_actors_of_a_host_that_joins_ask_across_the_hosts(workplace: Any) -> None:
    address = free_address()
    two = {"distribution": {"transport": {"local": "shm", "remote": "zmq"}, "hosts": 2}}
    run = workplace.train(APART, two, options=("--listen", address, "--quiet"))
    workplace.until((run.path / "job.key").exists, "the key is written")
    host = workplace.command("join", address, "--key", str(run.path / "job.key"))
    summary = run.finish()
    host.wait(0)
    check(summary)
    hosts = {(role["role"], role["host"]) for role in summary["roles"]}
    (home,) = (host for role, host in hosts if role == "inference")
    assert {host for role, host in hosts if role == "actor"} - {home}


def test_an_actor_that_is_killed_is_restarted_and_asks_anew(workplace: Any) -> None:
    run = workplace.train(APART, ENDLESS)
    for kills in (1, 2, 3):
        run.train_until(run.env_steps + 1000)
        victim = run.command.kill("actors 0 and 1")
        workplace.until(lambda: run.log.count("; restarting it") == kills, "it is restarted")  # noqa: B023
        workplace.until(lambda: victim not in run.command.pids("actor"), "it is gone")  # noqa: B023
    run.train_until(run.env_steps + 2000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["rejected_frames"] == 0
    assert summary["produced"] > 0


@pytest.mark.parametrize("transport", ["shm", "zmq"])
def test_with_several_buffers_one_is_lost_and_inference_goes_on_for_the_other_actors(
    workplace: Any, transport: str
) -> None:
    # Actors are the slower side, so that they die within their fragments.
    workplace.module(MASKED.replace("self.steps += 1", "self.steps += 1; __import__('time').sleep(0.001)"))
    several = {
        "environment": {"type": "my_env:Masked", "id": ""},
        "distribution": {
            "actor": {"num": 6},
            "buffer": {"colocate": False, "num": 2},
            "transport": transport,
        },
    }
    run = workplace.train(APART, ENDLESS, several)
    run.train_until(3000)
    run.command.kill("buffer 1")
    workplace.until(lambda: "buffer 1 (group 0) was killed" in run.log, "the loss is said")
    before = run.rows[-1]["updates"]
    run.train_until(run.env_steps + 3000)
    run.command.kill("actors 0 and 1")
    workplace.until(lambda: "restarting it" in run.log, "an actor that is left comes again")
    run.train_until(run.env_steps + 3000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert "it is lost, with actors 2 and 3 (group 0), actors 4 and 5 (group 0); the others go on" in run.log
    assert summary["env_steps"] == summary["received"]
    assert summary["rejected_frames"] == 0
    assert summary["updates"] > before + 20
    assert summary["staleness"]["max"] <= 5, "no dead actor keeps the others at an old version"


def test_several_buffers_share_what_halves_make_and_account_for_all(workplace: Any) -> None:
    workplace.base = workplace.base | {key: DQN[key] for key in ("agent", "model", "training")}
    buffers = {"actor": {"num": 5}, "buffer": {"colocate": False, "num": 2, "sampler": "prioritised"}}
    summary = workplace.train(APART, {"distribution": buffers}).finish()
    check(summary)
    assert summary["env_steps"] == summary["received"]
    assert summary["in_flight"] == 0


def test_inference_that_is_killed_ends_the_run_and_is_named(workplace: Any) -> None:
    run = workplace.train(APART, ENDLESS)
    run.train_until(2000)
    run.command.kill("inference")
    assert "inference (group 0) was killed by SIGKILL" in run.finish(1)["reason"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {
                "environment": {"type": "mpe", "id": "simple_spread"},
                "agent": {"type": "qmix"},
                "training": {"warmup_steps": 4096},
                **ENDLESS,
            },
            "the model 'team_q' keeps its memory where it acts",
        ),
        ({"agent": {"type": "my_env:Own"}}, "the agent 'my_env:Own' does not act by Model.executor()"),
    ],
)
def test_what_acts_otherwise_is_refused_before_there_is_a_run(
    workplace: Any, changes: dict[str, Any], why: str
) -> None:
    workplace.module(OWN)
    if changes["agent"]["type"] == "qmix":
        workplace.base = {key: workplace.base[key] for key in ("experiment", "environment")}
    command = workplace.command("train", str(workplace.config(changes, APART)), "--out", "out")
    command.wait(2)
    assert why in command.stderr
    assert not (workplace.place / "out").exists()

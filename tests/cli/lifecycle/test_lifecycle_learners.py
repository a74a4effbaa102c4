"""Several learners in a group: the same bits on all of them, exact books, no update without all of them."""

import json
import os
import signal
import time
from typing import Any

import pytest
from cli.lifecycle.conftest import ENDLESS

OFTEN = {"experiment": {"checkpoint_every_s": 0.2}}
TWO: dict[str, Any] = {
    "training": {"rollout_steps": 1024, "minibatch_size": 128, "epochs": 2},
    "distribution": {"learner": {"num": 2}, "actor": {"num": 2}},
}
RHO, WARMUP, BATCH = 2.0, 512, 64
TWO_WITH_REPLAY: dict[str, Any] = {
    "experiment": {"name": "run", "stop": {"env_steps": 4096}, "eval_episodes": 0, "plots": False},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "dqn", "epsilon_steps": 2000},
    "model": {"type": "mlp_q", "hidden": [16]},
    "training": {"batch_size": BATCH, "replay_ratio": RHO, "warmup_steps": WARMUP, "publish_every": 8},
    "distribution": {
        "transport": "shm",
        "pin_cores": False,
        "learner": {"num": 2},
        "actor": {"num": 1, "send_size": 8, "window": 2},
        "buffer": {"capacity": 4096},
    },
}
KILLED = "follower 1 (group 0) was killed by SIGKILL"
SLOWER = [("zmq", "uniform"), ("mpi", "prioritised")]


def check_rounds(summary: dict[str, Any], run: Any, earlier: int = 0) -> None:
    """Whole rollouts were learned from, by all learners: every sample as often as there are epochs."""
    assert summary["status"] == "finished"
    assert summary["env_steps"] == earlier + summary["received"]
    assert summary["rejected_frames"] == 0
    per_use = summary["consumed"] / 2
    assert 0 < per_use <= summary["env_steps"]
    assert not list(run.path.glob("all_reduce*"))


@pytest.mark.parametrize(
    ("transport", "mode"), [("shm", "async"), pytest.param("mpi", "sync", marks=pytest.mark.soak)]
)
def test_two_learners_share_every_rollout(workplace: Any, transport: str, mode: str) -> None:
    run = workplace.train(TWO, {"distribution": {"transport": transport, "mode": mode}})
    check_rounds(run.finish(), run)


def test_two_learners_repeat_themselves_when_they_are_in_step(workplace: Any) -> None:
    saved = []
    for _ in range(2):
        run = workplace.train(TWO, {"distribution": {"mode": "sync"}})
        run.finish()
        saved.append((run.path / "checkpoints/last/model.safetensors").read_bytes())
    assert saved[0] == saved[1]


LARGE = """
import gymnasium
import numpy as np


class Large(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4096,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(4096, np.float32), {}

    def step(self, action):
        return np.ones(4096, np.float32), 1.0, self.np_random.random() < 0.1, False, {}
"""


@pytest.mark.parametrize("transport", ["ucx", pytest.param("mpi", marks=pytest.mark.soak)])
def test_shares_that_an_engine_sends_only_while_it_is_asked_keep_nobody_waiting(
    workplace: Any, transport: str
) -> None:
    workplace.module(LARGE)
    run = workplace.train(
        {"environment": {"type": "my_env:Large", "id": "", "num_envs": 8}},
        {"training": {"rollout_steps": 512, "minibatch_size": 256}},
        {"distribution": {"transport": transport, "learner": {"num": 2}}},
    )
    summary = run.finish()
    check_rounds(summary, run)
    assert summary["updates"] >= 3 * 2 * 2, "fragments of 2 MiB, four a rollout"


@pytest.mark.parametrize(
    ("transport", "sampler"),
    [("shm", "prioritised"), *(pytest.param(*one, marks=pytest.mark.soak) for one in SLOWER)],
)
def test_two_learners_share_every_batch(workplace: Any, transport: str, sampler: str) -> None:
    workplace.base = TWO_WITH_REPLAY
    buffer = {"sampler": sampler, "priority_updates": "sync"} if sampler == "prioritised" else {}
    run = workplace.train({"distribution": {"transport": transport, "buffer": buffer}})
    summary = run.finish()
    assert summary["status"] == "finished"
    assert summary["env_steps"] == summary["received"]
    assert summary["rejected_frames"] == 0
    assert summary["consumed"] == BATCH * summary["updates"] > 0
    # What came in after the end was decided was never used.
    steps = summary["consumed"] / summary["replay_ratio"]["actual"]
    assert abs(summary["consumed"] / RHO - steps) < 96 + 64


@pytest.mark.parametrize("base", [TWO, pytest.param(TWO_WITH_REPLAY, marks=pytest.mark.soak)])
def test_a_killed_follower_ends_the_run_with_its_cause_and_the_run_can_go_on(
    workplace: Any, base: dict[str, Any]
) -> None:
    if base is TWO_WITH_REPLAY:
        workplace.base = base
    run = workplace.train(TWO if base is TWO else {}, ENDLESS, OFTEN)
    run.train_until(5000)
    workplace.until(lambda: run.saved_env_steps > 2000, "a checkpoint")
    run.command.kill("follower 1")
    began = time.monotonic()
    summary = run.finish(1)
    assert time.monotonic() - began < 60, "seconds, not the minutes of a hung reduction"
    assert KILLED in summary["reason"]

    saved = run.saved_env_steps
    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={saved + 3000}")
    again = resumed.finish()
    assert again["status"] == "finished"
    assert again["env_steps"] == saved + again["received"]
    assert again["updates"] > summary["updates"] / 2


def test_a_killed_learner_ends_its_followers(workplace: Any) -> None:
    run = workplace.train(TWO, ENDLESS, OFTEN)
    run.train_until(5000)
    run.command.kill("buffer and learner")
    assert "buffer and learner (group 0) was killed by SIGKILL" in run.finish(1)["reason"]


def test_a_suspended_follower_is_waited_for(workplace: Any) -> None:
    run = workplace.train(TWO, ENDLESS)
    run.train_until(4000)
    follower = run.command.kill("follower 1", signal.SIGSTOP)
    time.sleep(2.0)
    before = run.rows[-1]
    os.kill(follower, signal.SIGCONT)
    run.train_until(before["env_steps"] + 5000)
    run.command.signal_all(signal.SIGINT)
    summary = run.finish(130)
    assert summary["env_steps"] == summary["received"]


def test_an_interrupted_run_leaves_its_round_and_goes_on(workplace: Any) -> None:
    run = workplace.train(TWO, ENDLESS)
    run.train_until(5000)
    run.command.signal_all(signal.SIGINT)
    first = run.finish(130)
    assert first["env_steps"] == first["received"] == run.saved_env_steps
    state = json.loads((run.path / "checkpoints/last/state.json").read_text())
    assert state["progress"]["consumed"] == first["consumed"]

    resumed = workplace.resume(run, "--set", f"experiment.stop.env_steps={first['env_steps'] + 2048}")
    check_rounds(resumed.finish(), resumed, earlier=first["env_steps"])

"""SAC and TD3 like any other: several learners with priorities, groups, a resumed run."""

from typing import Any

import pytest

BATCH, RHO = 32, 32.0
CONTROL: dict[str, Any] = {
    "experiment": {"name": "run", "stop": {"env_steps": 1024}, "eval_episodes": 0, "plots": False},
    "environment": {"type": "gym", "id": "Pendulum-v1", "num_envs": 4},
    "agent": {"type": "sac"},
    "model": {"type": "mlp_gaussian_q", "hidden": [8], "critic_hidden": [8]},
    "training": {"batch_size": BATCH, "replay_ratio": RHO, "warmup_steps": 128, "publish_every": 4},
    "distribution": {
        "transport": "shm",
        "pin_cores": False,
        "actor": {"num": 1, "send_size": 4, "window": 2},
        "buffer": {"capacity": 4096},
    },
}
SAC: dict[str, Any] = {}
TD3: dict[str, Any] = {"agent": {"type": "td3"}, "model": {"type": "mlp_deterministic_q"}}
EITHER = pytest.mark.parametrize("rule", [SAC, TD3], ids=["sac", "td3"])


@pytest.fixture(autouse=True)
def _control(workplace: Any) -> None:
    workplace.base = CONTROL


def check_books(summary: dict[str, Any], earlier: int = 0) -> None:
    assert summary["status"] == "finished"
    assert summary["env_steps"] == earlier + summary["received"] > 0
    assert summary["rejected_frames"] == 0
    steps = summary["consumed"] / summary["replay_ratio"]["actual"]
    assert abs(summary["consumed"] / RHO - steps) < 64


@EITHER
def test_two_learners_share_every_batch_of_a_prioritised_replay(workplace: Any, rule: dict[str, Any]) -> None:
    buffer = {"sampler": "prioritised", "priority_updates": "sync"}
    run = workplace.train(rule, {"distribution": {"learner": {"num": 2}, "buffer": buffer}})
    summary = run.finish()
    check_books(summary)
    assert summary["consumed"] == BATCH * summary["updates"] > 0


@EITHER
def test_groups_are_averaged(workplace: Any, rule: dict[str, Any]) -> None:
    run = workplace.train(rule, {"distribution": {"groups": 2, "sync_interval": 50}})
    summary = run.finish()
    assert (summary["status"], summary["groups"]) == ("finished", 2)
    assert summary["averaging"]["rounds"] > 2
    assert summary["averaging"]["lost"] == []


@EITHER
def test_a_resumed_run_goes_on_with_its_replay(workplace: Any, rule: dict[str, Any]) -> None:
    run = workplace.train(rule, {"distribution": {"buffer": {"save_with_checkpoint": True}}})
    first = run.finish()
    goal = f"experiment.stop.env_steps={first['env_steps'] + 512}"
    again = workplace.resume(run, "--set", goal).finish()
    check_books(again, earlier=first["env_steps"])
    assert again["updates"] > first["updates"]

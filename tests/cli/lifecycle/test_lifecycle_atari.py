"""Short trainings of the configs for Atari, made small: their books, their frames, the games at the end."""

from typing import Any

import pytest

pytest.importorskip("ale_py", reason="Atari is an extra")

GAME_STEPS = 150
"""Games are cut off there: whole ones of Pong take a thousand steps and more."""

SMALL: dict[str, Any] = {
    "experiment": {
        "name": "run",
        "stop": {"env_steps": 2000},
        "eval_episodes": 3,
        "plots": False,
        "thresholds": [],
    },
    "environment": {"num_envs": 4, "max_episode_steps": GAME_STEPS},
    "model": {"channels": [4, 8], "hidden": 16},
    "distribution": {"pin_cores": False, "actor": {"send_size": 16}},
}
ROLLOUTS: dict[str, Any] = {"training": {"rollout_steps": 256, "minibatch_size": 64, "epochs": 1}}
REPLAY: dict[str, Any] = {
    "training": {"warmup_steps": 512, "batch_size": 16, "publish_every": 4},
    "distribution": {"buffer": {"capacity": 1024}},
}


def train(workplace: Any, config: str, *changes: dict[str, Any]) -> dict[str, Any]:
    workplace.base = {"extends": f"{config}.toml"}
    run = workplace.train(SMALL, *changes)
    summary: dict[str, Any] = run.finish()
    assert summary["status"] == "finished"
    logs = "".join(log.read_text() for log in (run.path / "logs").iterdir())
    assert "Warning" not in logs, logs
    return summary


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        ("ppo_pong", ROLLOUTS),
        pytest.param("impala_pong", ROLLOUTS, marks=pytest.mark.soak),
        ("dqn_pong", REPLAY),
        pytest.param("apex_pong", REPLAY, marks=pytest.mark.soak),
    ],
)
def test_every_frame_of_a_short_training_is_accounted_for(
    workplace: Any, config: str, changes: dict[str, Any]
) -> None:
    summary = train(workplace, config, changes)
    assert summary["env_steps"] >= 2000
    assert summary["frames"] == 4 * summary["env_steps"]
    assert (summary["in_flight"], summary["lost"], summary["rejected_frames"]) == (0, 0, 0)
    assert summary["updates"] > 0
    assert summary["evaluation"]["episodes"] == 3


def test_returns_are_of_games_and_not_of_lives(workplace: Any) -> None:
    # Nobody catches the ball on purpose yet: five lives last some 200 steps, and each its share of them.
    whole = {
        "environment": {"max_episode_steps": 2000},
        "experiment": {"stop": {"env_steps": 4000}, "eval_episodes": 0},
    }
    summary = train(workplace, "ppo_breakout", ROLLOUTS, whole)
    assert 0 < summary["returns"]["episodes"] < summary["env_steps"] / 100

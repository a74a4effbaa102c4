"""A config that is trained in seconds, and how a picture begins."""

from __future__ import annotations

from typing import Any

PNG = b"\x89PNG\r\n"
CONFIG: dict[str, Any] = {
    "experiment": {
        "name": "quick",
        "seed": 7,
        "stop": {"env_steps": 12_000},
        "thresholds": [15.0],
        "eval_episodes": 0,
        "plots": False,
    },
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "ppo"},
    "model": {"type": "mlp_actor_critic", "hidden": [16]},
    "training": {"type": "ppo", "rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
    "distribution": {"transport": "shm", "pin_cores": False, "actor": {"num": 1, "send_size": 16}},
}

"""An update rule that learns nothing and looks at what it is shown of CartPole, and a config."""

from __future__ import annotations

from typing import Any

IDLE = """
import numpy as np
from pydantic import BaseModel
from tianji_algos.core import SequenceEmbryo, UnrollEmbryo, UpdateResult

class Idle:
    '''Has no state, and no numbers of its own.'''

    def __init__(self, spaces, model, settings, seed):
        self.model, self.settings, self.peers = model, settings, None

    def join(self, peers):
        self.peers = peers

    def of_all_learners(self, steps):
        own = np.array([steps])
        return int((own if self.peers is None else self.peers.compare(own)).sum())

    def metrics(self):
        return {}

    def schedule(self, env_steps):
        pass

    def state(self):
        return {}, {}

    def load_state(self, tensors, rest):
        pass
"""
CONFIG: dict[str, Any] = {
    "experiment": {
        "name": "run",
        "stop": {"env_steps": 4096},
        "eval_episodes": 0,
        "plots": False,
        "extensions": ["."],
    },
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "training": {"type": "my_env:Observer"},
    "distribution": {
        "transport": "shm",
        "pin_cores": False,
        "actor": {"num": 1, "send_size": 8, "window": 2},
        "buffer": {"capacity": 4096},
    },
}
RHO = 2.0


def check_books(summary: dict[str, Any], *, earlier: int = 0) -> None:
    assert summary["status"] == "finished"
    assert summary["env_steps"] == earlier + summary["received"] > 0
    assert summary["rejected_frames"] == 0
    assert summary["replay_ratio"]["target"] == RHO
    steps = summary["session"]["consumed"] / summary["replay_ratio"]["actual"]
    # A fragment and a batch are worth up to 128 env steps, and as many more come before the first is drawn.
    assert abs(summary["session"]["consumed"] / RHO - steps) < 2 * 128

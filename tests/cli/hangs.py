"""An environment of a user's own that hangs in a step or a reset, as the text of its module."""

from typing import Any

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

"""An environment of a user's own that raises after 500 steps, as the text of its module."""

BOOM = """
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

class Boom(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        if self.steps == 500:
            raise RuntimeError("the boom")
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False
"""

"""Example of your own environment and network; corridor.toml beside this file trains with both."""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np
import torch
from pydantic import Field
from torch import nn

from tianji_algos.core import Spaces
from tianji_algos.distributions import distribution_for
from tianji_algos.models.actor_critic import ActorCritic
from tianji_algos.settings import Settings
from tianji_envs.core import BaseEnv


class Corridor(BaseEnv):
    """A corridor to walk to its right end: each step costs 0.01, and the end pays 1.

    Args:
        length: number of places; the config sets it in ``environment.options``.
    """

    def __init__(self, length: int = 8) -> None:
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._random = np.random.default_rng()
        self._place = 0

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start at a random place in the left half."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._place = int(self._random.integers(self.length // 2))
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool]:
        """Go left (0) or right (1)."""
        self._place = max(0, self._place + (1 if action == 1 else -1))
        arrived = self._place >= self.length - 1
        return self._observe(), 1.0 if arrived else -0.01, arrived, False

    def _observe(self) -> np.ndarray:
        share = self._place / (self.length - 1)
        return np.array([share, 1.0 - share], np.float32)


class ResidualSettings(Settings):
    """Settings of the config's ``[model]``: width and number of the layers."""

    width: int = Field(32, ge=1)
    blocks: int = Field(2, ge=1)


class ResidualActorCritic(ActorCritic):
    """Small residual network; PPO needs only its ``forward``."""

    settings_type: ClassVar[type[ResidualSettings]] = ResidualSettings

    def __init__(self, spaces: Spaces, settings: ResidualSettings) -> None:
        super().__init__()
        (inputs,) = spaces.observation.shape or (1,)
        self.enter = nn.Linear(inputs, settings.width)
        self.blocks = nn.ModuleList(nn.Linear(settings.width, settings.width) for _ in range(settings.blocks))
        self.policy = nn.Linear(settings.width, distribution_for(spaces.action).outputs)
        self.value = nn.Linear(settings.width, 1)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the policy ``[N, outputs]`` and the value ``[N]``."""
        hidden = torch.tanh(self.enter(observation))
        for block in self.blocks:
            hidden = hidden + torch.tanh(block(hidden))
        return self.policy(hidden), self.value(hidden).squeeze(-1)

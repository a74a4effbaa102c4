"""DQN on made-up transitions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from tianji_algos.batch import Batch
from tianji_algos.core import Spaces, build_model
from tianji_algos.dqn.dqn import DQNEmbryo
from tianji_algos.dqn.settings import DQNSettings
from tianji_algos.models.mlp import MLPQ
from tianji_algos.models.q_network import QNetwork
from tianji_algos.models.settings import MLPQSettings

SPACES = Spaces(gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))
SMALL: dict[str, Any] = {"batch_size": 16, "warmup_steps": 16, "learning_rate": 1e-2, "target_every": 1000}
SOFT: dict[str, Any] = {"target_update": "soft", "target_tau": 0.25}
ROWS = 16


class TorchQ(QNetwork):
    """A model of a user's own: forward() and nothing else."""

    settings_type = MLPQSettings

    def __init__(self, spaces: Spaces, settings: MLPQSettings) -> None:
        super().__init__()
        self.inner = MLPQ(spaces, settings)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.inner(observation)


def build(
    spaces: Spaces,
    seed: int = 0,
    model_type: type[QNetwork] = MLPQ,
    network: dict[str, Any] | None = None,
    **settings: Any,
) -> DQNEmbryo:
    model = build_model(model_type, spaces, MLPQSettings(hidden=(8,), **(network or {})), seed)
    assert isinstance(model, QNetwork)
    return DQNEmbryo(spaces, model, DQNSettings(**(SMALL | settings)), seed)


def make_batch(seed: int = 0, rows: int = ROWS) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        observation=rng.standard_normal((rows, 4)).astype(np.float32),
        fields={"action": rng.integers(2, size=rows).astype(np.uint8)},
        reward=rng.standard_normal(rows).astype(np.float32),
        next_observation=rng.standard_normal((rows, 4)).astype(np.float32),
        discount=rng.choice([0.0, 0.9, 0.99], rows).astype(np.float32),
        weight=rng.random(rows).astype(np.float32),
    )

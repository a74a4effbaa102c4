"""SAC and TD3 on made-up transitions."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tianji_algos import registry
from tianji_algos.batch import Batch
from tianji_algos.continuous import ActorQEmbryo
from tianji_algos.core import Spaces, build_model

SPACES = Spaces(
    gym.spaces.Box(-np.inf, np.inf, (5,), np.float32),
    gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32)),
)
SMALL = {"hidden": (16, 16), "critic_hidden": (16, 16)}
ROWS = 12


def build(
    algorithm: str,
    spaces: Spaces = SPACES,
    model: dict[str, Any] | None = None,
    seed: int = 0,
    **settings: Any,
) -> ActorQEmbryo:
    defaults = registry.agent_defaults(algorithm)
    model_type = registry.load("model", defaults.model)
    network = build_model(model_type, spaces, model_type.settings_type(**(SMALL | (model or {}))), 0)
    embryo_type = registry.load("embryo", defaults.embryo)
    embryo: ActorQEmbryo = embryo_type(spaces, network, embryo_type.settings_type(**settings), seed)
    return embryo


def make_batch(seed: int = 0, rows: int = ROWS, spaces: Spaces = SPACES) -> Batch:
    rng = np.random.default_rng(seed)
    features, actions = (int(np.prod(space.shape)) for space in (spaces.observation, spaces.action))
    return Batch(
        observation=rng.standard_normal((rows, features), dtype=np.float32),
        fields={"action": rng.uniform(-1.0, 1.0, (rows, actions)).astype(np.float32)},
        reward=rng.standard_normal(rows, dtype=np.float32),
        next_observation=rng.standard_normal((rows, features), dtype=np.float32),
        discount=rng.choice([0.0, 0.99], rows).astype(np.float32),
        weight=rng.uniform(0.2, 1.0, rows).astype(np.float32),
    )

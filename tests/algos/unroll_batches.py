"""Made-up unrolls, and R2D2 with a small network."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from tianji_algos.batch import UnrollBatch
from tianji_algos.core import Spaces, build_model
from tianji_algos.models.recurrent import GatedQ
from tianji_algos.models.settings import RecurrentQSettings
from tianji_algos.normalization import Normalization, build_normalizer
from tianji_algos.r2d2.r2d2 import R2D2Embryo
from tianji_algos.r2d2.settings import R2D2Settings

SPACES = Spaces(gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(3))
UNROLLS, BURN_IN, LEARNT = 6, 3, 8
SMALL: dict[str, Any] = {
    "batch_size": UNROLLS,
    "burn_in": BURN_IN,
    "unroll_steps": LEARNT,
    "n_step": 3,
    "learning_rate": 1e-2,
    "target_every": 1000,
}


def build(
    core: str = "lstm",
    network: dict[str, Any] | None = None,
    asked: Normalization | None = None,
    **settings: Any,
) -> R2D2Embryo:
    chosen = RecurrentQSettings(**{"hidden": 5, "width": 4, "core": core, **(network or {})})
    model = build_model(GatedQ, SPACES, chosen, 3)
    assert isinstance(model, GatedQ)
    build_normalizer(model, SPACES, asked)
    return R2D2Embryo(SPACES, model, R2D2Settings(**(SMALL | settings)), 0)


def make_batch(seed: int = 0, burn_in: int = BURN_IN, width: int = 8, unrolls: int = UNROLLS) -> UnrollBatch:
    """Unrolls in which episodes end, so that the step after the end is no experience."""
    rng = np.random.default_rng(seed)
    steps = burn_in + LEARNT
    ended, terminated = np.zeros((2, unrolls, steps + 1), np.bool_)
    for t in range(steps):
        ended[:, t + 1] = ~ended[:, t] & (rng.random(unrolls) < 0.25)
    terminated = ended[:, 1:] & (rng.random((unrolls, steps)) < 0.5)
    return UnrollBatch(
        observation=rng.standard_normal((unrolls, steps + 1, 4)).astype(np.float32),
        fields={
            "action": rng.integers(3, size=(unrolls, steps)).astype(np.uint8),
            "state": rng.standard_normal((unrolls, width)).astype(np.float32),
        },
        reward=rng.standard_normal((unrolls, steps)).astype(np.float32),
        terminated=terminated,
        mask=~ended[:, :-1],
        weight=rng.random(unrolls).astype(np.float32),
    )

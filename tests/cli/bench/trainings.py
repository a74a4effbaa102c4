"""A quick config, and trainings nobody has made of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tianji_cli.bench.staleness import Comparison, Setting, plan_comparison
from tianji_cli.bench.training import Curve, Training

PNG = b"\x89PNG\r\n"
CONFIG: dict[str, Any] = {
    "experiment": {"name": "quick", "seed": 7, "stop": {"env_steps": 12_000}, "thresholds": [15.0]},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "ppo"},
    "model": {"type": "mlp_actor_critic", "hidden": [16]},
    "training": {"type": "ppo", "rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
    "distribution": {"transport": "shm", "pin_cores": False, "actor": {"num": 1, "send_size": 16}},
}


def plan(config: str, **options: Any) -> Comparison:
    usual: dict[str, Any] = {"figure": "12a", "lags": (), "seeds": 5, "threshold": None}
    return plan_comparison(config, **{**usual, "overrides": (), "poor": (), **options})


def trained(seed: int, time_to_s: float, *, reached: bool = True, staleness: float = 1.0) -> Training:
    """A training nobody made: 1000 steps a second, to a return of 400 or half the way to 300."""
    end = 2 * time_to_s if reached else time_to_s
    times = tuple(np.linspace(0.1, end, 12))
    top = 400.0 if reached else 150.0
    return Training(
        seed=seed,
        run=f"runs/{seed}",
        reached=reached,
        time_to_s=time_to_s,
        steps_to=1000 * time_to_s,
        train_s=end,
        env_steps=round(1000 * end),
        mean_100=top,
        best_mean_100=top,
        staleness=staleness,
        produced_per_s=1000.0,
        consumed_per_s=4000.0,
        curve=Curve(times, tuple(1000 * t for t in times), tuple(np.linspace(20, top, 12))),
    )


NEW, LAG8 = Setting("recommended", 1), Setting("recommended", 8)
FOUND = {
    NEW: [trained(seed, time) for seed, time in enumerate((1.0, 1.1, 1.2, 1.3, 9.0))],
    LAG8: [trained(seed, time, staleness=4.5) for seed, time in enumerate((2.0, 2.2, 2.4, 2.6, 0.1))],
}

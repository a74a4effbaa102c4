"""Trainings of a quick config that nobody has made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.runs.comparison.curves import Curve
from tianji_lab.staleness.study import Comparison, Setting, plan_comparison
from tianji_lab.training import Training


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
        time_to_s=time_to_s if reached else None,
        train_s=end,
        env_steps=round(1000 * end),
        updates=100,
        mean_100=top,
        best_mean_100=top,
        staleness=staleness,
        produced_per_s=1000.0,
        received_per_s=1000.0,
        consumed_per_s=4000.0,
        rho=4.0,
        averaging=None,
        curve=Curve(times, tuple(1000 * t for t in times), tuple(np.linspace(20, top, 12))),
    )


NEW, LAG8 = Setting("recommended", 1), Setting("recommended", 8)
FOUND = {
    NEW: [trained(seed, time) for seed, time in enumerate((1.0, 1.1, 1.2, 1.3, 9.0))],
    LAG8: [trained(seed, time, staleness=4.5) for seed, time in enumerate((2.0, 2.2, 2.4, 2.6, 0.1))],
}


def left_run(place: Path, rows: Sequence[Mapping[str, Any]] = (), **changes: Any) -> RunDirectory:
    """Leave what a training of four seconds leaves, of which nothing is missing."""
    summary: dict[str, Any] = {
        "train_s": 4.0,
        "env_steps": 4000,
        "updates": 10,
        "produced": 4100,
        "received": 4000,
        "in_flight": 90,
        "lost": 0,
        "dropped": 10,
        "produced_per_s": 1025.0,
        "received_per_s": 1000.0,
        "consumed_per_s": 4000.0,
        "replay_ratio": {"target": 4.0},
        "returns": {"episodes": 200, "mean_100": 310.0, "best_mean_100": 320.0},
        "time_to": {"300": 2.5},
        "staleness": {"mean": 0.9},
        **changes,
    }
    directory = RunDirectory(place)
    directory.summary.write_text(json.dumps(summary))
    directory.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    return directory

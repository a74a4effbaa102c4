"""A scaling study, and trainings nobody has made of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lab.trainings
import numpy as np

from tianji_cli.runs.comparison.curves import Curve
from tianji_lab.profile.split import Split
from tianji_lab.scaling.prediction import Machines
from tianji_lab.scaling.study import Request, Setting, Study, plan_study
from tianji_lab.training import Failed, Outcome, Training


def study_of(config: str, **options: Any) -> Study:
    return plan_study(config, Request(**{"repeats": 3, "seconds": 10.0, **options}))


def machines(nodes: int | None = None, node_cores: int = 40, link_mb_per_s: float = 1250.0) -> Machines:
    return Machines(nodes, node_cores, link_mb_per_s)


def trained(
    seed: int, rate: float, time_to_s: float | None, averaging: dict[str, Any] | None = None
) -> Training:
    """A training nobody made: each sample is used four times."""
    times = tuple(np.linspace(0.1, 10.0, 12))
    return replace(
        lab.trainings.trained(seed, 5.0),
        time_to_s=time_to_s,
        env_steps=round(10 * rate),
        produced_per_s=rate,
        received_per_s=0.9 * rate,
        consumed_per_s=3.6 * rate,
        averaging=averaging,
        curve=Curve(times, tuple(rate * t for t in times), tuple(np.linspace(20, 400, 12))),
    )


A1 = Setting(Split(1, 1, 1, 8), 2, oversubscribed=False)
A2 = Setting(Split(1, 1, 2, 8), 3, oversubscribed=True)
A4 = Setting(Split(1, 1, 4, 8), 5, oversubscribed=True)
FOUND = {
    A1: Outcome([trained(seed, 1000.0 * seed, 2.0 + seed) for seed in (1, 2, 3)]),
    A2: Outcome([trained(1, 2000.0, 4.0), trained(2, 2100.0, None), trained(3, 2200.0, None)]),
    A4: Outcome([], [Failed(seed, "misses 3 samples") for seed in (1, 2, 3)]),
}

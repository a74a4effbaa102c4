"""Equations 3 and 4: what a split gives, from what its parts cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tianji_cli.throughput.bottleneck import Bottleneck
from tianji_cli.throughput.costs import Costs
from tianji_cli.throughput.split import Split
from tianji_cli.throughput.workload import Workload


@dataclass(frozen=True)
class Prediction:
    """What a split gives, over all groups.

    Attributes:
        split: the split.
        rho: uses of each sample.
        production: T_RA, env steps a second that the actors make if nobody holds them back.
        reception: env steps a second that the buffers can receive.
        consumption: T_RL, sample uses a second that the learners make if they never wait for samples; a
            learner that takes turns with its buffer receives meanwhile.
        throughput: sample uses a second that come of it (Equation 3).
        limits: every limit of the throughput in uses a second, by name: "production", "reception",
            "consumption", and, where they exist, "link" and "root".
        bottleneck: which side holds it back.
    """

    split: Split
    rho: float
    production: float
    reception: float
    consumption: float
    throughput: float
    limits: Mapping[str, float]
    bottleneck: Bottleneck


def predict(split: Split, workload: Workload, costs: Costs) -> Prediction:
    """Reckon what a split gives (Equations 1, 3 and 4 of the paper, as DESIGN's section 8 means them)."""
    raise NotImplementedError

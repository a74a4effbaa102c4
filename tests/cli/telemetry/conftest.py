"""Snapshots and summaries to show and write."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.files.rundir import RunDirectory
from tianji_cli.telemetry.bottleneck import Bottleneck
from tianji_cli.telemetry.snapshot import (
    Averaging,
    GroupStanding,
    RoleStatus,
    Snapshot,
    StopProgress,
    Summary,
)
from tianji_cli.wire.reports import BufferReport, Evaluation, LearnerReport, ReplayFill, Spread


def build_snapshot(second: int = 5, actors: int = 2, **changes: Any) -> Snapshot:
    """A run ``second`` seconds after its first environment step; nothing has ended at second 0."""
    mean = 30.0 * second if second else None
    roles = (
        RoleStatus(0, "root", None, "node1", 4000, 0.01),
        RoleStatus(1, "learner", 0, "node1", 4001, 0.97),
        RoleStatus(1, "buffer", 0, "node1", 4001, None),
        *(
            RoleStatus(2 + i, "actor", 0, "node1", 4002 + i, 0.80 + i / 200, memory=(300 + i) * 10**6)
            for i in range(actors)
        ),
    )
    values: dict[str, Any] = {
        "elapsed_s": second + 2.0,
        "train_s": float(second),
        "env_steps": 45_200 * second,
        "produced": 45_300 * second,
        "consumed": 180_000 * second,
        "updates": 350 * second,
        "version": 44 * second,
        "produced_per_s": 45_200.0,
        "received_per_s": 45_100.0,
        "consumed_per_s": 180_400.0,
        "rho": 4.0,
        "replay_ratio": 3.98 if second else None,
        "lag": Spread(1.25, 1, 3, 5) if second else None,
        "episodes": 37 * second,
        "episodes_in_mean": min(37 * second, 100),
        "mean_100": mean,
        "best_mean_100": mean,
        "losses": {"policy": -0.0123, "value": 0.51} if second else {},
        "roles": roles,
        "stop": (
            StopProgress("mean_return", mean, 475.0, 12.0 if second else None),
            StopProgress("env_steps", 45_200.0 * second, 1_000_000.0, 18.0),
            StopProgress("wall_s", second + 2.0, 600.0, 593.0),
        ),
    }
    return Snapshot(**placed(values | changes))


def placed(values: dict[str, Any]) -> dict[str, Any]:
    """Put what learners and buffers report into their reports."""
    reports: dict[str, Any] = {"learner": LearnerReport, "buffer": BufferReport}
    for name, kind in reports.items():
        reported = {one.name for one in fields(kind)} & values.keys()
        values |= {name: kind(**{field: values.pop(field) for field in reported})}
    return values


BOTTLENECK = Bottleneck("sample-bound", "the learner waits for samples; more actors would help")
"""A run's bottleneck, once that is known."""

WITH_REPLAY: dict[str, Any] = {
    "age": Spread(13_000.0, 12_000, 40_100, 49_900),
    "uses": Spread(3.96, 4, 8, 13),
    "replay": ReplayFill(34_048, 50_048, 2_140_000),
    "staleness_p": 64 / 50_048,
    "stale_priorities": 12,
}
"""Further values of a run with a replay."""


OF_GROUPS: dict[str, Any] = {
    "averaging": Averaging(12, (0, 3), (1,)),
    "by_group": (
        GroupStanding(0, 2000, 80, 40, 410.5, 420.0, 8000),
        GroupStanding(1, 1000, 40, 20, None, None, 4000),
    ),
    "extra": {"recorder-5": {"fragments": 30, "files": ["a.npz"]}},
}
"""Further values of a run of two groups with a role of the user's own."""


def build_summary(**changes: Any) -> Summary:
    values: dict[str, Any] = {
        "experiment": "ppo_cartpole",
        "status": "finished",
        "reason": "mean_return 475 reached",
        "elapsed_s": 14.0,
        "train_s": 12.0,
        "env_steps": 3000,
        "updates": 120,
        "transport": "shm",
        "mode": "async",
        "groups": 1,
        "produced": 3000,
        "received": 2900,
        "session_consumed": 11600,
        "in_flight": 96,
        "lost": 4,
        "dropped": 0,
        "produced_per_s": 250.0,
        "received_per_s": 241.7,
        "consumed_per_s": 966.7,
        "rho": 4.0,
        "replay_ratio": 3.98,
        "lag": Spread(1.2, 1, 3, 5),
        "episodes": 412,
        "episodes_in_mean": 100,
        "mean_100": 475.3,
        "best_mean_100": 476.1,
        "time_to": {300.0: 4.2, 475.0: 11.9, 490.5: None},
        "evaluation": Evaluation(100, 499.1, 2.3),
        "rejected_frames": 0,
        "roles": (
            RoleStatus(0, "root", None, "node1", None, 0.01, 0, cores=()),
            RoleStatus(1, "learner", 0, "node1", None, 0.97, 0, cores=(0,)),
            RoleStatus(2, "actor", 0, "node1", None, 0.93, 0, cores=(1,)),
        ),
    }
    return Summary(**placed(values | changes))


@pytest.fixture
def snapshot() -> Callable[..., Snapshot]:
    return build_snapshot


@pytest.fixture
def with_replay() -> dict[str, Any]:
    return dict(WITH_REPLAY)


@pytest.fixture
def of_groups() -> dict[str, Any]:
    return dict(OF_GROUPS)


@pytest.fixture
def summary() -> Callable[..., Summary]:
    return build_summary


@pytest.fixture
def bottleneck() -> Bottleneck:
    return BOTTLENECK


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create("ppo_cartpole", tmp_path / "experiments")
    made.write_config("[experiment]\n")
    return made

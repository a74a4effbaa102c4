"""Claims about a training that a benchmark makes, and what is read of it."""

from __future__ import annotations

import json
import math
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.bench import training
from tianji_cli.bench.training import Curve, read_training, train_once
from tianji_cli.errors import RunFailed
from tianji_cli.telemetry.rundir import RunDirectory


def test_a_training_that_cannot_start_says_why(config: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"training\.gamma"):
        train_once(config, ["training.gamma=2.0"], name="new", place=tmp_path)


def test_a_training_that_hears_nothing_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deaf = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "os.kill(os.getppid(), signal.SIGUSR1); signal.pause()"
    )
    monkeypatch.setattr(training, "python_command", lambda *_words: [sys.executable, "-c", deaf])
    monkeypatch.setattr(training, "END_S", 0.1)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyError, match="somebody interrupts"):
            train_once("some.toml", [], name="deaf", place=tmp_path)
    finally:
        signal.signal(signal.SIGUSR1, before)


def interrupt(_number: int, _frame: object) -> None:
    raise KeyError("somebody interrupts")


def row(train_s: float, received: int, mean_100: float | None) -> dict[str, Any]:
    return {"train_s": train_s, "env_steps": received, "produced": received + 50, "mean_100": mean_100}


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., RunDirectory]:
    def leave(**changes: Any) -> RunDirectory:
        summary: dict[str, Any] = {
            "train_s": 4.0,
            "env_steps": 4000,
            "produced": 4100,
            "received": 4000,
            "in_flight": 90,
            "lost": 0,
            "dropped": 10,
            "produced_per_s": 1025.0,
            "consumed_per_s": 4000.0,
            "returns": {"episodes": 200, "mean_100": 310.0, "best_mean_100": 320.0},
            "time_to": {"300": 2.5},
            "staleness": {"mean": 0.9},
            **changes,
        }
        directory = RunDirectory(tmp_path)
        directory.summary.write_text(json.dumps(summary))
        rows = [
            row(0.0, 0, None),
            row(1.0, 1000, None),
            row(2.0, 2000, 100.0),
            row(3.0, 2800, 305.0),
            row(4.0, 3900, 308.0),
            row(4.0, 4000, 310.0),
        ]
        directory.metrics.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
        return directory

    return leave


def test_steps_to_the_threshold_lie_between_two_reports(run: Callable[..., RunDirectory]) -> None:
    found = read_training(run(), 3, 300.0)
    assert (found.seed, found.reached, found.time_to_s) == (3, True, 2.5)
    assert found.steps_to == pytest.approx(2400)
    assert found.curve == Curve((2.0, 3.0, 4.0), (2000, 2800, 4000), (100.0, 305.0, 310.0))


def test_a_threshold_not_reached_counts_as_the_end(run: Callable[..., RunDirectory]) -> None:
    found = read_training(run(time_to={"300": None}), 3, 300.0)
    assert (found.reached, found.time_to_s, found.steps_to) == (False, 4.0, 4000)
    assert math.isclose(found.train_s, 4.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"produced": 4101}, "misses 1 samples"),
        ({"lost": 64, "produced": 4164}, "misses 64 samples"),
        ({"evaluation": {"left_out": 3, "cut_off": "120 s"}}, "3 greedy episodes had not ended after 120 s"),
        ({"staleness": {"mean": None}}, "ended before"),
        ({"returns": {"episodes": 5, "mean_100": 20.0, "best_mean_100": None}}, "ended before"),
    ],
)
def test_a_run_that_is_not_whole_has_no_figures(
    run: Callable[..., RunDirectory], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunFailed, match=said):
        read_training(run(**changes), 3, 300.0)

"""Claims about a training that a benchmark makes, and what is read of it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from lab.trainings import left_run

from tianji_cli.errors import RunFailed
from tianji_cli.launch import children
from tianji_cli.runs.comparison.curves import Curve
from tianji_lab import training
from tianji_lab.training import read_learned, train_once


def test_a_training_that_cannot_start_says_why(config: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"training\.gamma"):
        train_once(config, ["training.gamma=2.0"], name="new", place=tmp_path)


def test_a_training_that_hears_nothing_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    deaf = (
        "import os, signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "os.kill(os.getppid(), signal.SIGUSR1); signal.pause()"
    )
    monkeypatch.setattr(training, "training_command", lambda *_words: [sys.executable, "-c", deaf])
    monkeypatch.setattr(training, "END_S", 0.1)
    wait_for_exit = children.wait_for_exit

    def interrupted(*arguments: Any) -> bool:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})  # Not before there is a child to end.
        return wait_for_exit(*arguments)

    monkeypatch.setattr(children, "wait_for_exit", interrupted)
    before = signal.signal(signal.SIGUSR1, interrupt)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        with pytest.raises(KeyError, match="somebody interrupts"):
            train_once("some.toml", [], name="deaf", place=tmp_path)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, before)


def interrupt(_number: int, _frame: object) -> None:
    raise KeyError("somebody interrupts")


ROWS = [
    {"wall_s": train_s, "train_s": train_s, "env_steps": received, "updates": 0}
    | {"produced": received + 50, "returns.mean_100": mean_100}
    for train_s, received, mean_100 in (
        *((0.0, 0, None), (1.0, 1000, None), (2.0, 2000, 100.0)),
        *((3.0, 2800, 305.0), (4.0, 3900, 308.0), (4.0, 4000, 310.0)),
    )
]


def test_steps_to_the_threshold_lie_between_two_reports(tmp_path: Path) -> None:
    found = read_learned(left_run(tmp_path, ROWS), 3, threshold=300.0)
    assert (found.seed, found.reached, found.time_to_s) == (3, True, 2.5)
    assert found.steps_until == pytest.approx(2400)
    assert found.curve == Curve((2.0, 3.0, 4.0), (2000, 2800, 4000), (100.0, 305.0, 310.0))
    # A threshold not reached counts as the end.
    found = read_learned(left_run(tmp_path, ROWS, time_to={"300": None}), 3, threshold=300.0)
    assert (found.reached, found.time_to_s, found.train_s) == (False, None, 4.0)
    assert (found.seconds_until, found.steps_until) == (4.0, 4000)


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
def test_a_run_that_is_not_whole_has_no_figures(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RunFailed, match=said):
        read_learned(left_run(tmp_path, ROWS, **changes), 3, threshold=300.0)

"""`tianji train --seeds`: runs side by side, what they come to together, and what a killed one does."""

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from cli.lifecycle.conftest import ENDLESS, Run

ONE_CORE = {"distribution": {"transport": "inproc"}}


def several(workplace: Any, seeds: str, *changes: dict[str, Any]) -> tuple[Path, Any]:
    config = workplace.config(*changes)
    place = workplace.place / "out/run/seeds-1"
    return place, workplace.command("train", str(config), "--seeds", seeds, "--out", "out")


def writer_of(path: Path, command: Any) -> int:
    """The process of a command that has a file open for appending."""
    for process in psutil.Process(command.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(file.path == str(path) and file.mode.startswith("a") for file in process.open_files()):
                return process.pid
    pytest.fail(f"nobody writes {path}")


def test_seeds_count_from_the_configs_own_and_have_one_summary(workplace: Any) -> None:
    place, command = several(workplace, "2", ONE_CORE, {"experiment": {"seed": 7, "thresholds": [1.0, 1e6]}})
    command.wait(0)
    summary = json.loads((place / "summary.json").read_text())
    assert summary["status"] == "finished"
    assert [row["seed"] for row in summary["seeds"]] == [7, 8]
    returns = [json.loads((place / seed / "summary.json").read_text())["returns"] for seed in ("7", "8")]
    means = [row["mean_100"] for row in returns]
    assert summary["final"]["iqm"] == pytest.approx(sum(means) / 2)
    assert min(means) <= summary["final"]["low"] <= summary["final"]["high"] <= max(means)
    assert summary["time_to"]["1"]["reached"] == 2
    assert summary["time_to"]["1000000"] == {"reached": 0, "of": 2, "iqm": None, "low": None, "high": None}
    configs = [(place / seed / "config.toml").read_text() for seed in ("7", "8")]
    assert ["seed = 7" in configs[0], "seed = 8" in configs[1]] == [True, True]
    assert "seed 7 running" in command.stderr
    assert "seed 8 finished" in command.stderr
    assert "interquartile mean of 2 seeds" in command.stdout


def test_each_of_two_seeds_at_once_has_a_core_of_its_own(workplace: Any) -> None:
    place, command = several(workplace, "3,11", ONE_CORE, ENDLESS)
    for seed in (3, 11):
        Run(place / str(seed), command).train_until()
    processes = command.pids("actor, buffer and learner")
    assert len(processes) == 2
    first, other = (os.sched_getaffinity(pid) for pid in processes)
    assert first.isdisjoint(other)
    again = workplace.command("train", "--resume", "run/seeds-1", "--out", "out")
    again.wait(2)
    assert "another command trains the seeds" in again.last_words
    command.signal_all(signal.SIGINT)
    command.wait(130)
    assert json.loads((place / "summary.json").read_text())["status"] == "stopped"


def test_a_killed_seed_ends_no_other_and_all_go_on_with_resume(workplace: Any) -> None:
    place, command = several(workplace, "3,11,12", ONE_CORE, ENDLESS)
    for seed in (3, 11):
        Run(place / str(seed), command).train_until()
    os.kill(writer_of(place / "3/metrics.jsonl", command), signal.SIGKILL)
    Run(place / "12", command).train_until()  # It has taken the killed one's place.
    other = Run(place / "11", command)
    other.train_until(other.env_steps + 1000)
    os.kill(command.pid, signal.SIGTERM)
    command.wait(1)
    assert command.last_words == "tianji: error: 1 seed failed: 3"
    assert "seed 3 failed: was killed by SIGKILL" in command.stderr
    states = [json.loads((place / f"{seed}/checkpoints/last/state.json").read_text()) for seed in (11, 12)]
    goal = max(state["progress"]["env_steps"] for state in states) + 4096

    ends = f"experiment.stop.env_steps={goal}"
    again = workplace.command("train", "--resume", "run/seeds-1", "--out", "out", "--set", ends, "--quiet")
    again.wait(0)
    assert again.stderr == ""
    summary = json.loads((place / "summary.json").read_text())
    assert [row["status"] for row in summary["seeds"]] == ["finished"] * 3
    assert all(row["env_steps"] >= goal for row in summary["seeds"])

    times = [(place / str(seed) / "summary.json").stat().st_mtime_ns for seed in (3, 11, 12)]
    workplace.command("train", "--resume", "run/seeds-1", "--out", "out").wait(0)
    assert [(place / str(seed) / "summary.json").stat().st_mtime_ns for seed in (3, 11, 12)] == times


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_seeds_that_were_stopped_before_they_began_still_wait(workplace: Any, number: signal.Signals) -> None:
    place, command = several(workplace, "2", ONE_CORE, ENDLESS)
    workplace.until(lambda: "seed 2 running" in command.stderr, "both are started")
    os.kill(command.pid, number)
    command.wait(130)
    rows = json.loads((place / "summary.json").read_text())["seeds"]
    assert {(row["status"], row["reason"]) for row in rows} == {("waiting", "")}


def test_a_seed_without_a_whole_summary_has_failed_and_one_without_a_whole_directory_begins_anew(
    workplace: Any,
) -> None:
    place, command = several(workplace, "3,11,12", ONE_CORE)
    command.wait(0)
    (place / "3/summary.json").write_text("{}")
    (place / "11/summary.json").unlink()  # As if its evaluation had been killed.
    for left in ("checkpoints", "plots"):
        shutil.rmtree(place / "12" / left)
    (place / "12/metrics.jsonl").unlink()

    again = workplace.command("train", "--resume", "run/seeds-1", "--out", "out")
    again.wait(1)
    assert again.last_words == "tianji: error: 2 seeds failed: 3, 11"
    rows = {row["seed"]: row for row in json.loads((place / "summary.json").read_text())["seeds"]}
    assert {seed: row["status"] for seed, row in rows.items()} == {3: "failed", 11: "failed", 12: "finished"}
    assert "3/summary.json is no summary" in rows[3]["reason"]
    assert "tianji eval out/run/seeds-1/11" in rows[11]["reason"]
    assert rows[12]["env_steps"] >= 2048


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "0"), "from 1 to 1000"),
        (("--seeds", "2,2"), "names a seed twice"),
        (("--seeds", "a"), "neither a number of seeds"),
        (("--seeds", "9" * 5000), "neither a number of seeds"),
        (("--seeds", "4294967296,"), "the greatest is 4294967295"),
        (("--seeds", "2", "--set", "experiment.seed=4294967295"), "goes on to seed 4294967296"),
        (("--seeds", "2", "--run", "x"), "directories of its own"),
        (("--seeds", "2", "--set", "distribution.hosts=2", "--transport", "zmq"), "distribution.hosts is 2"),
    ],
)
def test_what_seeds_cannot_be_is_said_before_anything_is_made(
    workplace: Any, words: tuple[str, ...], said: str
) -> None:
    command = workplace.command("train", str(workplace.config()), "--out", "out", *words)
    command.wait(2)
    assert said in command.last_words
    assert not (workplace.place / "out").exists()

"""Claims about `tianji bench staleness`: real trainings, and what is made of their figures."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from cli.sessions import PATIENCE_S, in_session, kill_session, stale_shared_memory, until

from tianji_cli.bench.staleness import Comparison, Setting, oversubscribed, plan_comparison
from tianji_cli.bench.staleness_plots import draw
from tianji_cli.bench.staleness_report import cautions, document, print_rows, rows_of
from tianji_cli.bench.training import Curve, Training, read_training, train_once
from tianji_cli.config.loader import load_config
from tianji_cli.errors import ConfigError, RunFailed, UsageError
from tianji_cli.telemetry.rundir import RunDirectory

TIANJI = Path(sys.executable).with_name("tianji")
PNG = b"\x89PNG\r\n"

CONFIG: dict[str, Any] = {
    "experiment": {"name": "quick", "seed": 7, "stop": {"env_steps": 12_000}, "thresholds": [15.0]},
    "environment": {"type": "gym", "id": "CartPole-v1", "num_envs": 8},
    "agent": {"type": "ppo"},
    "model": {"type": "mlp_actor_critic", "hidden": [16]},
    "training": {"type": "ppo", "rollout_steps": 512, "minibatch_size": 128, "epochs": 2},
    "distribution": {"transport": "shm", "pin_cores": False, "actor": {"num": 1, "send_size": 16}},
}
BOOM = """
import gymnasium, numpy as np
from tianji_envs.core import BaseEnv

class Boom(BaseEnv):
    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.steps = 0

    def reset(self, seed=None):
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        if self.steps == 500:
            raise RuntimeError("the boom")
        return np.zeros(2, np.float32), 1.0, self.steps % 20 == 0, False
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "quick.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    return str(path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts the command in a session of its own, which is empty at the end."""
    started: list[subprocess.Popen[str]] = []
    stale = stale_shared_memory()

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [str(TIANJI), "bench", "staleness", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "200"},
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        kill_session(process.pid)
        process.communicate()
    assert stale_shared_memory() <= stale


def plan(config: str, **options: Any) -> Comparison:
    usual: dict[str, Any] = {"figure": "12a", "lags": (), "seeds": 5, "threshold": None}
    return plan_comparison(config, **{**usual, "overrides": (), "poor": (), **options})


# -- real trainings --------------------------------------------------------------------------------------


def test_lags_are_trained_in_turns_and_their_figures_written(
    start: Callable[..., subprocess.Popen[str]], config: str, tmp_path: Path
) -> None:
    out, to = tmp_path / "out", tmp_path / "found.json"
    options = ["--lag", "1", "--lag", "2", "--seeds", "2", "--out", str(out), "--json", str(to)]
    process = start(config, *options)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    found = json.loads(to.read_text())
    assert found == json.loads((out / "figure-12a.json").read_text())
    assert (out / "figure-12a.png").read_bytes().startswith(PNG)
    assert found["environment"]["iceoryx2"]
    assert (found["figure"], found["threshold"]) == ("12a", 15)
    new, lag2 = found["rows"]
    assert [(row["samples"], row["seeds"], row["reached"]) for row in (new, lag2)] == [
        ("New", 2, 2),
        ("Lag2", 2, 2),
    ]
    assert new["staleness"]["iqm"] + 0.2 < lag2["staleness"]["iqm"] < new["staleness"]["iqm"] + 0.8
    for row in (new, lag2):
        for name in ("time_to_s", "steps_to", "mean_100"):
            assert 0 < row[name]["low"] <= row[name]["iqm"] <= row[name]["high"]
        assert row["steps_to"]["high"] < 12_000
    assert "Lag2 takes" in said
    trained = [(training["lag"], training["seed"]) for training in found["trainings"]]
    assert trained == [(1, 7), (1, 8), (2, 7), (2, 8)]
    ended = {}
    for training in found["trainings"]:
        run = RunDirectory(Path(training["run"]))
        ran = load_config(str(run.config))
        assert ran.experiment.seed == training["seed"]
        assert ran.distribution.buffer.rollouts == training["lag"]
        ended[run.summary.stat().st_mtime_ns] = training["seed"], training["lag"]
        times, steps, returns = (training["curve"][name] for name in ("train_s", "env_steps", "mean_100"))
        assert len(times) == len(steps) == len(returns)
        assert all(early < late for early, late in pairwise(times))
        assert steps[-1] == training["env_steps"] >= 12_000
    assert [ended[moment] for moment in sorted(ended)] == [(7, 1), (7, 2), (8, 1), (8, 2)]


def test_a_training_that_fails_ends_the_command_without_figures(
    start: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "boom_env.py").write_text(BOOM)
    changed = {**CONFIG, "environment": {"type": "boom_env:Boom", "num_envs": 8}}
    (tmp_path / "boom.toml").write_text(tomli_w.dumps(changed))
    process = start("boom.toml", "--seeds", "2", "--lag", "1", "--out", "out", "--json", "-")
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1
    assert "a training of new failed, so there are no figures" in errors
    assert "the boom" in errors
    assert "Traceback" not in errors
    assert said == ""
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == ["runs"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_stops_its_training_and_draws_nothing(
    start: Callable[..., subprocess.Popen[str]], config: str, tmp_path: Path, number: signal.Signals
) -> None:
    endless = ["--set", "experiment.stop={env_steps=1_000_000_000}"]
    process = start(config, *endless, "--out", "out", "--quiet")
    metrics = tmp_path / "out" / "runs" / "new" / "1" / "metrics.jsonl"
    until(lambda: metrics.exists() and '"updates":0,' not in metrics.read_text()[-2000:], "an update")
    process.send_signal(number)
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, said) == (130, "")
    assert "interrupted" in errors
    until(lambda: not in_session(process.pid), "the end of every process")
    assert json.loads((metrics.parent / "summary.json").read_text())["status"] == "stopped"
    assert sorted(place.name for place in (tmp_path / "out").iterdir()) == ["runs"]


def test_a_training_does_not_outlive_a_killed_command(
    start: Callable[..., subprocess.Popen[str]], config: str, tmp_path: Path
) -> None:
    process = start(config, "--set", "experiment.stop={env_steps=1_000_000_000}", "--out", "out", "--quiet")
    metrics = tmp_path / "out" / "runs" / "new" / "1" / "metrics.jsonl"
    until(metrics.exists, "a training")
    process.kill()
    until(lambda: not in_session(process.pid), "the end of every process")


def test_a_training_that_cannot_start_says_why(config: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=r"training\.gamma"):
        train_once(config, ["training.gamma=2.0"], name="new", place=tmp_path)


# -- what is asked for -------------------------------------------------------------------------------------


def test_figure_12a_is_four_lags_of_the_config_as_it_is(config: str) -> None:
    found = plan(config, overrides=["training.epochs=1"])
    assert [(setting.samples, setting.name) for setting in found.settings] == [
        ("New", "new"),
        ("Lag2", "lag2"),
        ("Lag4", "lag4"),
        ("Lag8", "lag8"),
    ]
    assert found.seeds == (7, 8, 9, 10, 11)
    assert found.threshold == 15.0
    job = load_config(config, found.overrides_of(found.settings[2], 9))
    assert job.distribution.buffer.rollouts == 4
    assert (job.experiment.seed, job.experiment.eval_episodes) == (9, 0)
    assert job.training.settings.model_dump()["epochs"] == 1
    assert job.distribution.actor == load_config(config).distribution.actor


def test_a_threshold_is_added_to_those_of_the_config(config: str) -> None:
    found = plan(config, threshold=30.0)
    job = load_config(config, found.overrides_of(found.settings[0], 1))
    assert job.experiment.thresholds == (15.0, 30.0)


def test_figure_6d_is_two_mappings_by_two_lags(config: str) -> None:
    found = plan(config, figure="6d")
    assert [(setting.mapping, setting.lag) for setting in found.settings] == [
        ("recommended", 1),
        ("recommended", 8),
        ("poor", 1),
        ("poor", 8),
    ]
    assert found.settings[0].overrides == ()
    cores = len(os.sched_getaffinity(0))
    job = load_config(config, found.overrides_of(found.settings[3], 1))
    assert job.distribution.actor.num == 4 * cores
    assert job.distribution.buffer.rollouts == 8


def test_the_poor_mapping_can_be_named(config: str) -> None:
    poor = ["distribution.actor.num=2", "environment.num_envs=2"]
    found = plan(config, figure="6d", poor=poor, lags=(4,))
    assert [(setting.name, setting.overrides) for setting in found.settings] == [
        ("lag4", ()),
        ("poor-lag4", tuple(poor)),
    ]


@pytest.mark.parametrize(
    ("changes", "cores", "expected"),
    [
        ([], 2, (8, 1)),
        (["environment.num_envs=64", "training.rollout_steps=4096"], 2, (8, 8)),
        (["environment.num_envs=24", "training.rollout_steps=1536"], 1, (4, 6)),
        (["environment.num_envs=40", "training.rollout_steps=640"], 2, (8, 5)),
        (["environment.num_envs=28", "training.rollout_steps=1792"], 1, (4, 7)),
        (["environment.num_envs=28", "training.rollout_steps=448"], 1, (4, 7)),
        (["environment.num_envs=12", "distribution.actor.num=3", "training.rollout_steps=768"], 1, (12, 3)),
        (["distribution.mode='sync'", "environment.num_envs=64", "training.rollout_steps=1024"], 2, (8, 8)),
        (["environment.num_envs=20", "training.rollout_steps=1280"], 1, (4, 5)),
        (["environment.num_envs=20", "training.rollout_steps=320"], 1, (4, 5)),
        (["environment.num_envs=10", "training.rollout_steps=800"], 1, (4, 2)),
        (["environment.num_envs=13", "training.rollout_steps=208"], 1, (4, 1)),
    ],
)
def test_the_poor_mapping_shares_the_environments_out_and_the_rollout_still_divides(
    config: str, changes: Sequence[str], cores: int, expected: tuple[int, int]
) -> None:
    mapping = oversubscribed(load_config(config, changes), cores)
    actors, num_envs = expected
    assert mapping == (f"distribution.actor.num={actors}", f"environment.num_envs={num_envs}")
    load_config(config, [*changes, *mapping])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": 1}, "at least 2 are needed"),
        ({"lags": (2, 0)}, "at least 1 rollout"),
        ({"poor": ["environment.num_envs=1"]}, "--figure 6d"),
        (
            {"threshold": 30.0, "overrides": ["experiment.stop={mean_return=20.0}"]},
            "ends a training before 30",
        ),
        ({"overrides": ["experiment.thresholds=[]"]}, "--threshold says"),
        (
            {"overrides": ["distribution.hosts=2", "distribution.transport={local='shm', remote='zmq'}"]},
            "on one host",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(config: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        plan(config, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"figure": "6d", "poor": ["environment.num_envs=7"]},
        {"overrides": ["environment.num_envs=7"]},
        {"figure": "6d", "poor": ["distribution.actor.nun=7"]},
    ],
)
def test_settings_that_do_not_fit_are_the_config_s_own_errors(config: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"num_envs|nun"):
        plan(config, **options)


def test_the_command_line_refuses_before_anything_runs(
    start: Callable[..., subprocess.Popen[str]], config: str, tmp_path: Path
) -> None:
    for arguments in ([config, "--lag", "0"], [config, "--seeds", "1"], ["no_such.toml"]):
        process = start(*arguments, "--out", "out")
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, said) == (2, "")
    assert not (tmp_path / "out").exists()


# -- what is made of it -------------------------------------------------------------------------------------


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


def test_rows_hold_interquartile_means_and_how_they_lie_to_the_first() -> None:
    new, lag8 = rows_of(FOUND)
    assert new.time_to_s.iqm == pytest.approx(1.2)
    assert lag8.time_to_s.iqm == pytest.approx(2.2)
    assert new.steps_to.iqm == pytest.approx(1200)
    assert (new.staleness.iqm, lag8.staleness.iqm) == (1.0, 4.5)
    assert new.time_to_s.low < 1.2 < new.time_to_s.high
    assert lag8.times_the_first == pytest.approx(2.2 / 1.2)
    assert (new.overlaps_first, lag8.overlaps_first) == (True, True)


def test_intervals_apart_do_not_overlap(capsys: pytest.CaptureFixture[str], config: str) -> None:
    found = {
        NEW: [trained(seed, 1 + seed / 100) for seed in range(5)],
        LAG8: [trained(seed, 2 + seed / 100) for seed in range(5)],
    }
    rows = rows_of(found)
    assert not rows[1].overlaps_first
    print_rows(rows, replace(plan(config), settings=(NEW, LAG8), threshold=300.0))
    said = capsys.readouterr().out
    assert "Lag8 takes 1.98 times as long to 300 as New; the intervals do not overlap" in said
    assert "a rollout is one fragment" not in said
    assert cautions(rows, 300.0) == []


def test_it_is_said_where_a_rollout_cannot_be_mixed(capsys: pytest.CaptureFixture[str], config: str) -> None:
    print_rows(rows_of(FOUND), plan(config, overrides=["training.rollout_steps=128"]))
    assert "# a rollout is one fragment, all new or all old" in capsys.readouterr().out


def test_trainings_that_never_reached_it_count_with_their_end_and_are_marked(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    poor = Setting("poor", 8, ("environment.num_envs=1",))
    found = {NEW: FOUND[NEW], poor: [trained(seed, 5.0, reached=seed > 1) for seed in range(5)]}
    rows = rows_of(found)
    assert (rows[1].reached, rows[1].time_to_s.iqm) == (3, 5.0)
    (caution,) = cautions(rows, 300.0)
    assert caution.startswith("2 of 5 trainings of Lag8 in the poor mapping did not reach 300")
    print_rows(rows, replace(plan(config), settings=(NEW, poor), threshold=300.0))
    said = capsys.readouterr().out
    assert ">= 5.00 [5.00, 5.00]" in said
    assert "3/5" in said
    assert "# poor mapping: environment.num_envs=1" in said


def test_the_document_is_json_with_every_training(config: str) -> None:
    rows = rows_of(FOUND)
    whole = document(plan(config), {"CPU": "x"}, ["w"], rows, FOUND)
    assert json.loads(json.dumps(whole, allow_nan=False))["rows"][1]["time_to_s"]["iqm"] == pytest.approx(2.2)
    assert [(one["lag"], one["seed"]) for one in whole["trainings"]] == [
        (lag, seed) for lag in (1, 8) for seed in range(5)
    ]


@pytest.mark.parametrize("reached", [True, False])
def test_figures_are_drawn_for_lags_and_mappings(tmp_path: Path, reached: bool) -> None:
    poor = Setting("poor", 8, ("environment.num_envs=1",))
    found = {**FOUND, poor: [trained(seed, 3.0 + seed, reached=reached) for seed in range(5)]}
    draw(found, rows_of(found), 300.0, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(PNG)


# -- what a training left behind ---------------------------------------------------------------------------


def row(train_s: float, received: int, mean_100: float | None) -> dict[str, Any]:
    return {"train_s": train_s, "env_steps": received + 50, "received": received, "mean_100": mean_100}


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
        ({"staleness": {"mean": None}}, "ended before"),
        ({"returns": {"episodes": 5, "mean_100": 20.0, "best_mean_100": None}}, "ended before"),
    ],
)
def test_a_run_that_is_not_whole_has_no_figures(
    run: Callable[..., RunDirectory], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(RunFailed, match=said):
        read_training(run(**changes), 3, 300.0)

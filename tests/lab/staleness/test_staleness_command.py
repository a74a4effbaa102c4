"""Claims about `tianji bench staleness`: what it is asked for, and real trainings."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from cli.boom import BOOM
from cli.quick import CONFIG, PNG
from cli.sessions import PATIENCE_S, Start, commands, in_session, until
from cli.warm import WarmCommands
from lab.trainings import plan

from tianji_cli.config.loader import load_config
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.main import main
from tianji_lab.staleness.study import oversubscribed


@pytest.fixture
def start(tmp_path: Path, warm_commands: WarmCommands) -> Iterator[Start]:
    """Starts the command, and its trainings, with everything imported."""
    with commands("bench", "staleness", cwd=tmp_path, warm=warm_commands) as begin:
        yield begin


# -- real trainings --------------------------------------------------------------------------------------


def test_lags_are_trained_in_turns_and_their_figures_written(
    start: Start, config: str, tmp_path: Path
) -> None:
    out, to = tmp_path / "out", tmp_path / "found.json"
    options = ["--lag", "1", "--lag", "2", "--seeds", "2", "--out", str(out), "--json", str(to)]
    process = start(config, *options)
    said, errors = process.communicate(timeout=200)
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
    assert "Lag2 took" in said
    assert "no verdict: 2 seeds, and 5 are the least" in said
    assert (new["overlaps_first"], lag2["overlaps_first"]) == (None, None)
    trained = [(training["lag"], training["seed"]) for training in found["trainings"]]
    assert trained == [(1, 7), (1, 8), (2, 7), (2, 8)]
    ended = {}
    for training in found["trainings"]:
        run = RunDirectory(Path(training["run"]))
        ran = load_config(str(run.config))
        assert ran.experiment.seed == training["seed"]
        assert ran.distribution.buffer.rollouts == training["lag"]
        ended[run.summary.stat().st_mtime_ns] = training["seed"], training["lag"]
        times, steps, returns = (training["curve"][name] for name in ("train_s", "env_steps", "returns"))
        assert len(times) == len(steps) == len(returns)
        assert all(early < late for early, late in pairwise(times))
        assert steps[-1] == training["env_steps"] >= 12_000
    assert [ended[moment] for moment in sorted(ended)] == [(7, 1), (7, 2), (8, 1), (8, 2)]


def test_a_training_that_fails_ends_the_command_without_figures(start: Start, tmp_path: Path) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)])
def test_an_interrupted_command_stops_its_training_and_draws_nothing(
    start: Start, config: str, tmp_path: Path, number: signal.Signals
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


def test_a_training_does_not_outlive_a_killed_command(start: Start, config: str, tmp_path: Path) -> None:
    process = start(config, "--set", "experiment.stop={env_steps=1_000_000_000}", "--out", "out", "--quiet")
    metrics = tmp_path / "out" / "runs" / "new" / "1" / "metrics.jsonl"
    until(metrics.exists, "a training")
    process.kill()
    until(lambda: not in_session(process.pid), "the end of every process")


# -- what is asked for -------------------------------------------------------------------------------------


def test_figure_12a_is_four_lags_of_the_config_as_it_is(config: str) -> None:
    found = plan(config, overrides=["training.epochs=1"])
    above = plan(config, threshold=30.0)
    job = load_config(config, above.entry(above.settings[0]).with_seed(1))
    assert job.experiment.thresholds == (15.0, 30.0), "a threshold is added to those of the config"
    assert [setting.samples for setting in found.settings] == ["New", "Lag2", "Lag4", "Lag8"]
    assert [setting.name for setting in found.settings] == ["new", "lag2", "lag4", "lag8"]
    assert found.seeds == (7, 8, 9, 10, 11)
    assert found.threshold == 15.0
    job = load_config(config, found.entry(found.settings[2]).with_seed(9))
    assert job.distribution.buffer.rollouts == 4
    assert (job.experiment.seed, job.experiment.eval_episodes) == (9, 0)
    assert job.training.settings.model_dump()["epochs"] == 1
    assert job.distribution.actor == load_config(config).distribution.actor


def test_figure_6d_is_two_mappings_by_two_lags(config: str) -> None:
    found = plan(config, figure="6d")
    mappings = [("recommended", 1), ("recommended", 8), ("poor", 1), ("poor", 8)]
    assert [(setting.mapping, setting.lag) for setting in found.settings] == mappings
    assert found.settings[0].overrides == ()
    cores = len(os.sched_getaffinity(0))
    job = load_config(config, found.entry(found.settings[3]).with_seed(1))
    assert job.distribution.actor.num.max == 4 * cores
    assert job.distribution.buffer.rollouts == 8
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
        (["environment.num_envs=40", "training.rollout_steps=640"], 2, (8, 5)),
        (["environment.num_envs=28", "training.rollout_steps=448"], 1, (4, 7)),
        (["environment.num_envs=12", "distribution.actor.num=3", "training.rollout_steps=768"], 1, (12, 3)),
        (["distribution.mode='sync'", "environment.num_envs=64", "training.rollout_steps=1024"], 2, (8, 8)),
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
        # Settings that do not fit are the config's own errors.
        ({"figure": "6d", "poor": ["environment.num_envs=7"]}, "num_envs"),
        ({"overrides": ["environment.num_envs=7"]}, "num_envs"),
        ({"figure": "6d", "poor": ["distribution.actor.nun=7"]}, "nun"),
    ],
)
def test_what_cannot_be_compared_is_refused(config: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=said):
        plan(config, **options)


def test_the_command_line_refuses_before_anything_runs(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in ([config, "--lag", "0"], [config, "--seeds", "1"], ["no_such.toml"]):
        with pytest.raises(SystemExit) as ended:
            main(["bench", "staleness", *arguments, "--out", "out"])
        assert (ended.value.code, capsys.readouterr().out) == (2, "")
    assert not (tmp_path / "out").exists()

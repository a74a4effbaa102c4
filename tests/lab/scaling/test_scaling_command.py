"""Claims about `tianji bench scaling`: what it is asked for, and real trainings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from cli.boom import BOOM
from cli.quick import CONFIG, PNG
from cli.sessions import Start, commands
from cli.warm import WarmCommands
from lab.scaling.scaled import study_of

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import JobConfig
from tianji_cli.errors import ConfigError, UsageError
from tianji_cli.files.rundir import RunDirectory
from tianji_cli.main import main
from tianji_lab.profile.split import split_of
from tianji_lab.scaling.hosts import Others
from tianji_lab.scaling.study import Study, batch_settings

TWO_ENGINES = "distribution.transport={local='shm', remote='zmq'}"


@pytest.fixture
def start(tmp_path: Path, warm_commands: WarmCommands) -> Iterator[Start]:
    """Starts the command, and its trainings, with everything imported."""
    with commands("bench", "scaling", cwd=tmp_path, warm=warm_commands) as begin:
        yield begin


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cores, as far as a plan asks."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


def names(study: Study) -> list[str]:
    return [setting.name for setting in study.settings]


# -- real trainings --------------------------------------------------------------------------------------


def test_points_are_trained_in_turns_and_their_figures_written(
    start: Start, config: str, tmp_path: Path
) -> None:
    out, to = tmp_path / "out", tmp_path / "found.json"
    options = ["--actors", "2", "--actors", "1", "--actors", "3", "--repeats", "2", "--seconds", "4"]
    options += ["--no-prediction", "--set", "distribution.mode='sync'", "--out", str(out), "--json", str(to)]
    process = start(config, *options)
    said, errors = process.communicate(timeout=110)
    assert process.returncode == 0, errors
    found = json.loads(to.read_text())
    assert found == json.loads((out / "figure-6a.json").read_text())
    assert (out / "figure-6a.png").read_bytes().startswith(PNG)
    assert (found["figure"], found["threshold"], found["seconds"]) == ("6a", 15, 4)
    assert [(row["setting"], row["actors"], row["repeats"]) for row in found["rows"]] == [
        ("L1A1", 1, 2),
        ("L1A2", 2, 2),
    ]
    (refused,) = found["refused"]
    assert (refused["setting"], "3 actors in step" in refused["why"]) == ("L1A3", True)
    assert "L1A3 was not trained: 3 actors in step" in said
    ended = {}
    for row in found["rows"]:
        assert row["oversubscribed"] == (row["actors"] + 1 > len(os.sched_getaffinity(0)))
        for name in ("produced_per_s", "received_per_s", "consumed_per_s", "time_to_s"):
            assert 0 < row[name]["min"] <= row[name]["median"] <= row[name]["max"]
        # Two uses of each sample, of which a window of a second may hold the first only.
        assert 1 <= row["consumed_per_s"]["median"] / row["received_per_s"]["median"] <= 3
        for training in row["trainings"]:
            run = RunDirectory(Path(training["run"]))
            ran = load_config(str(run.config))
            assert (ran.experiment.seed, ran.distribution.actor.num.max) == (training["seed"], row["actors"])
            assert ran.experiment.stop.wall_s == 4
            assert training["train_s"] > 0
            summary = json.loads(run.summary.read_text())
            unused = summary["received"] - summary["consumed"] / 2
            assert 0 <= unused <= ran.training.settings.model_dump()["rollout_steps"]
            ended[run.summary.stat().st_mtime_ns] = training["seed"], row["actors"]
    assert [ended[moment] for moment in sorted(ended)] == [(7, 1), (7, 2), (8, 1), (8, 2)]
    lines = (out / "figure-6a.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in lines[1:]] == [["measured", "L1A1"], ["measured", "L1A2"]]


def test_a_training_that_fails_costs_its_own_figures_and_the_exit_status(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "boom_env.py").write_text(BOOM)
    changed = {**CONFIG, "environment": {"type": "boom_env:Boom", "num_envs": 8}}
    (tmp_path / "boom.toml").write_text(tomli_w.dumps(changed))
    process = start(
        "boom.toml", "--actors", "1", "--repeats", "1", "--seconds", "5", "--no-prediction", "--out", "out"
    )
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "no figures of 1 training:" in errors
    assert "the boom" in errors
    assert "Traceback" not in errors
    assert "# WARNING: 1 of 1 training of L1A1 gave no figures" in said
    (row,) = json.loads((tmp_path / "out" / "figure-6a.json").read_text())["rows"]
    assert (row["produced_per_s"], row["time_to_s"]) == (None, None)
    assert (tmp_path / "out" / "figure-6a.png").read_bytes().startswith(PNG)


# -- what is asked for -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("two_cores")
def test_figure_6a_doubles_the_actors_and_marks_what_wants_more_cores_than_there_are(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = study_of(config, figure="6a")
    assert [(setting.name, setting.cores, setting.oversubscribed) for setting in study.settings] == [
        ("L1A1", 2, False),
        ("L1A2", 3, True),
        ("L1A4", 5, True),
        ("L1A8", 9, True),
    ]
    assert (study.seeds, study.threshold) == ((7, 8, 9), 15.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(40)))
    more = study_of(config, figure="6a").settings
    assert [setting.split.actors for setting in more] == [1, 2, 4, 8, 16, 32]
    assert not any(setting.oversubscribed for setting in more)


def test_a_training_lasts_as_long_as_it_is_told_whatever_it_learns(config: str) -> None:
    study = study_of(config, threshold=30.0, seconds=4.0, overrides=("training.epochs=1",))
    job = load_config(config, study.entry(study.settings[1]).with_seed(9))
    stop = job.experiment.stop
    assert (stop.wall_s, stop.env_steps, stop.mean_return) == (4.0, None, None)
    assert job.experiment.thresholds == (15.0, 30.0)
    assert (job.experiment.seed, job.experiment.eval_episodes) == (9, 0)
    assert job.distribution.actor.num.max == 2
    assert job.training.settings.model_dump()["epochs"] == 1


def test_figure_6b_has_twice_the_cores_and_twice_the_batch(config: str) -> None:
    study = study_of(config, figure="6b", actors=(4, 1))
    assert [setting.split.actors for setting in study.settings] == [1, 4]
    job = load_config(config, study.entry(study.settings[1]).with_seed(1))
    assert job.distribution.learner.cores == 2
    assert job.training.settings.model_dump()["minibatch_size"] == 256
    assert study.job.training.settings.model_dump()["rollout_steps"] == 512
    wider = study_of(config, figure="6b", learner_cores=3)
    settings = wider.job.training.settings.model_dump()
    assert (settings["minibatch_size"], settings["rollout_steps"]) == (384, 1536)


def test_a_larger_batch_is_the_same_share_of_its_replay() -> None:
    def share(job: JobConfig) -> float:
        """P of Equation 2."""
        return float(job.training.settings.model_dump()["batch_size"] / job.distribution.buffer.capacity)

    study = study_of("dqn_cartpole", figure="6b", learner_cores=3)
    assert study.job.training.settings.model_dump()["batch_size"] == 3 * 512
    assert share(study.job) == share(load_config("dqn_cartpole"))
    smaller = ("distribution.buffer.capacity=20_480",)
    study = study_of("dqn_cartpole", figure="6b", overrides=smaller)
    assert share(study.job) == 512 / 20_480, "the user's own capacity grows, too"
    job = load_config("dqn_cartpole", ["training.batch_size=100"])
    assert batch_settings(job, split_of(job)) == []


@pytest.mark.usefixtures("two_cores")
def test_figure_6c_repeats_a_group(config: str) -> None:
    study = study_of(config, figure="6c", actors=(3,))
    assert names(study) == ["L1A3", "2 x L1A3", "4 x L1A3"]
    assert [setting.cores for setting in study.settings] == [4, 8, 16]
    assert [setting.directory for setting in study.settings] == ["l1a3", "2xl1a3", "4xl1a3"]


def test_table_1_and_figure_12b_are_of_the_same_trainings(config: str) -> None:
    expected = ["L2A2", "L2A4", "L2A8", "L2A16", "L2A24"]
    for figure in ("table1", "12b"):
        assert names(study_of(config, figure=figure)) == expected
    wider = study_of(config, figure="table1", learners=4, learner_cores=4, actors=(8,))
    (setting,) = wider.settings
    assert (setting.name, setting.cores) == ("L4A8", 24)
    assert wider.job.training == load_config(config).training, "the batch is what it was"


def test_other_hosts_take_part_in_every_training(config: str) -> None:
    others = Others(("b", "c"), "ssh {host}", "10.0.0.1")
    study = study_of(config, actors=(2,), others=others)
    job = load_config(config, study.entry(study.settings[0]).with_seed(1))
    assert job.distribution.hosts.max == 3
    assert (job.distribution.transport.local, job.distribution.transport.remote) == ("shm", "zmq")
    assert study.cores == 3 * len(os.sched_getaffinity(0))


@pytest.mark.usefixtures("two_cores")
def test_a_point_is_oversubscribed_if_one_of_its_hosts_is(config: str) -> None:
    others = Others(("b",), "ssh {host}", "10.0.0.1")
    (spread,) = study_of(config, actors=(3,), others=others).settings
    assert (spread.cores, spread.oversubscribed) == (4, False)
    (crowded,) = study_of(config, actors=(1,), learner_cores=3, others=others).settings
    assert (crowded.cores, crowded.oversubscribed) == (4, True), "3 of its 4 cores are wanted on the first"
    (groups,) = study_of(config, figure="6c", groups=(2,), others=others).settings
    assert (groups.cores, groups.oversubscribed) == (4, False)


def test_figure_4c_ends_at_the_threshold_which_keeps_all_its_digits(config: str) -> None:
    study = study_of(config, figure="4c")
    stop = load_config(config, study.entry(study.settings[0]).with_seed(1)).experiment.stop
    assert (stop.wall_s, stop.mean_return) == (10.0, 15.0)
    study = study_of(config, figure="4c", threshold=1234567.125, seconds=1234567.5)
    experiment = load_config(config, study.entry(study.settings[0]).with_seed(1)).experiment
    assert (experiment.stop.mean_return, experiment.stop.wall_s) == (1234567.125, 1234567.5)
    assert experiment.thresholds == (15.0, 1234567.125)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"groups": (1, 2)}, "6a is over actors: --groups names one number"),
        ({"figure": "6c", "actors": (1, 2)}, "6c is over groups: --actors names one number"),
        ({"seconds": 0.0}, "no time to train for"),
        ({"seconds": float("inf")}, "no time to train for"),
        ({"overrides": ("experiment.stop={wall_s=1.0}",)}, "--seconds says when"),
        ({"overrides": ("distribution.actor.num=4",)}, "in figure 6a, --actors says that"),
        ({"figure": "6c", "overrides": ("distribution.groups = 2",)}, "in figure 6c, --groups says that"),
        ({"figure": "table1", "overrides": ("distribution.learner.num=4",)}, "--learners says that"),
        ({"overrides": ("distribution.hosts=2", TWO_ENGINES)}, "--hosts names the hosts"),
        ({"threshold": float("nan")}, "--threshold nan is no return"),
        ({"threshold": float("inf")}, "--threshold inf is no return"),
        ({"figure": "4c", "overrides": ("experiment.thresholds=[]",)}, "--threshold says"),
        ({"figure": "table1", "overrides": ("experiment.thresholds=[]",)}, "--threshold says"),
        # A config of which nothing can be trained.
        ({"actors": (3,), "overrides": ("distribution.mode='sync'",)}, "3 actors in step"),
    ],
)
def test_what_makes_no_figure_is_refused(config: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=said):
        study_of(config, **options)


def test_without_a_threshold_throughput_alone_is_measured(config: str) -> None:
    study = study_of(config, overrides=("experiment.thresholds=[]",))
    assert study.threshold is None
    assert load_config(config, study.entry(study.settings[0]).with_seed(1)).experiment.thresholds == ()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--actors", "0"],
        ["--seconds", "0", "--no-prediction"],
        ["--from", "none.json"],
        ["--from", "none.json", "--no-prediction"],
        ["--join-with", "ssh {host}"],
        ["--hosts", "b", "--join-with", "ssh 'b"],
        ["--nodes", "2", "--no-prediction"],
        ["--node-cores", "40", "--no-prediction"],
        ["--link-mb", "125", "--no-prediction"],
        ["--threshold", "nan", "--no-prediction"],
        ["--hosts", "b", "--listen", "127.0.0.1", "--no-prediction"],
    ],
)
def test_the_command_line_refuses_before_anything_runs(
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: Sequence[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "scaling", config, *arguments])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    assert not list(tmp_path.glob("**/runs"))
    if "--listen" in arguments:
        assert "--hosts needs --out on a file system that all hosts see" in said.err

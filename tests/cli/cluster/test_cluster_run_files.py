"""What is read of a run before it goes on, and who is taken to reach its directory."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tianji_cli.cluster.keys import JobKey
from tianji_cli.cluster.plan import Host, make_plan
from tianji_cli.cluster.run_files import files_elsewhere, goals_reached, reaches_run, saved_progress
from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import Stop
from tianji_cli.data.progress import Progress
from tianji_cli.errors import UsageError

HOSTS = [Host("here", (0, 1)), Host("there", (0, 1))]


def save(place: Path, progress: Progress, **episodes: float | None) -> Path:
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"progress": asdict(progress), "episodes": episodes}))
    return place / "state.json"


def test_each_group_goes_on_with_its_own_counters_and_a_new_one_counts_from_nothing(tmp_path: Path) -> None:
    save(tmp_path / "last", Progress(env_steps=100, updates=7, train_s=1.5, sessions=2))
    save(tmp_path / "group-1/last", Progress(env_steps=80, version=3, sessions=2))
    assert saved_progress(tmp_path, 3) == (
        Progress(env_steps=100, updates=7, train_s=1.5, sessions=3),
        Progress(env_steps=80, version=3, sessions=3),
        Progress(sessions=3),
    )


def test_a_group_that_the_last_session_did_not_have_does_not_go_on_from_an_older_one(tmp_path: Path) -> None:
    save(tmp_path / "last", Progress(env_steps=100, sessions=2))
    save(tmp_path / "group-1/last", Progress(env_steps=80, version=3, sessions=1))
    assert saved_progress(tmp_path, 2)[1] == Progress(sessions=3)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"progress": {"steps": 1}}', '{"progress": {"sessions": "x"}}']
)
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    save(tmp_path / "checkpoints/last", Progress()).write_text(text)
    with pytest.raises(UsageError, match="has no readable checkpoint to go on from"):
        saved_progress(tmp_path / "checkpoints", 1)
    with pytest.raises(UsageError, match="has no readable checkpoint to go on from"):
        saved_progress(tmp_path / "nowhere", 1)


@pytest.mark.parametrize(
    ("stop", "reached"),
    [
        (Stop(env_steps=300), {"env_steps"}),
        (Stop(env_steps=301), set()),
        (Stop(mean_return=475.0, env_steps=10_000), {"mean_return"}),
        (Stop(mean_return=475.1), set()),
        (Stop(win_rate=0.75), {"win_rate"}),
        (Stop(win_rate=0.76), set()),
        (Stop(wall_s=1e-9), set()),
        (Stop(wall_s=1e9, env_steps=1, mean_return=-5.0), {"env_steps", "mean_return"}),
    ],
)
def test_a_goal_is_reached_if_a_rule_holds_of_what_all_sessions_and_groups_have_saved(
    tmp_path: Path, stop: Stop, reached: set[str]
) -> None:
    save(tmp_path / "last", Progress(env_steps=200, train_s=1e6), best_mean=475.0, best_win_rate=0.5)
    save(tmp_path / "group-1/last", Progress(env_steps=100), best_mean=None, best_win_rate=0.75)
    assert goals_reached(tmp_path, stop, 2).keys() == reached


def test_of_a_run_without_a_hundred_episodes_no_goal_of_returns_is_reached(tmp_path: Path) -> None:
    save(tmp_path / "last", Progress(env_steps=200), best_mean=None)
    assert goals_reached(tmp_path, Stop(mean_return=-1e9, win_rate=1e-9), 1) == {}


def test_a_run_directory_is_the_job_s_if_its_key_lies_there(tmp_path: Path) -> None:
    key = JobKey.new()
    assert not reaches_run(tmp_path / "nowhere", key)
    assert not reaches_run(tmp_path, key)
    key.write(tmp_path / "job.key")
    assert reaches_run(tmp_path, key)
    assert not reaches_run(tmp_path, JobKey.new())


def test_learners_and_roles_of_the_user_s_on_other_hosts_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    recorder = Path(__file__).parents[3] / "docs" / "examples" / "recorder.toml"
    engines = 'distribution.transport={ local = "shm", remote = "zmq" }'
    config = load_config(str(recorder), ["distribution.hosts=2", "distribution.groups=2", engines])
    found = list(files_elsewhere(make_plan(config, HOSTS), config.roles))
    assert [(one.host, one.group, one.learns, one.what) for one in found] == [
        ("there", 1, True, "the checkpoints of group 1"),
        ("there", 1, False, "the files of recorder (group 1)"),
    ]
    alone = load_config(str(recorder), ["distribution.hosts=2", engines])
    assert list(files_elsewhere(make_plan(alone, HOSTS), alone.roles)) == [], "actors write nothing"

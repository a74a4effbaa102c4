"""What is read of a run before it goes on, and who is taken to reach its directory."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tianji_cli.cluster.keys import JobKey
from tianji_cli.cluster.plan import Host, make_plan
from tianji_cli.cluster.run_files import files_elsewhere, reaches_run, saved_progress
from tianji_cli.config.loader import load_config
from tianji_cli.data.progress import Progress
from tianji_cli.errors import UsageError

HOSTS = [Host("here", (0, 1)), Host("there", (0, 1))]


def save(place: Path, progress: Progress) -> Path:
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"progress": asdict(progress)}))
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


def test_a_run_directory_is_the_job_s_if_its_key_lies_there(tmp_path: Path) -> None:
    key, said = JobKey.new(), list[str]()
    assert not reaches_run(tmp_path / "nowhere", key, said.append)
    assert not reaches_run(tmp_path, key, said.append)
    key.write(tmp_path / "job.key")
    assert reaches_run(tmp_path, key, said.append)
    assert not reaches_run(tmp_path, JobKey.new(), said.append)
    assert said == []


def test_a_run_directory_that_others_may_change_is_not_used_and_said_to_be(tmp_path: Path) -> None:
    key, said = JobKey.new(), list[str]()
    run = tmp_path / "shared/run"
    run.mkdir(parents=True)
    key.write(run / "job.key")
    run.parent.chmod(0o777)
    assert not reaches_run(run, key, said.append)
    assert "may be written to by all" in said[0]


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

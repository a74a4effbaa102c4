"""Checkpoints that a run goes on from, and hosts that reach its directory."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tianji_cli.config.loader import load_config
from tianji_cli.config.schema import Stop
from tianji_cli.errors import UsageError
from tianji_cli.files.saved import (
    MODEL,
    SCHEMA,
    STATE,
    TRAINING,
    Progress,
    goals_reached,
    saved_progress,
    seal,
)
from tianji_cli.launch.host import reaches_run
from tianji_cli.plan.plan import Host, files_elsewhere, make_plan
from tianji_cli.wire.address import JobKey

HOSTS = [Host("here", (0, 1)), Host("there", (0, 1))]


def save(place: Path, progress: Progress, **episodes: float | None) -> Path:
    place.mkdir(parents=True)
    rest = {"schema": SCHEMA, "embryo": {}, "episodes": {"best_mean": None, "time_to": [], **episodes}}
    for name in (MODEL, TRAINING):
        (place / name).write_text(name)
    (place / STATE).write_text(json.dumps({"progress": asdict(progress), **rest}))
    seal(place, (MODEL, TRAINING, STATE))
    return place / STATE


def test_each_group_goes_on_with_its_own_counters_and_a_new_one_counts_from_nothing(tmp_path: Path) -> None:
    save(tmp_path / "last", Progress(env_steps=100, updates=7, train_s=1.5, sessions=2))
    save(tmp_path / "group-1/last", Progress(env_steps=80, version=3, sessions=2))
    assert saved_progress(tmp_path, 3) == (
        Progress(env_steps=100, updates=7, train_s=1.5, sessions=2),
        Progress(env_steps=80, version=3, sessions=2),
        Progress(sessions=2),
    )


@pytest.mark.parametrize(
    ("groups", "saved_in", "goes_on"),
    [
        ({1: 2}, (3, 3), True),
        ({1: 2}, (3, 2), True),  # A kill after group 0's first checkpoint of the third session.
        ({1: 2}, (2, 3), True),  # Or after group 1's.
        ({1: 2}, (10**15, 1), True),
        ({1: 2, 2: 1, 3: 2}, (3, 1), False),
        ({1: 2, 2: 1, 3: 2}, (3, 3), True),
        ({1: 2, 3: 1}, (3, 2), False),
        ({1: 2, 3: 1}, (2, 1), True),
        ({1: 2, 2: "?", 3: 2}, (3, 1), True),
    ],
)
def test_a_group_goes_on_from_its_own_checkpoint_unless_a_session_after_it_did_without_the_group(
    tmp_path: Path, groups: dict[int, Any], saved_in: tuple[int, int], goes_on: bool
) -> None:
    checkpoints = tmp_path / "checkpoints"
    first, second = (session - 1 for session in saved_in)
    save(checkpoints / "last", Progress(env_steps=100, sessions=first))
    save(checkpoints / "group-1/last", Progress(env_steps=80, version=3, sessions=second))
    for session, number in groups.items():
        name = "config.toml" if session == 1 else f"config-{session}.toml"
        (tmp_path / name).write_text(f"distribution.groups = {json.dumps(number)}\n")
    expected = Progress(env_steps=80, version=3, sessions=second) if goes_on else Progress(sessions=first)
    assert saved_progress(checkpoints, 2)[1] == expected


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"progress": {"steps": 1}}', '{"progress": {"sessions": "x"}}', "[" * 10_000]
)
def test_a_checkpoint_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = save(tmp_path / "checkpoints/last", Progress())
    path.write_text(text)
    seal(path.parent, (MODEL, TRAINING, STATE))
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
    save(tmp_path / "best", Progress())
    save(tmp_path / "group-1/last", Progress(env_steps=100), best_mean=None, best_win_rate=0.75)
    assert goals_reached(tmp_path, stop, 2).keys() == reached


def test_a_goal_of_small_returns_is_written_with_its_digits(tmp_path: Path) -> None:
    save(tmp_path / "last", Progress(env_steps=200), best_mean=0.9304)
    save(tmp_path / "best", Progress())
    (reason,) = goals_reached(tmp_path, Stop(mean_return=0.93), 1).values()
    assert reason == "the best mean return of 100 episodes was 0.930"


def test_fewer_than_a_hundred_episodes_reach_no_goal_of_returns(tmp_path: Path) -> None:
    save(tmp_path / "last", Progress(env_steps=200), best_mean=None)
    assert goals_reached(tmp_path, Stop(mean_return=-1e9, win_rate=1e-9), 1) == {}


@pytest.mark.parametrize("name", [MODEL, TRAINING, STATE])
@pytest.mark.parametrize("group", [0, 1])
def test_a_damaged_checkpoint_is_refused_with_the_newest_older_one_that_is_whole(
    tmp_path: Path, name: str, group: int
) -> None:
    for place in (tmp_path, tmp_path / "group-1"):
        for steps in (100, 200, 300):
            save(place / f"{steps:012d}", Progress(env_steps=steps))
        (place / "last").symlink_to("000000000300")
    damaged = (tmp_path, tmp_path / "group-1")[group]
    for steps in (200, 300):
        file = damaged / f"{steps:012d}" / name
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(UsageError) as refused:
        saved_progress(tmp_path, 2)
    message = str(refused.value)
    assert f"{damaged}/last/{name} is damaged: its SHA-256 is not the one in SHA256SUMS" in message
    assert f"ln -sfn 000000000100 {damaged}/last" in message
    subprocess.run(["ln", "-sfn", "000000000100", str(damaged / "last")], check=True)
    assert saved_progress(tmp_path, 2)[group].env_steps == 100


@pytest.mark.parametrize("counter", ["env_steps", "consumed", "updates", "version", "train_s", "sessions"])
@pytest.mark.parametrize("value", [-1, "1", None, True, [], float("nan"), float("inf"), 0.5])
def test_counters_that_cannot_be_are_refused(tmp_path: Path, counter: str, value: Any) -> None:
    path = save(tmp_path / "last", Progress())
    document = json.loads(path.read_text())
    document["progress"][counter] = value
    path.write_text(json.dumps(document))
    seal(path.parent, (MODEL, TRAINING, STATE))
    if (counter, value) == ("train_s", 0.5):
        assert saved_progress(tmp_path, 1)[0].train_s == 0.5
        return
    with pytest.raises(UsageError, match=rf"state\.json has what cannot be: {counter} is "):
        saved_progress(tmp_path, 1)


def test_a_best_policy_that_is_damaged_is_refused_before_anything_starts(tmp_path: Path) -> None:
    path = save(tmp_path / "last", Progress())
    document = json.loads(path.read_text())
    document["episodes"]["best_mean"] = 1.0
    path.write_text(json.dumps(document))
    seal(path.parent, (MODEL, TRAINING, STATE))
    save(tmp_path / "best", Progress())
    saved_progress(tmp_path, 1)
    (tmp_path / "best" / MODEL).write_text("something else")
    with pytest.raises(UsageError, match=r"best/model\.safetensors is damaged"):
        saved_progress(tmp_path, 1)


def test_a_run_directory_is_the_job_s_if_its_key_lies_there(tmp_path: Path) -> None:
    key, events = JobKey.new(), list[str]()
    assert not reaches_run(tmp_path / "nowhere", key, events.append)
    assert not reaches_run(tmp_path, key, events.append)
    key.write(tmp_path / "job.key")
    assert reaches_run(tmp_path, key, events.append)
    assert not reaches_run(tmp_path, JobKey.new(), events.append)
    assert events == []


def test_a_run_directory_that_others_may_change_is_not_used_and_said_to_be(tmp_path: Path) -> None:
    key, events = JobKey.new(), list[str]()
    run = tmp_path / "shared/run"
    run.mkdir(parents=True)
    key.write(run / "job.key")
    run.parent.chmod(0o777)
    assert not reaches_run(run, key, events.append)
    assert "may be written to by all" in events[0]


def test_learners_and_roles_of_the_user_s_on_other_hosts_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    recorder = Path(__file__).parents[3] / "docs" / "examples" / "recorder.toml"
    engines = 'distribution.transport={ local = "shm", remote = "zmq" }'
    config = load_config(str(recorder), ["distribution.hosts=2", "distribution.groups=2", engines])
    found = list(files_elsewhere(make_plan(config, HOSTS), config))
    assert [(one.host, one.what) for one in found] == [
        ("there", "the checkpoints of group 1"),
        ("there", "the files of recorder (group 1)"),
    ]
    alone = load_config(str(recorder), ["distribution.hosts=2", engines])
    assert list(files_elsewhere(make_plan(alone, HOSTS), alone)) == [], "actors write nothing"
